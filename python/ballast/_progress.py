"""How far the program or the library is, for the person who waits."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from typing import Any, Callable, Mapping, Optional

LEVEL = 3  # of ballast_set_log()


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far something is: done of total (0: unknown), in bytes or a count.

    >>> ballast.sample("Wan2.2-TI2V-5B", "a lighthouse", on_progress=lambda p: print(p.what, p.done, p.total))
    """

    what: str
    done: int
    total: int
    bytes: bool
    ended: bool


OnProgress = Callable[[Progress], object]


def record_of(record: Mapping[str, Any]) -> Progress:
    return Progress(
        str(record["what"]),
        int(record["done"]),
        int(record["total"]),
        record["unit"] == "bytes",
        bool(record["ended"]),
    )


class _Line:
    """A line on sys.stderr: after two seconds, then every ten, as the program has it in a file."""

    _FIRST, _NEXT = 2.0, 10.0

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._what: Optional[str] = None
        self._due = 0.0
        self._shown = False

    def __call__(self, p: Progress) -> None:
        with self._lock:
            if p.what != self._what:
                self._what, self._due, self._shown = p.what, self._now() + self._FIRST, False
            if self._now() < self._due and not (p.ended and self._shown):
                return
            self._due, self._shown = self._now() + self._NEXT, True
            if p.ended:
                self._what = None
            self._write(p)

    @staticmethod
    def _write(p: Progress) -> None:
        def amount(n: int) -> str:
            return f"{n / 1e9:.3f} GB" if p.bytes else str(n)

        of = f" of {amount(p.total)}" if p.total else ""
        if sys.stderr is not None:
            sys.stderr.write(f"ballast: {p.what}: {amount(p.done)}{of}\n")


tell: OnProgress = _Line()
