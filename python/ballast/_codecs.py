"""VAE and text encoder in this process: what goes into a transformer, and what comes out of it."""

from __future__ import annotations

import ctypes
import json
import os
from ctypes import byref, c_int64
from typing import Any, Dict, Optional

import numpy as np
import numpy.typing as npt

from . import _library
from ._arrays import borrow, result_array
from ._errors import UsageError
from ._info import Info
from ._model import Budget, budget_settings
from ._options import PathOrName


class _Handle:
    """An object of the library that is opened from a path with settings."""

    _name = ""

    def __init__(self, path: PathOrName, settings: "Dict[str, Any]") -> None:
        self._handle = ctypes.c_void_p()
        given = {k: v for k, v in settings.items() if v is not None}
        self._handle = _library.open_handle(
            f"ballast_{self._name}_open", os.fspath(path).encode(), json.dumps(given).encode()
        )
        self.info = Info(_library.call_json(f"ballast_{self._name}_info", self._handle))

    def _call(self, function: str, *arguments: Any) -> None:
        if not self._handle:
            raise UsageError(f"{function}(): the object was closed", 2)
        _library.call(f"ballast_{self._name}_{function}", self._handle, *arguments)

    def close(self) -> None:
        """Gives its memory back."""
        if self._handle:
            _library.close_handle(f"ballast_{self._name}_close", self._handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()


class WanVAE(_Handle):
    """A VAE: pixels to latents and back.

    >>> vae = ballast.WanVAE("Wan2.2_VAE.pth", budget={"gpu": "4GB"})
    >>> z = vae.encode(video)
    >>> video = vae.decode(z)

    dtype is "f32" or "bf16". gradient_checkpointing may be given and changes nothing here: encoding
    and decoding compute no gradients.
    """

    _name = "vae"

    def __init__(
        self,
        path: PathOrName,
        *,
        budget: Optional[Budget] = None,
        device: str = "auto",
        threads: int = 0,
        dtype: Optional[str] = None,
        clamp: bool = True,
        gradient_checkpointing: Optional[bool] = None,
    ) -> None:
        del gradient_checkpointing
        super().__init__(
            path,
            {
                **budget_settings(budget),
                "device": device,
                "threads": threads,
                "dtype": dtype,
                "clamp": clamp,
            },
        )

    def encode(self, video: Any, out: Any = None) -> Any:
        """[frames, height, width, 3] of float32 from -1 to 1, 4 n + 1 frames, to a normalised latent
        [channels, n + 1, height / cell, width / cell]."""
        given = borrow(video, "video", 4, wide=True)
        frames, height, width, _ = given.shape
        cell = int(self.info["pixels_per_cell"])
        shape = (int(self.info["z_dim"]), (frames - 1) // int(self.info["frames_per_cell"]) + 1,
                 height // cell, width // cell)  # fmt: skip
        array, borrowed = result_array(out, shape, wide=True)
        self._call("encode", given.pointer, borrowed.pointer)
        return array

    def decode(self, latent: Any, out: Any = None) -> Any:
        """The pixels of a latent: [frames, height, width, 3] from -1 to 1."""
        given = borrow(latent, "latent", 4, wide=True)
        _, frames, height, width = given.shape
        cell = int(self.info["pixels_per_cell"])
        shape = (
            (frames - 1) * int(self.info["frames_per_cell"]) + 1,
            height * cell,
            width * cell,
            3,
        )
        array, borrowed = result_array(out, shape, wide=True)
        self._call("decode", given.pointer, borrowed.pointer)
        return array


class TextEncoder(_Handle):
    """The text encoder of a Wan model (UMT5) with its tokenizer.

    >>> encoder = ballast.TextEncoder("Wan2.2-T2V-A14B")
    >>> states = encoder("a lighthouse in a storm")
    """

    _name = "text"

    def __init__(
        self,
        path: PathOrName,
        *,
        tokenizer: Optional[PathOrName] = None,
        budget: Optional[Budget] = None,
        device: str = "auto",
        threads: int = 0,
    ) -> None:
        super().__init__(
            path,
            {
                **budget_settings(budget),
                "device": device,
                "threads": threads,
                "tokenizer": None if tokenizer is None else os.fspath(tokenizer),
            },
        )

    def __call__(self, prompt: str) -> "npt.NDArray[np.float32]":
        """The states of a prompt: [rows, width] of float32, as many rows as it has tokens."""
        states = np.zeros((int(self.info["rows"]), int(self.info["width"])), np.float32)
        rows = c_int64()
        self._call(
            "states", prompt.encode(), borrow(states, "states", 2, out=True).pointer, byref(rows)
        )
        return states[: rows.value]
