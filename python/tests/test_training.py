"""ballast.train and ballast.Training: a child of this process, and what becomes of it."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List

import pytest

import ballast

STEPS = 40


def run_of(config: Dict[str, Any]) -> pathlib.Path:
    """The only run of a configuration."""
    (folder,) = [p.parent for p in pathlib.Path(config["output_dir"]).glob("*/run_log.jsonl")]
    return folder


def log_of(config: Dict[str, Any]) -> List[Dict[str, Any]]:
    return [json.loads(x) for x in (run_of(config) / "run_log.jsonl").read_text().splitlines()]


def lora_of(config: Dict[str, Any]) -> bytes:
    return (run_of(config) / "epoch10" / "adapter_model.safetensors").read_bytes()


def assert_stopped_and_saved(config: Dict[str, Any]) -> None:
    """The run ended early, with a checkpoint of its last step."""
    log = log_of(config)
    assert log[-1]["event"] == "stopped"
    last = [x["step"] for x in log if x["kind"] == "step"][-1]
    assert last < STEPS
    assert [x["step"] for x in log if x.get("event") == "checkpoint"] == [last]


def assert_resumes_to_the_same_bytes(config: Dict[str, Any], tmp_path: pathlib.Path) -> None:
    result = ballast.train(config, resume=True, quiet=True)
    assert (result.steps, result.stopped) == (STEPS, False)
    whole = {**config, "output_dir": str(tmp_path / "whole")}
    ballast.train(whole, quiet=True)
    assert lora_of(config) == lora_of(whole)


def test_callbacks_see_plan_steps_and_events(config: Dict[str, Any]) -> None:
    plans: List[ballast.Plan] = []
    steps: List[ballast.Step] = []
    events: List[ballast.Event] = []
    result = ballast.train(
        config, on_plan=plans.append, on_step=steps.append, on_event=events.append, quiet=True
    )
    assert len(plans) == 1 and plans[0].fits
    assert [s.step for s in steps] == list(range(1, STEPS + 1))
    assert all(s.loss > 0 and s.seconds > 0 for s in steps)
    assert {"checkpoint", "save", "finish"} <= {e.kind for e in events}
    assert (result.steps, result.stopped) == (STEPS, False)
    assert result.last_loss == steps[-1].loss
    assert pathlib.Path(result.folder) == run_of(config)
    assert [s.record for s in steps] == [x for x in log_of(config) if x["kind"] == "step"]


def test_an_exception_in_on_step_comes_out_when_all_is_saved(
    config: Dict[str, Any], tmp_path: pathlib.Path
) -> None:
    def on_step(step: ballast.Step) -> None:
        if step.step == 3:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        ballast.train(config, on_step=on_step, quiet=True)
    assert_stopped_and_saved(config)
    assert_resumes_to_the_same_bytes(config, tmp_path)


def test_ctrl_c_comes_out_when_all_is_saved(config: Dict[str, Any], tmp_path: pathlib.Path) -> None:
    def interrupt() -> None:
        while not list(pathlib.Path(config["output_dir"]).glob("*/run_log.jsonl")):
            time.sleep(0.01)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        ballast.train(config, quiet=True)
    sender.join()
    assert_stopped_and_saved(config)
    assert_resumes_to_the_same_bytes(config, tmp_path)


def test_a_second_ctrl_c_ends_the_training_at_once(config: Dict[str, Any]) -> None:
    # A step that takes long enough for two signals.
    config["gradient_accumulation_steps"] = 64
    config["epochs"] = 1000
    with open(config["dataset"], "a") as dataset:
        dataset.write("num_repeats = 16\n")

    def interrupt() -> None:
        while not list(pathlib.Path(config["output_dir"]).glob("*/run_log.jsonl")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        ballast.train(config, quiet=True)
    sender.join()
    assert not [x for x in log_of(config) if x.get("event") in ("checkpoint", "stopped")]


PARENT = """
import json, sys, ballast
config = json.load(open(sys.argv[1]))
def on_step(step):
    if step.step == 3:
        print(step._training._child.pid, flush=True)
ballast.train(config, on_step=on_step, quiet=True)
"""


def test_the_training_saves_and_ends_when_its_parent_is_killed(
    config: Dict[str, Any], tmp_path: pathlib.Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "config.json")], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and alive(child):
        time.sleep(0.02)
    assert not alive(child)
    assert_stopped_and_saved(config)
    assert_resumes_to_the_same_bytes(config, tmp_path)


def alive(pid: int) -> bool:
    """Running: one that has ended and that nobody has asked about yet is not."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_iterator_gives_steps_and_stops(config: Dict[str, Any]) -> None:
    training = ballast.Training(config, quiet=True)
    for step in training:
        if step.step == 3:
            step.stop()
    assert training.plan is not None and training.plan.fits
    assert training.result is not None and training.result.stopped
    assert_stopped_and_saved(config)
    with pytest.raises(ballast.UsageError, match="has run"):
        iter(training)


def test_leaving_the_loop_saves(config: Dict[str, Any]) -> None:
    for step in ballast.Training(config, quiet=True):
        if step.step == 3:
            break
    assert_stopped_and_saved(config)


def test_a_refusal_is_raised_with_its_plan(config: Dict[str, Any]) -> None:
    with pytest.raises(ballast.Refused) as error:
        ballast.train(config, gpu="1MB", quiet=True)
    assert error.value.code == 3
    plan = error.value.plan
    assert plan is not None and not plan.fits
    assert error.value.advice == plan.advice
    assert [a.apply().fits for a in plan.advice if a.effect.startswith("fits")][:1] == [True]


def test_what_is_wrong_is_raised(config: Dict[str, Any]) -> None:
    with pytest.raises(ballast.StorageError, match="none.toml"):
        ballast.train("none.toml", quiet=True)
    with pytest.raises(ballast.UsageError, match="--max_step"):
        ballast.train(config, flags=["--max_step", "3"], quiet=True)
    with pytest.raises(ballast.UsageError, match="nothing to train"):
        ballast.train()
    config["optimizer"]["type"] = "adamv"
    with pytest.raises(ballast.InputError, match="adamv"):
        ballast.train(config, quiet=True)


def test_a_program_of_another_kind_is_named(
    tmp_path: pathlib.Path, config: Dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "ballast"
    other.write_text("#!/bin/sh\necho hello\n")
    other.chmod(0o755)
    monkeypatch.setenv("BALLAST_PROGRAM", str(other))
    with pytest.raises(ballast.Error, match="hello"):
        ballast.train(config)
