"""Arrays of others, without a copy: numpy, torch, and whatever has __dlpack__."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int64, c_void_p, cast, py_object, pythonapi
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from ._library import DLManagedTensor, DLManagedTensorVersioned, DLTensor

_FLOAT, _BFLOAT = 2, 4
_NAMES = {(_FLOAT, 32): "float32", (_FLOAT, 16): "float16", (_BFLOAT, 16): "bfloat16"}
_KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_READ_ONLY, _COPIED = 1, 2
_CPU_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost

_is_valid = pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [py_object, c_char_p]
_pointer = pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [py_object, c_char_p]


class Borrowed:
    """An array of the caller as a DLTensor. Keeps the array alive as long as it lives itself."""

    def __init__(
        self, owner: Any, address: int, shape: Sequence[int], code: int, bits: int
    ) -> None:
        self._owner = owner
        self.shape: Tuple[int, ...] = tuple(shape)
        self._shape = (c_int64 * max(len(self.shape), 1))(*self.shape)
        self.tensor = DLTensor()
        self.tensor.data = address
        self.tensor.device.device_type = 1
        self.tensor.ndim = len(self.shape)
        self.tensor.dtype.code, self.tensor.dtype.bits, self.tensor.dtype.lanes = code, bits, 1
        self.tensor.shape = cast(self._shape, POINTER(c_int64))

    @property
    def pointer(self) -> "ctypes._Pointer[DLTensor]":
        return ctypes.pointer(self.tensor)


def borrow(array: Any, name: str, ndim: int, out: bool = False, wide: bool = False) -> Borrowed:
    """Any array of float32, float16 or bfloat16 in memory of the CPU, row by row.

    TypeError, with what to call, for every other: nothing is copied or converted here. wide:
    float32 alone.
    """
    if isinstance(array, np.ndarray):
        found = _of_numpy(array, name, out)
    elif hasattr(array, "__dlpack__"):
        found = _of_dlpack(array, name, out)
    else:
        raise TypeError(
            f"{name}: expected an array (numpy, torch, or an object with __dlpack__), found "
            f"{type(array).__name__}; call numpy.asarray({name}, numpy.float32)"
        )
    if len(found.shape) != ndim:
        raise TypeError(
            f"{name}: expected {ndim} dimensions, found {len(found.shape)}, of shape {found.shape}"
        )
    if wide and found.tensor.dtype.bits != 32:
        raise TypeError(
            f"{name}: expected float32; call {name}.astype(numpy.float32) or a like conversion"
        )
    return found


def _refuse_dtype(name: str, found: str, how: str) -> TypeError:
    return TypeError(f"{name}: expected float32, float16 or bfloat16, found {found}; call {how}")


def _of_numpy(array: "np.ndarray[Any, Any]", name: str, out: bool) -> Borrowed:
    kinds = {"float32": (_FLOAT, 32), "float16": (_FLOAT, 16), "bfloat16": (_BFLOAT, 16)}
    kind = kinds.get(array.dtype.name)
    if kind is None or not array.dtype.isnative:
        raise _refuse_dtype(name, str(array.dtype), f"{name}.astype(numpy.float32)")
    if not array.flags.c_contiguous:
        raise TypeError(
            f"{name}: its rows do not lie behind each other; "
            + ("give an array of its own" if out else f"call numpy.ascontiguousarray({name})")
        )
    if out and not array.flags.writeable:
        raise TypeError(f"{name}: it is read-only; call {name}.copy() and give the copy")
    return Borrowed(array, array.ctypes.data, array.shape, *kind)


def _capsule_of(array: Any) -> Any:
    try:
        return array.__dlpack__(max_version=(1, 0))
    except TypeError:  # older than version 1
        return array.__dlpack__()


def _of_dlpack(array: Any, name: str, out: bool) -> Borrowed:
    if hasattr(array, "__dlpack_device__"):
        device = int(array.__dlpack_device__()[0])
        if device not in _CPU_DEVICES:
            raise TypeError(
                f"{name}: expected memory of the CPU, found DLPack device {device}; call {name}.cpu()"
            )
    try:
        capsule = _capsule_of(array)
    except BufferError as e:  # numpy before 2.1, of what is read-only
        raise TypeError(f"{name}: its memory is not shared: {e}") from e
    flags = 0
    if _is_valid(capsule, b"dltensor_versioned"):
        versioned = cast(
            _pointer(capsule, b"dltensor_versioned"), POINTER(DLManagedTensorVersioned)
        ).contents
        if versioned.major != 1:
            raise TypeError(f"{name}: expected DLPack 1, found {versioned.major}.{versioned.minor}")
        tensor, flags = versioned.dl_tensor, int(versioned.flags)
    elif _is_valid(capsule, b"dltensor"):
        tensor = cast(_pointer(capsule, b"dltensor"), POINTER(DLManagedTensor)).contents.dl_tensor
    else:
        raise TypeError(f"{name}: its __dlpack__() gives no capsule that may be used")
    kind = (tensor.dtype.code, tensor.dtype.bits)
    if kind not in _NAMES or tensor.dtype.lanes != 1:
        found = f"{_KINDS.get(kind[0], 'dtype ' + str(kind[0]))}{kind[1]}"
        raise _refuse_dtype(name, found, f"{name}.float() or a like conversion")
    if tensor.device.device_type not in _CPU_DEVICES:
        raise TypeError(f"{name}: expected memory of the CPU; call {name}.cpu()")
    shape = [tensor.shape[i] for i in range(tensor.ndim)]
    if not _row_by_row(tensor, shape):
        raise TypeError(f"{name}: its rows do not lie behind each other; call {name}.contiguous()")
    if out and flags & _READ_ONLY:
        raise TypeError(f"{name}: it is read-only; give an array that may be written")
    if out and flags & _COPIED:
        raise TypeError(f"{name}: its __dlpack__() gives a copy, which nobody would see written")
    address = (tensor.data or 0) + tensor.byte_offset
    return Borrowed((array, capsule), address, shape, *kind)


def _row_by_row(tensor: DLTensor, shape: Sequence[int]) -> bool:
    if not tensor.strides or 0 in shape:
        return True
    expected = 1
    for i in reversed(range(len(shape))):
        if shape[i] != 1 and tensor.strides[i] != expected:
            return False
        expected *= shape[i]
    return True


def result_array(
    out: Optional[Any], shape: Sequence[int], wide: bool = False
) -> Tuple[Any, Borrowed]:
    """The array that a result is written to, and the same for the library; new ones are float32."""
    array = np.empty(tuple(shape), np.float32) if out is None else out
    borrowed = borrow(array, "out", len(tuple(shape)), out=True, wide=wide)
    if borrowed.shape != tuple(shape):
        raise TypeError(f"out: expected shape {tuple(shape)}, found {borrowed.shape}")
    return array, borrowed
