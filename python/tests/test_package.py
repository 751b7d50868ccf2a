"""The package as it is installed: program, errors, what is missing."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import sysconfig
import zipfile

import pytest

import ballast
from ballast import _errors, _find


def python(code: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_program_is_the_wheels_own() -> None:
    path = _find.program()
    assert pathlib.Path(path) == pathlib.Path(sysconfig.get_path("scripts")) / "ballast"
    shown = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    module = subprocess.run(
        [sys.executable, "-m", "ballast", "--version"], capture_output=True, text=True, check=True
    )
    assert shown.startswith("ballast ")
    assert module.stdout == shown


def test_python_m_ballast_has_the_programs_exit_code() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "ballast", "plam"], capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "plan" in ended.stderr


def test_another_program_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BALLAST_PROGRAM", "/nowhere/ballast")
    with pytest.raises(ballast.UsageError, match="BALLAST_PROGRAM: /nowhere/ballast"):
        ballast.plan("wan2.1-t2v-1.3b")


def test_a_library_of_another_kind_is_an_import_error() -> None:
    ended = python("import ballast", BALLAST_LIBRARY="libc.so.6")
    assert ended.returncode == 1
    assert "ImportError: libc.so.6 lacks ballast_abi" in ended.stderr
    ended = python("import ballast", BALLAST_LIBRARY="/nowhere/libballast.so.0")
    assert "cannot be loaded" in ended.stderr


def test_importing_takes_no_program_and_prints_nothing() -> None:
    ended = python("import ballast; print(ballast.Plan.__name__)", BALLAST_PROGRAM="/nowhere")
    assert (ended.stdout, ended.stderr) == ("Plan\n", "")


def test_errors_are_read_from_what_the_program_says() -> None:
    text = (
        "ballast: a note\nballast: a.safetensors: has no tensor x\nand a second line\n"
        "  while reading blocks\nwhat would help:\n  1. ballast inspect a: lists\n"
        "     the tensors\n  2. another file\n"
    )
    error = _errors.error_from(_errors.fields_from_text(text), 4)
    assert isinstance(error, ballast.InputError)
    assert error.message == "a.safetensors: has no tensor x\nand a second line"
    assert error.trail == ("reading blocks",)
    assert [(a.change, a.effect) for a in error.advice] == [
        ("ballast inspect a", "lists the tensors"),
        ("another file", ""),
    ]
    assert str(error).endswith("  1. ballast inspect a: lists the tensors\n  2. another file")


def test_every_code_has_its_class() -> None:
    for code, kind in {
        1: ballast.InternalError,
        2: ballast.UsageError,
        3: ballast.Refused,
        4: ballast.InputError,
        5: ballast.DeviceError,
        6: ballast.StorageError,
        7: ballast.Error,
    }.items():
        error = _errors.error_from({"code": code, "message": "m"})
        assert type(error) is kind and error.code == code


def test_the_wheel_lists_what_it_holds() -> None:
    wheels = sorted(pathlib.Path(sys.prefix).parent.glob("ballast_ml-*.whl"))
    with zipfile.ZipFile(wheels[-1]) as wheel:
        names = wheel.namelist()
        record = [n for n in names if n.endswith("RECORD")]
        listed = {line.split(",")[0] for line in wheel.read(record[0]).decode().splitlines()}
    assert wheels[-1].name.split("-")[2:4] == ["py3", "none"]
    assert listed == set(names)
    assert any(n.endswith("dist-info/licenses/LICENSE") for n in names)
