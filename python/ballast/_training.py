"""Training as `ballast train` does it, in a process of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import weakref
from types import TracebackType
from typing import (
    Any,
    Callable,
    Dict,
    Generator,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Type,
    Union,
)

from ._errors import Error, Refused, UsageError
from ._options import Config, config_file, flag_words
from ._plan import Plan, plan_of_run
from ._process import Child, failure


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a training, as it stands in the run log.

    >>> for step in ballast.Training("lora.toml"):
    ...     print(step.step, step.loss)
    """

    step: int
    epoch: int
    loss: float
    lr: float
    grad_norm: float
    seconds: float
    record: Mapping[str, Any] = dataclasses.field(repr=False)
    _training: "Training" = dataclasses.field(repr=False, compare=False)

    def stop(self) -> None:
        """The training saves a checkpoint and ends; steps that it does until then still come."""
        self._training.stop()


@dataclasses.dataclass(frozen=True)
class Event:
    """What happened beside steps: a save, a checkpoint, an evaluation. record is the log's line.

    >>> ballast.train("lora.toml", on_event=lambda e: print(e.kind, e.record))
    """

    kind: str
    step: int
    record: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What came of a training.

    >>> ballast.train("lora.toml").folder
    'runs/lora/20260301_12-00-00'
    """

    folder: str
    steps: int
    last_loss: float
    stopped: bool
    record: Mapping[str, Any] = dataclasses.field(repr=False)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


class Training:
    """A training as an iterator over its steps; it starts with the first of them.

    >>> for step in ballast.Training("lora.toml"):
    ...     if step.loss > 5:
    ...         step.stop()

    Leaving the loop early (break, an exception, Ctrl-C) lets the training finish its step and save
    a checkpoint before the program goes on; resume=True continues there. Afterwards plan and
    result are known. A training whose steps nobody takes waits for its reader.
    """

    def __init__(
        self,
        config: Optional[Config] = None,
        *,
        flags: Sequence[str] = (),
        resume: Union[bool, str, "os.PathLike[str]"] = False,
        on_plan: Optional[Callable[[Plan], object]] = None,
        on_event: Optional[Callable[[Event], object]] = None,
        quiet: bool = False,
        **options: Any,
    ) -> None:
        if config is None and not flags and not options:
            raise UsageError("there is nothing to train: expected a configuration or flags", 2)
        self.plan: Optional[Plan] = None
        self.result: Optional[TrainResult] = None
        self._config = config
        self._words = [*flag_words(options), *flags]
        self._resume: List[str] = []
        if resume is True:
            self._resume = ["--resume"]
        elif resume is not False:
            self._resume = ["--resume", os.fspath(resume)]
        self._on_plan = on_plan
        self._on_event = on_event
        self._quiet = quiet
        self._child: Optional[Child] = None
        self._error: Optional[Mapping[str, Any]] = None
        self._stopping = False
        # Weak: who leaves the loop drops the generator, and it ends then.
        self._steps: "Optional[weakref.ref[Generator[Step, None, None]]]" = None

    # -- from outside ---------------------------------------------------------------------------

    def stop(self) -> None:
        """The training finishes its step, saves a checkpoint and ends. Any thread may call it."""
        if not self._stopping:
            self._stopping = True
            if self._child is not None:
                self._child.stop()

    def close(self) -> None:
        """stop(), and waits until everything is saved."""
        steps = None if self._steps is None else self._steps()
        if steps is not None:
            steps.close()

    def __iter__(self) -> Iterator[Step]:
        if self._steps is not None:
            raise UsageError("this training has run: make another one, resume=True continues", 2)
        steps = self._run()
        self._steps = weakref.ref(steps)
        return steps

    def __enter__(self) -> "Training":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    # -- the child ------------------------------------------------------------------------------

    def _run(self) -> Generator[Step, None, None]:
        with contextlib.ExitStack() as files:
            words = list(self._words)
            if self._config is not None:
                words.insert(0, files.enter_context(config_file(self._config)))
            self._child = Child(["train", *words, *self._resume, "--json=steps"], self._quiet)
            try:
                if self._stopping:
                    self._child.stop()
                for line in self._child.lines():
                    step = self._take(line)
                    if step is not None:
                        yield step
            except BaseException:
                self._finish_and_save()
                raise
            code = self._child.wait()
            if code == 130:  # by a second signal, that somebody else sent
                raise KeyboardInterrupt
            if code != 0 and not (self._stopping and code < 0):
                error = failure(code, self._child.said, self._error)
                if isinstance(error, Refused) and self.plan is not None:
                    error.plan = self.plan
                    error.advice = self.plan.advice or error.advice
                raise error

    def _finish_and_save(self) -> None:
        """Lets the child finish its step and save, and waits; Ctrl-C meanwhile ends it at once."""
        assert self._child is not None
        child = self._child
        self.stop()
        while True:
            try:
                for line in child.lines():
                    self._take(line, tell=False)
                child.wait()
                return
            except KeyboardInterrupt:
                child.stop()  # its second one: it ends without saving
            except Exception:
                child.kill()
                raise

    def _take(self, line: bytes, tell: bool = True) -> Optional[Step]:
        """Takes one line of the child; a step is returned."""
        try:
            record: Dict[str, Any] = json.loads(line)
            kind = record["kind"]
        except (ValueError, TypeError, KeyError):
            raise Error(
                f"expected a line of JSON from the program, found {line[:80]!r}: the program and this "
                "package are of different versions"
            ) from None
        if kind == "step":
            return Step(
                record["step"],
                record.get("epoch", 0),
                _number(record.get("loss")),
                _number(record.get("lr")),
                _number(record.get("grad_norm")),
                _number(record.get("seconds")),
                record,
                self,
            )
        if kind == "plan":
            self.plan = plan_of_run(record, self._config, self._words)
            if tell and self._on_plan is not None and self.plan.fits:
                self._on_plan(self.plan)
        elif kind == "end":
            self.result = TrainResult(
                record.get("folder", ""),
                record.get("steps", 0),
                _number(record.get("last_loss")),
                bool(record.get("stopped")),
                record,
            )
        elif kind == "error":
            self._error = record
        elif tell and self._on_event is not None:
            self._on_event(Event(record.get("event", kind), record.get("step", 0), record))
        return None


def train(
    config: Optional[Config] = None,
    *,
    on_step: Optional[Callable[[Step], object]] = None,
    on_plan: Optional[Callable[[Plan], object]] = None,
    on_event: Optional[Callable[[Event], object]] = None,
    resume: Union[bool, str, "os.PathLike[str]"] = False,
    flags: Sequence[str] = (),
    quiet: bool = False,
    **options: Any,
) -> TrainResult:
    """Trains as `ballast train` does, in a process of its own.

    config: the path of a configuration, or a dict of the same tables. Options are flags
    (output_dir="runs", gpu="24GB"); flags are words of the command line. resume=True continues the
    newest run.

    >>> result = ballast.train("lora.toml", on_step=lambda s: print(s.step, s.loss))
    >>> result.folder, result.steps

    An exception in a callback, or Ctrl-C, lets the training finish its step and save a checkpoint;
    then the exception (KeyboardInterrupt) is raised. A second Ctrl-C ends the training at once.
    Raises Refused, with the plan, where the run does not fit.
    """
    training = Training(
        config,
        flags=flags,
        resume=resume,
        on_plan=on_plan,
        on_event=on_event,
        quiet=quiet,
        **options,
    )
    with training:
        for step in training:
            if on_step is not None:
                on_step(step)
    if training.result is None:  # it prepared, and there was nothing to train
        return TrainResult("", 0, math.nan, training._stopping, {})
    return training.result
