"""Keyword options as flags of the program, and configurations that are written as a dict."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import tempfile
from typing import Any, Iterator, Mapping, Sequence, Union

PathOrName = Union[str, "os.PathLike[str]"]
Config = Union[PathOrName, Mapping[str, Any]]

_SIZES = ("gpu", "ram", "disk")


def flag_words(options: Mapping[str, Any]) -> "list[str]":
    """{"gpu": "24GB", "fp8_matmul": True} is ["--gpu", "24GB", "--fp8-matmul"].

    None and False leave a flag out, a list gives it several times, sizes may be whole bytes.
    """
    words: "list[str]" = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is None or one is False:
                continue
            words.append(flag)
            if one is True:
                continue
            bytes_given = name in _SIZES and isinstance(one, int)
            words.append(
                f"{one}B"
                if bytes_given
                else os.fspath(one) if isinstance(one, os.PathLike) else str(one)
            )
    return words


def replaced(words: Sequence[str], change: str) -> "list[str]":
    """The words with those of `change` instead of flags of the same name."""
    new = shlex.split(change)

    def name(word: str) -> str:
        return word.split("=", 1)[0].replace("_", "-")

    names = {name(w) for w in new if w.startswith("--")}
    kept: "list[str]" = []
    skip = False
    for word in words:
        if word.startswith("--"):
            skip = name(word) in names
            if skip:
                skip = True
                continue
        elif skip:
            continue
        kept.append(word)
    return kept + new


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(v) for v in value) + "]"
    if isinstance(value, Mapping):
        items = ", ".join(f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items())
        return "{" + items + "}"
    raise TypeError(
        f"a configuration holds texts, numbers, lists and tables, not {type(value).__name__}"
    )


def _toml_key(key: Any) -> str:
    return json.dumps(str(key), ensure_ascii=False)


def toml_text(tables: Mapping[str, Any]) -> str:
    """A configuration as TOML; values that are None are left out."""
    lines: "list[str]" = []
    plain = {k: v for k, v in tables.items() if v is not None and not isinstance(v, Mapping)}
    for key, value in plain.items():
        lines.append(f"{_toml_key(key)} = {_toml_value(value)}")
    for key, value in tables.items():
        if isinstance(value, Mapping):
            lines.append(f"[{_toml_key(key)}]")
            for k, v in value.items():
                if v is not None:
                    lines.append(f"{_toml_key(k)} = {_toml_value(v)}")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def config_file(config: Config) -> Iterator[str]:
    """The path of a configuration; one that is given as a dict is a file for that long."""
    if not isinstance(config, Mapping):
        yield os.fspath(config)
        return
    with tempfile.TemporaryDirectory(prefix="ballast-") as folder:
        path = os.path.join(folder, "config.toml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(toml_text(config))
        yield path
