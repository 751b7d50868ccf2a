"""libballast.so.0 by ctypes: src/ballast/ballast_c.h in Python."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t
from ctypes import c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import _find, _progress
from ._errors import UsageError, error_from

ABI = 1


class DLDevice(ctypes.Structure):
    _fields_ = [("device_type", c_int32), ("device_id", c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", DLDevice),
        ("ndim", c_int32),
        ("dtype", DLDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", c_void_p), ("deleter", c_void_p)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("dl_tensor", DLTensor),
    ]


class SampleStruct(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("latent", POINTER(DLTensor)),
        ("conditioning", POINTER(DLTensor)),
        ("text", POINTER(DLTensor)),
        ("t", c_double),
    ]


_text_out = POINTER(c_void_p)  # char**: freed by ballast_free
_tensor = POINTER(DLTensor)
_handle_out = POINTER(c_void_p)

# What the package calls: arguments, then what is returned where that is not an exit code.
_FUNCTIONS: "Dict[str, Tuple[List[Any], Any]]" = {
    "ballast_abi": ([], c_uint32),
    "ballast_version_json": ([], c_char_p),
    "ballast_free": ([c_void_p], None),
    "ballast_set_log": ([c_void_p, c_void_p], None),
    "ballast_command": ([POINTER(c_char_p), c_size_t, _text_out, _text_out], c_int),
    "ballast_model_open": ([c_char_p, _handle_out, _text_out], c_int),
    "ballast_model_info": ([c_void_p, _text_out, _text_out], c_int),
    "ballast_model_settings": ([c_void_p, c_char_p, _text_out], c_int),
    "ballast_model_plan": ([c_void_p, _text_out, _text_out], c_int),
    "ballast_model_start": ([c_void_p, _text_out], c_int),
    "ballast_model_step": (
        [c_void_p, POINTER(SampleStruct), c_size_t, _text_out, _text_out],
        c_int,
    ),
    "ballast_model_predict": (
        [c_void_p, POINTER(SampleStruct), c_double, _tensor, _text_out],
        c_int,
    ),
    "ballast_model_save": ([c_void_p, c_char_p, _text_out], c_int),
    "ballast_model_load_checkpoint": ([c_void_p, c_char_p, POINTER(c_int), _text_out], c_int),
    "ballast_model_measured": ([c_void_p, _text_out, _text_out], c_int),
    "ballast_model_close": ([c_void_p], None),
    "ballast_vae_open": ([c_char_p, c_char_p, _handle_out, _text_out], c_int),
    "ballast_vae_info": ([c_void_p, _text_out, _text_out], c_int),
    "ballast_vae_encode": ([c_void_p, _tensor, _tensor, _text_out], c_int),
    "ballast_vae_decode": ([c_void_p, _tensor, _tensor, _text_out], c_int),
    "ballast_vae_close": ([c_void_p], None),
    "ballast_text_open": ([c_char_p, c_char_p, _handle_out, _text_out], c_int),
    "ballast_text_info": ([c_void_p, _text_out, _text_out], c_int),
    "ballast_text_states": ([c_void_p, c_char_p, _tensor, POINTER(c_int64), _text_out], c_int),
    "ballast_text_close": ([c_void_p], None),
}

def _say(level: int, text: bytes, user: object) -> None:
    """What the library tells the person who waits: to sys.stderr, where notebooks show it."""
    try:
        if level == _progress.LEVEL:
            _progress.tell(_progress.record_of(json.loads(text)))
        elif sys.stderr is not None:
            mark = "warning: " if level == 2 else ""
            sys.stderr.write(f"ballast: {mark}{text.decode('utf-8', 'replace')}\n")
    except Exception:  # nothing may be raised on the way into the library
        pass


_said = ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)(_say)  # stays as long as the library


_loaded: Optional[ctypes.CDLL] = None
_process = os.getpid()


def load() -> None:
    """Opens the library where there is one; ImportError for one that is not whole."""
    global _loaded
    path = _find.library()
    if path is None:
        return
    try:
        library = ctypes.CDLL(path)
    except OSError as e:
        raise ImportError(f"the library of ballast cannot be loaded: {e}") from None
    missing = [name for name in _FUNCTIONS if not hasattr(library, name)]
    if missing:
        raise ImportError(
            f"{path} lacks {', '.join(missing)}: the library and this package are of different "
            "versions"
        )
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    if library.ballast_abi() < ABI:
        raise ImportError(f"{path} has ABI {library.ballast_abi()}, this package needs {ABI}")
    _loaded = library
    library.ballast_set_log(_said, None)


def _library() -> ctypes.CDLL:
    if _loaded is None:
        raise UsageError(
            "this needs libballast.so.0, which is not in the package's folder: install the wheel of "
            "ballast-ml, or name the library in BALLAST_LIBRARY",
            2,
        )
    if os.getpid() != _process:
        raise UsageError(
            "this process was forked from one that had loaded ballast: make the models in the child, "
            "for example with multiprocessing's start method spawn",
            2,
        )
    return _loaded


def version() -> "Dict[str, Any]":
    found: Dict[str, Any] = json.loads(_library().ballast_version_json())
    return found


def _taken(text: c_void_p) -> str:
    if not text.value:
        return ""
    try:
        return ctypes.string_at(text.value).decode("utf-8", "replace")
    finally:
        _library().ballast_free(text)


def call(name: str, *arguments: Any) -> None:
    """Calls a function whose last argument is char** err; raises what that says."""
    error = c_void_p()
    code = getattr(_library(), name)(*arguments, byref(error))
    said = _taken(error)
    if code != 0:
        raise error_from(json.loads(said) if said else {}, code)


def call_json(name: str, *arguments: Any) -> "Dict[str, Any]":
    """The same for one whose result is a JSON text, before err."""
    out = c_void_p()
    call(name, *arguments, byref(out))
    return dict(json.loads(_taken(out)))


def open_handle(name: str, *arguments: Any) -> c_void_p:
    handle = c_void_p()
    call(name, *arguments, byref(handle))
    return handle


def close_handle(name: str, handle: c_void_p) -> None:
    """Nothing in a child that was forked: the memory is its parent's too."""
    if handle.value and _loaded is not None and os.getpid() == _process:
        getattr(_loaded, name)(handle)
    handle.value = None


def command(arguments: Sequence[str]) -> "Tuple[int, str, str]":
    """A command of the program in this process: exit code, output, "". 0 and 3 are answers."""
    words = (c_char_p * len(arguments))(*[a.encode() for a in arguments])
    out, error = c_void_p(), c_void_p()
    code = _library().ballast_command(words, len(arguments), byref(out), byref(error))
    text, said = _taken(out), _taken(error)
    if code != 0 and not (code == 3 and text.strip()):
        raise error_from(json.loads(said) if said else {}, code)
    return code, text, ""
