"""Images as `ballast sample` writes them: PNG files of 8 bits per channel."""

from __future__ import annotations

import struct
import zlib
from typing import Iterator, Tuple

import numpy as np
import numpy.typing as npt

from ._errors import InputError

_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}


def _chunks(data: bytes) -> Iterator[Tuple[bytes, bytes]]:
    at = 8
    while at + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        yield kind, data[at + 8 : at + 8 + length]
        at += 12 + length


def read_png(path: str) -> "npt.NDArray[np.uint8]":
    """[height, width, 3]"""
    with open(path, "rb") as f:
        data = f.read()
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise InputError(f"{path}: expected a PNG file", 4)
    packed = bytearray()
    width = height = depth = colour = interlaced = 0
    for kind, body in _chunks(data):
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            packed += body
    if depth != 8 or colour not in _CHANNELS or interlaced:
        raise InputError(f"{path}: expected 8 bits per channel, rows in order", 4)
    channels = _CHANNELS[colour]
    rows = np.frombuffer(zlib.decompress(bytes(packed)), np.uint8).reshape(height, -1)
    pixels = _unfiltered(rows[:, 0], rows[:, 1:].reshape(height, width, channels))
    if channels < 3:
        pixels = np.repeat(pixels[:, :, :1], 3, axis=2)
    return np.ascontiguousarray(pixels[:, :, :3])


def _unfiltered(
    filters: "npt.NDArray[np.uint8]", rows: "npt.NDArray[np.uint8]"
) -> "npt.NDArray[np.uint8]":
    """Each row is stored as a difference to its neighbours, by a filter that the row names."""
    if not filters.any():
        return rows
    height, width, channels = rows.shape
    out = np.empty_like(rows)
    above = np.zeros((width, channels), np.uint8)
    for y in range(height):
        kind, row = int(filters[y]), rows[y]
        if kind == 0:
            out[y] = row
        elif kind == 1:
            out[y] = np.cumsum(row, axis=0, dtype=np.uint8)
        elif kind == 2:
            out[y] = row + above
        else:
            out[y] = _by_pixel(kind, row, above)
        above = out[y]
    return out


def _by_pixel(
    kind: int, row: "npt.NDArray[np.uint8]", above: "npt.NDArray[np.uint8]"
) -> "npt.NDArray[np.uint8]":
    width, channels = row.shape
    values, up = row.tolist(), above.tolist()
    for c in range(channels):
        left = corner = 0
        for x in range(width):
            b = up[x][c]
            if kind == 3:
                guess = (left + b) // 2
            else:  # Paeth: of the three neighbours the nearest to their plane
                p = left + b - corner
                pa, pb, pc = abs(p - left), abs(p - b), abs(p - corner)
                guess = left if pa <= pb and pa <= pc else b if pb <= pc else corner
            left = values[x][c] = (values[x][c] + guess) & 255
            corner = b
    return np.array(values, np.uint8)
