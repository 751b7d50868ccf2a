"""What the tests share: the demo's model, a small dataset of images, and a configuration for both."""

from __future__ import annotations

import os
import pathlib
import struct
import zlib
from typing import Any, Dict

import numpy as np
import pytest

import ballast
from ballast import _library

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "examples" / "demo_model" / "model"


def write_png(path: pathlib.Path, pixels: "np.ndarray[Any, Any]") -> None:
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        sum_ = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", sum_)

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    packed = zlib.compress(rows.tobytes())
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    )


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Eight images with captions; they are encoded by the first training that reads them."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(1)
    for i in range(8):
        write_png(folder / f"{i}.png", random.integers(0, 255, (64, 64, 3), np.uint8))
        (folder / f"{i}.txt").write_text("a red circle falls")
    return folder


@pytest.fixture
def config(images: pathlib.Path, tmp_path: pathlib.Path) -> Dict[str, Any]:
    """Forty steps of a LoRA on the demo's model; a step takes some 20 ms."""
    dataset = tmp_path / "dataset.toml"
    dataset.write_text(
        f"resolutions = [64]\nframe_buckets = [1]\n[[directory]]\npath = '{images}'\n"
    )
    return {
        "output_dir": str(tmp_path / "runs"),
        "dataset": str(dataset),
        "epochs": 10,
        "micro_batch_size_per_gpu": 2,
        "checkpoint_every_n_steps": 1000,
        "save_dtype": "float32",
        "seed": 1,
        "model": {"type": "wan", "ckpt_path": str(MODEL), "dtype": "bfloat16"},
        "adapter": {"type": "lora", "rank": 4, "dtype": "float32"},
        "optimizer": {"type": "adamw", "lr": 1e-3},
    }


@pytest.fixture(scope="session")
def library() -> None:
    """For tests of what needs the library: it is part of the wheel."""
    assert _library._loaded is not None, "libballast.so.0 is not in the wheel"


@pytest.fixture(autouse=True)
def state_of_its_own(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert "site-packages" in os.path.dirname(ballast.__file__), "the installed package is tested"
