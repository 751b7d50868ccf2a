"""Where the program `ballast` and the library libballast.so.0 are."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Iterator, Optional

from ._errors import UsageError

LIBRARY = "libballast.so.0"


def _script_folders() -> Iterator[Path]:
    yield Path(sysconfig.get_path("scripts"))
    yield Path(sys.prefix) / "bin"
    user = sysconfig.get_path("scripts", scheme="posix_user")
    if user:
        yield Path(user)


def _is_program(path: Path) -> bool:
    """A program, and not a Python script of the same name that would call itself."""
    try:
        with open(path, "rb") as f:
            return os.access(path, os.X_OK) and f.read(4) == b"\x7fELF"
    except OSError:
        return False


def _found_program() -> Optional[str]:
    for folder in _script_folders():
        if _is_program(folder / "ballast"):
            return str(folder / "ballast")
    for name in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which("ballast", path=name) if name else None
        if found and _is_program(Path(found)):
            return found
    return None


def has_program() -> bool:
    return bool(os.environ.get("BALLAST_PROGRAM")) or _found_program() is not None


def program() -> str:
    """The path of the program: BALLAST_PROGRAM, else beside Python's scripts, else in PATH."""
    named = os.environ.get("BALLAST_PROGRAM")
    if named:
        if not os.access(named, os.X_OK):
            raise UsageError(f"BALLAST_PROGRAM: {named} is no program", 2)
        return named
    found = _found_program()
    if found is None:
        raise UsageError(
            "the program ballast is neither beside Python's scripts nor in PATH: install the "
            "package ballast-ml again, or name the program in BALLAST_PROGRAM",
            2,
        )
    return found


def library() -> Optional[str]:
    """The path of the library: BALLAST_LIBRARY, else in the package's folder; None: there is none."""
    named = os.environ.get("BALLAST_LIBRARY")
    if named:
        return named
    path = Path(__file__).resolve().parent / LIBRARY
    return str(path) if path.exists() else None
