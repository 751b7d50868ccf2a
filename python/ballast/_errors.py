"""Failures of Ballast as exceptions."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence

if TYPE_CHECKING:
    from ._plan import Plan


@dataclasses.dataclass(frozen=True)
class Advice:
    """A change that would help, and what it leads to.

    >>> ballast.plan("wan2.2-t2v-a14b", gpu="6GB", ram="8GB", target="rtx4090").advice[0].change
    '--frames 41'
    """

    change: str
    effect: str
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    _apply: Optional[Callable[[str], "Plan"]] = dataclasses.field(
        default=None, repr=False, compare=False
    )

    def apply(self) -> "Plan":
        """The plan with this change: plan.advice[0].apply()."""
        if self._apply is None:
            raise UsageError(f"this advice belongs to no plan, it cannot be applied: {self.change}")
        return self._apply(self.change)

    def __str__(self) -> str:
        return f"{self.change}: {self.effect}" if self.effect else self.change


class Error(Exception):
    """What every failure of Ballast is.

    code is the exit code of the program, trail what was being done, advice what would help.

    >>> try:
    ...     ballast.inspect("missing.safetensors")
    ... except ballast.Error as e:
    ...     print(e.code, e.message)
    """

    def __init__(
        self,
        message: str,
        code: int = 1,
        trail: Sequence[str] = (),
        advice: Sequence[Advice] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.trail = tuple(trail)
        self.advice = tuple(advice)

    def __str__(self) -> str:
        lines = [self.message]
        lines += [f"  while {doing}" for doing in self.trail]
        if self.advice:
            lines.append("what would help:")
            lines += [f"  {i}. {a}" for i, a in enumerate(self.advice, 1)]
        return "\n".join(lines)


class InternalError(Error):
    """A mistake in Ballast itself: please report it."""


class UsageError(Error):
    """Arguments that do not exist or do not go together."""


class Refused(Error):
    """The run does not fit into what it may use; plan says by how much, advice what would help."""

    def __init__(
        self,
        message: str,
        code: int = 3,
        trail: Sequence[str] = (),
        advice: Sequence[Advice] = (),
        plan: Optional["Plan"] = None,
    ) -> None:
        super().__init__(message, code, trail, advice)
        self.plan = plan


class InputError(Error):
    """A file or configuration is not what was expected."""


class DeviceError(Error):
    """The GPU or its libraries."""


class StorageError(Error):
    """A file could not be read or written."""


_BY_CODE = {
    1: InternalError,
    2: UsageError,
    3: Refused,
    4: InputError,
    5: DeviceError,
    6: StorageError,
}


def error_from(fields: Mapping[str, Any], code: int = 1, plan: Optional["Plan"] = None) -> Error:
    """The exception for {code, message, trail, advice} as the program and the library give it."""
    code = int(fields.get("code", code))
    message = str(fields.get("message", "")) or "no reason was given"
    trail = [str(t) for t in fields.get("trail", [])]
    advice = [Advice(str(a["change"]), str(a.get("effect", ""))) for a in fields.get("advice", [])]
    if code == 3:
        return Refused(message, code, trail, plan.advice if plan is not None else advice, plan)
    return _BY_CODE.get(code, Error)(message, code, trail, advice)


def fields_from_text(text: str) -> "dict[str, Any]":
    """What the program wrote to stderr before it ended, as error_from() takes it."""
    lines = [line for line in text.splitlines() if line.strip()]
    advice: "list[dict[str, str]]" = []
    if "what would help:" in lines:
        begin = len(lines) - 1 - lines[::-1].index("what would help:")
        for line in lines[begin + 1 :]:
            numbered = re.match(r"\s+\d+\. (.*)", line)
            if numbered:
                advice.append({"change": numbered[1]})
            elif advice and line.startswith("     "):
                advice[-1]["change"] += " " + line.strip()
        for a in advice:
            a["change"], _, a["effect"] = a["change"].partition(": ")
        lines = lines[:begin]
    starts = [i for i, line in enumerate(lines) if line.startswith("ballast: ")]
    if starts:
        lines = lines[starts[-1] :]
        lines[0] = lines[0][len("ballast: ") :]
    trail = [line[len("  while ") :] for line in lines if line.startswith("  while ")]
    message = "\n".join(line for line in lines if not line.startswith("  while "))
    prefix = "internal error (please report): "
    if message.startswith(prefix):
        message = message[len(prefix) :]
    return {"message": message, "trail": trail, "advice": advice}
