"""The program as a child of this process."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any, Callable, Iterator, List, Mapping, Optional, Sequence

from ._errors import Error, error_from, fields_from_text
from ._find import program
from ._progress import OnProgress, record_of

_PR_SET_PDEATHSIG = 1
_TAIL = 1 << 16  # characters of stderr that are kept for an explanation


def _dies_with_parent() -> Callable[[], None]:
    """For the child, before it becomes the program: asks for SIGTERM when its parent is gone, so
    that a training finishes its step and saves. What takes memory or locks is done before."""
    prctl = ctypes.CDLL(None).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    parent = os.getpid()

    def in_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it went before the kernel knew
            os._exit(128 + signal.SIGTERM)

    return in_child


class Child:
    """A run of the program: lines of its stdout, its stderr passed on and kept for explanations.

    It is in a session of its own, so that Ctrl-C in a terminal reaches it as the one SIGINT that
    stop() sends.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        quiet: bool = False,
        text: Optional[str] = None,
        on_progress: Optional[OnProgress] = None,
    ) -> None:
        self._tail = ""
        self.raised: Optional[BaseException] = None
        self._on_progress = on_progress
        self._buffer = b""
        self._quiet = quiet
        self._input = None if text is None else text.encode()
        self._process = subprocess.Popen(
            [program(), *arguments],
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "BALLAST_PROGRESS": "json"} if on_progress else None,
            preexec_fn=_dies_with_parent(),
        )
        self._helpers = [threading.Thread(target=self._pass_on, daemon=True)]
        if text is not None:
            self._helpers.append(threading.Thread(target=self._write, daemon=True))
        for helper in self._helpers:
            helper.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _write(self) -> None:
        assert self._process.stdin is not None and self._input is not None
        try:
            self._process.stdin.write(self._input)
            self._process.stdin.close()
        except OSError:  # it has ended, and says why
            pass

    def _pass_on(self) -> None:
        assert self._process.stderr is not None
        if self._on_progress is not None:
            for line in self._process.stderr:
                if not self._took_progress(line):
                    self._show(line)
            return
        for raw in iter(lambda: os.read(self._process.stderr.fileno(), 4096), b""):  # type: ignore[union-attr]
            self._show(raw)

    def _show(self, raw: bytes) -> None:
        text = raw.decode("utf-8", "replace")
        self._tail = (self._tail + text)[-_TAIL:]
        if not self._quiet and sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()

    def _took_progress(self, line: bytes) -> bool:
        """Hands progress to the user's function; what that raises ends the run."""
        if self._on_progress is None or not line.startswith(b'{"kind":"progress"'):
            return False
        if self.raised is None:
            try:
                self._on_progress(record_of(json.loads(line)))
            except BaseException as e:  # of the user's function: raised where the run is awaited
                self.raised = e
                self._process.kill()
        return True

    def lines(self) -> Iterator[bytes]:
        """What it prints, until it closes its stdout. May be called again after an interruption."""
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while True:
            end = self._buffer.find(b"\n")
            if end >= 0:
                line, self._buffer = self._buffer[:end], self._buffer[end + 1 :]
                yield line
                continue
            more = os.read(fd, 1 << 16)
            if not more:
                break
            self._buffer += more
        if self._buffer:
            line, self._buffer = self._buffer, b""
            yield line

    def stop(self) -> None:
        """One SIGINT: a training finishes its step and saves; a second one ends it at once."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)

    def wait(self) -> int:
        """The exit code; negative: the signal that ended it."""
        code = self._process.wait()
        for helper in self._helpers:
            helper.join(timeout=5)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return code

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self.wait()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def said(self) -> str:
        """The last of what it wrote to stderr."""
        return self._tail


def failure(code: int, said: str, fields: Optional[Mapping[str, Any]] = None) -> Error:
    """The exception for a run of the program that ended with this code."""
    if code < 0:
        name = signal.Signals(-code).name
        return Error(
            f"the program was ended by {name}; `ballast doctor` says more about a training",
            128 - code,
        )
    return error_from(fields if fields is not None else fields_from_text(said), code)


def output_of(
    arguments: Sequence[str],
    allowed: Sequence[int] = (0,),
    quiet: bool = True,
    text: Optional[str] = None,
    on_progress: Optional[OnProgress] = None,
) -> "tuple[int, str, str]":
    """Runs the program to its end: exit code, stdout, stderr. Raises for a code not allowed."""
    child = Child(arguments, quiet, text, on_progress)
    out: List[bytes] = []
    try:
        for line in child.lines():
            out.append(line)
        code = child.wait()
    except BaseException:
        child.kill()
        raise
    if child.raised is not None:
        raise child.raised
    if code not in allowed:
        raise failure(code, child.said)
    return code, b"\n".join(out).decode("utf-8", "replace"), child.said


def without_progress(text: str) -> str:
    """stderr without what is there for the person who waits."""
    lines = [x for x in text.splitlines() if not x.startswith("ballast: planning what would help")]
    return "\n".join(lines).replace("ballast: ", "", 1)
