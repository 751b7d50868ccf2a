"""ballast.sample and ballast.generate."""

from __future__ import annotations

import pathlib
import struct
import subprocess
import zlib
from typing import Any

import numpy as np
import pytest

import ballast
from ballast import _find, _png

from conftest import MODEL, write_png

SMALL: "dict[str, Any]" = {"frames": 5, "width": 64, "height": 64, "steps": 2, "seed": 7}


def test_a_clip_has_the_programs_pixels(tmp_path: pathlib.Path) -> None:
    clip = ballast.sample(MODEL, "a red circle falls", quiet=True, **SMALL)
    assert clip.shape == (5, 64, 64, 3) and clip.dtype == np.uint8
    words = [w for k, v in SMALL.items() for w in (f"--{k}", str(v))]
    subprocess.run(
        [_find.program(), "sample", "--model", str(MODEL), "--prompt", "a red circle falls", *words,
         "--output", str(tmp_path / "clip.png")],
        check=True, capture_output=True,
    )  # fmt: skip
    for i, frame in enumerate(clip):
        assert (frame == _png.read_png(str(tmp_path / f"clip_{i:05d}.png"))).all()
    assert clip.std() > 1


def test_several_clips_have_an_axis_of_their_own() -> None:
    prompts = ["a red circle falls", "a blue square rises"]
    clips = ballast.sample(MODEL, prompts, quiet=True, **SMALL)
    assert clips.shape == (2, 5, 64, 64, 3)
    assert (clips[0] != clips[1]).any()
    one = ballast.sample(MODEL, prompts[0], quiet=True, **{**SMALL, "frames": 1})
    assert one.shape == (1, 64, 64, 3)


def test_progress_is_told_and_an_exception_in_it_ends_the_run() -> None:
    seen: "list[ballast.Progress]" = []
    ballast.sample(MODEL, "a red circle falls", quiet=True, on_progress=seen.append, **SMALL)
    denoising = [p for p in seen if p.what == "denoising"]
    assert denoising[0].done == 0 and denoising[0].total == 2 and not denoising[0].bytes
    assert denoising[-1].ended and denoising[-1].done == 2

    def refuse(p: ballast.Progress) -> None:
        raise RuntimeError(f"no {p.what}")

    with pytest.raises(RuntimeError, match="no "):
        ballast.sample(MODEL, "a red circle falls", quiet=True, on_progress=refuse, **SMALL)


def test_what_is_wrong_is_raised() -> None:
    with pytest.raises(TypeError, match="no argument output"):
        ballast.sample(MODEL, "a", output="clip.mp4")
    with pytest.raises(ballast.UsageError, match="one line"):
        ballast.sample(MODEL, ["a\nb"])
    with pytest.raises(ballast.Refused) as error:
        ballast.sample(MODEL, "a red circle falls", ram="5MB", quiet=True, **SMALL)
    assert error.value.advice
    with pytest.raises(ballast.Error, match="nowhere"):
        ballast.generate("nowhere", "hello", quiet=True)


def filtered(pixels: "np.ndarray[Any, Any]", filters: "list[int]") -> bytes:
    """Rows as an encoder writes them, each with its filter."""
    height, width, channels = pixels.shape
    wide = np.zeros((height + 1, width + 1, channels), np.int64)
    wide[1:, 1:] = pixels
    out = b""
    for y, kind in enumerate(filters, 1):
        left, up, corner = wide[y, :-1], wide[y - 1, 1:], wide[y - 1, :-1]
        p = left + up - corner
        near = np.stack([abs(p - left), abs(p - up), abs(p - corner)]).argmin(0)
        paeth = np.choose(near, [left, up, corner])
        guess = [0 * left, left, up, (left + up) // 2, paeth][kind]
        out += bytes([kind]) + ((wide[y, 1:] - guess) & 255).astype(np.uint8).tobytes()
    return out


def test_every_filter_of_png_is_read(tmp_path: pathlib.Path) -> None:
    pixels = np.random.default_rng(3).integers(0, 255, (10, 7, 3), np.uint8)
    write_png(tmp_path / "plain.png", pixels)
    data = (tmp_path / "plain.png").read_bytes()
    assert (_png.read_png(str(tmp_path / "plain.png")) == pixels).all()
    packed = zlib.compress(filtered(pixels, [0, 1, 2, 3, 4, 4, 3, 2, 1, 0]))
    body = struct.pack(">I", len(packed)) + b"IDAT" + packed + b"\0\0\0\0"
    begin = data.index(b"IDAT") - 4
    (tmp_path / "other.png").write_bytes(data[:begin] + body)
    assert (_png.read_png(str(tmp_path / "other.png")) == pixels).all()
    (tmp_path / "no.png").write_bytes(b"GIF89a")
    with pytest.raises(ballast.InputError, match="expected a PNG"):
        _png.read_png(str(tmp_path / "no.png"))
