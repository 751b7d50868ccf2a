"""A Wan transformer in this process: planned, asked, trained."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import difflib
import json
import math
import os
from ctypes import byref, c_int
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _library
from ._arrays import Borrowed, borrow, result_array
from ._errors import Refused, UsageError
from ._info import Info
from ._library import SampleStruct
from ._options import PathOrName
from ._plan import Plan, plan

Size = Tuple[int, int, int]  # frames, height, width of a latent
Budget = Mapping[str, Union[str, int, None]]

# Sizes of the models that `ballast plan --model` knows by name.
PRESETS: "Dict[str, Dict[str, Union[str, int]]]" = {
    "wan2.2-ti2v-5b": {"model_type": "ti2v", "dim": 3072, "ffn_dim": 14336, "num_heads": 24,
                       "num_layers": 30, "in_dim": 48, "out_dim": 48},
    "wan2.2-t2v-a14b": {"model_type": "t2v", "dim": 5120, "ffn_dim": 13824, "num_heads": 40,
                        "num_layers": 40, "in_dim": 16, "out_dim": 16},
    "wan2.2-i2v-a14b": {"model_type": "i2v", "dim": 5120, "ffn_dim": 13824, "num_heads": 40,
                        "num_layers": 40, "in_dim": 36, "out_dim": 16},
    "wan2.1-t2v-14b": {
        "model_type": "t2v",
        "dim": 5120,
        "ffn_dim": 13824,
        "num_heads": 40,
        "num_layers": 40,
        "in_dim": 16,
        "out_dim": 16,
    },
    "wan2.1-t2v-1.3b": {"model_type": "t2v", "dim": 1536, "ffn_dim": 8960, "num_heads": 12,
                        "num_layers": 30, "in_dim": 16, "out_dim": 16},
}  # fmt: skip

_SETTINGS = ("checkpoint", "gradient_checkpointing", "offload_to_cpu", "budget", "training",
             "device", "threads", "deterministic")  # fmt: skip


@dataclasses.dataclass
class Sample:
    """One sample of a step: arrays of float32, float16 or bfloat16.

    latent is [channels, frames, height, width], normalised and clean; text [rows, width] are states
    of the text encoder; conditioning is what an image model takes beside the latent. t from 0 to 1
    is the share of noise; without it, it is drawn.

    >>> model.step([ballast.Sample(latent, text=states)]).loss
    """

    latent: Any
    text: Any = None
    conditioning: Any = None
    t: Optional[float] = None


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What one optimizer step gave; updated is False where loss or gradient were no numbers."""

    step: int
    loss: float
    grad_norm: float
    seconds: float
    updated: bool


def unknown_keywords(call: str, unknown: Mapping[str, object], known: Sequence[str]) -> None:
    for name in unknown:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]}?" if near else f": known are {', '.join(known)}"
        raise TypeError(f"{call} has no argument {name}{hint}")


def budget_settings(budget: Optional[Budget]) -> "Dict[str, Union[str, int, None]]":
    unknown_keywords(
        "budget",
        {k: v for k, v in (budget or {}).items() if k not in ("gpu", "ram", "disk")},
        ("gpu", "ram", "disk"),
    )
    return dict(budget or {})


class WanModel:
    """A Wan transformer inside a memory budget.

    >>> model = ballast.WanModel("wan2.2_ti2v_5B.safetensors", budget={"gpu": "8GB", "ram": "24GB"})
    >>> model.plan(frames=81, height=480, width=832).fits
    True
    >>> velocity = model(latent, t=500.0, text=states)

    checkpoint: a safetensors file, an index of shards, a folder, or a model id. Without one, sizes
    (model_type="t2v", num_layers=40) find a released model that plan() can plan.

    training: {"method": "lora", "rank": 16, "learning_rate": 1e-4, ...} as the C interface names
    them, or the name of a method: "lora", "full", "predict_only". Without it the model is planned
    for prediction alone; gradient checkpointing, or the first step(), makes that a LoRA of rank 16.

    Which way memory is saved changes no bit of a result. Switches, budget and sizes may change
    between steps; trained tensors and optimizer state stay as they are. One model is for one thread
    at a time.
    """

    def __init__(
        self,
        checkpoint: Optional[PathOrName] = None,
        *,
        gradient_checkpointing: Optional[bool] = None,
        offload_to_cpu: Optional[bool] = None,
        budget: Optional[Budget] = None,
        training: Union[str, Mapping[str, Any], None] = None,
        device: str = "auto",
        threads: int = 0,
        deterministic: bool = True,
        **sizes: Any,
    ) -> None:
        self._handle = ctypes.c_void_p()
        known = list(PRESETS["wan2.2-ti2v-5b"])
        unknown_keywords(
            "WanModel()", {k: v for k, v in sizes.items() if k not in known}, [*_SETTINGS, *known]
        )
        self._sizes = dict(sizes)
        self._checkpoint = None if checkpoint is None else os.fspath(checkpoint)
        self._checkpointing, self._offloading = gradient_checkpointing, offload_to_cpu
        self._training = {"method": training} if isinstance(training, str) else training
        self._machine: Dict[str, Any] = {
            "device": device,
            "threads": threads,
            "deterministic": deterministic,
            **budget_settings(budget),
        }
        self._computed: List[List[Size]] = []  # kinds of steps so far
        self._batches: List[List[Size]] = []  # that the library knows
        self._preset = ""
        if self._checkpoint is None:
            self._preset = self._find_preset()
        else:
            self._open()

    # -- opening --------------------------------------------------------------------------------

    def _find_preset(self) -> str:
        if not self._sizes:
            raise UsageError(
                "WanModel() needs checkpoint=, a file of weights, or the sizes of a released model, "
                'for example model_type="t2v", num_layers=40',
                2,
            )
        for name, sizes in PRESETS.items():
            if all(sizes[k] == v for k, v in self._sizes.items()):
                return name
        known = "; ".join(f"{n}: {v}" for n, v in PRESETS.items())
        raise UsageError(f"no released model has the sizes {self._sizes}; known are {known}", 2)

    def _open(self) -> None:
        assert self._checkpoint is not None
        self._handle = _library.open_handle("ballast_model_open", self._checkpoint.encode())
        self._info = Info(_library.call_json("ballast_model_info", self._handle))
        self._configure()

    def _configure(self) -> None:
        settings: Dict[str, Any] = {
            **self._machine,
            "gradient_checkpointing": self._checkpointing,
            "offloading": self._offloading,
            "training": self._method(),
        }
        self._set(**settings)

    def _method(self) -> "Dict[str, Any]":
        if self._training is not None:
            return {"method": "lora", **self._training}
        return {"method": "predict_only" if self._checkpointing is None else "lora"}

    def _set(self, **settings: Any) -> None:
        if self._handle:
            _library.call("ballast_model_settings", self._handle, json.dumps(settings).encode())

    def _need_file(self, what: str) -> None:
        if self._checkpoint is None:
            raise UsageError(
                f"{what} needs weights: make the model with checkpoint=, a file of {self._preset}; "
                "without one it can be planned",
                2,
            )
        if not self._handle:
            raise UsageError(f"{what}: the model was closed", 2)

    def close(self) -> None:
        """Gives its memory back; the object is of no use afterwards."""
        if self._handle:
            _library.close_handle("ballast_model_close", self._handle)

    def __enter__(self) -> "WanModel":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    @property
    def info(self) -> Info:
        """Name, sizes and number of parameters: model.info.latent_channels."""
        self._need_file("info")
        return self._info

    # -- how memory is saved --------------------------------------------------------------------

    def _switch(self, **switches: Optional[bool]) -> None:
        before = self._method()
        self._checkpointing = switches.get("gradient_checkpointing", self._checkpointing)
        self._offloading = switches.get("offloading", self._offloading)
        if not self._handle:
            return
        if self._method() != before:
            self._reopen()
        else:
            self._set(**switches)

    def enable_gradient_checkpointing(self) -> None:
        """Blocks keep little of their forward pass and compute the rest again."""
        self._switch(gradient_checkpointing=True)

    def disable_gradient_checkpointing(self) -> None:
        """Blocks keep all that their backward pass reads."""
        self._switch(gradient_checkpointing=False)

    def enable_offloading(self) -> None:
        """Weights and saved activations wait in RAM and pass through slots on the GPU."""
        self._switch(offloading=True)

    def disable_offloading(self) -> None:
        """Weights and saved activations stay in GPU memory."""
        self._switch(offloading=False)

    def leave_memory_to_the_planner(self) -> None:
        """The fastest plan that fits, as if nothing had been switched."""
        self._switch(gradient_checkpointing=None, offloading=None)

    def set_budget(self, **budget: Union[str, int, None]) -> None:
        """model.set_budget(gpu="8GB", ram="24GB"); None: what the machine has."""
        settings = budget_settings(budget)
        self._machine.update(settings)
        self._set(**settings)

    # -- planning -------------------------------------------------------------------------------

    def plan(
        self,
        frames: Optional[int] = None,
        height: Optional[int] = None,
        width: Optional[int] = None,
        batch: int = 1,
    ) -> Plan:
        """What a step (of prediction, or of training where that is set) will use.

        Frames and pixels of the clip; without them the sizes that were computed so far.

        >>> model.plan(frames=81, height=480, width=832).device.planned
        """
        if self._checkpoint is None:
            return self._plan_of_preset(frames, height, width, batch)
        self._need_file("plan()")
        batches = [list(b) for b in self._computed]
        if frames is not None or height is not None or width is not None:
            if frames is None or height is None or width is None:
                raise UsageError("plan() takes frames, height and width together", 2)
            batches.append([self._latent_size(frames, height, width)] * batch)
        if not batches:
            raise UsageError("plan() needs sizes: plan(frames=81, height=480, width=832)", 2)
        self._give_batches(batches)
        return self._plan_as_set()

    def _plan_as_set(self) -> Plan:
        found = _library.call_json("ballast_model_plan", self._handle)
        document = dict(found.get("plan") or {})
        document.setdefault("fits", found.get("fits", False))
        document.setdefault("advice", found.get("advice", []))
        document.setdefault("seconds_per_step", found.get("seconds_per_step", 0))
        document.setdefault("policy_text", found.get("policy", ""))
        for tier in ("device", "host", "disk"):
            document.setdefault(
                tier,
                {"peak_bytes": found["planned"][tier], "budget_bytes": found["allowed"].get(tier)},
            )
        return Plan(document, text=str(found.get("text", "")) or None)

    def _plan_of_preset(
        self, frames: Optional[int], height: Optional[int], width: Optional[int], batch: int
    ) -> Plan:
        if self._checkpointing is not None or self._offloading is not None:
            raise UsageError(
                "the switches of memory are planned with a file: give checkpoint=, or leave them out "
                "and the planner chooses",
                2,
            )
        method = {"predict_only": "infer"}.get(self._method()["method"], self._method()["method"])
        machine = {k: v for k, v in self._machine.items() if k != "deterministic"}
        machine["non_deterministic"] = not self._machine["deterministic"]
        return plan(
            self._preset,
            mode=method,
            frames=frames,
            height=height,
            width=width,
            batch=batch,
            **machine,
        )

    def _latent_size(self, frames: int, height: int, width: int) -> Size:
        cell = int(self._info["pixels_per_cell"])
        if frames % 4 != 1 or height % (2 * cell) or width % (2 * cell):
            raise UsageError(
                f"expected 4 n + 1 frames, height and width multiples of {2 * cell}, found {frames} "
                f"frames of {width} x {height}",
                2,
            )
        return (frames - 1) // 4 + 1, height // cell, width // cell

    def _give_batches(self, batches: "List[List[Size]]") -> None:
        if batches != self._batches:
            self._set(batches=batches)
            self._batches = [list(b) for b in batches]

    def _expect(self, batch: "List[Size]") -> None:
        if batch not in self._computed:
            self._computed.append(batch)
        self._give_batches(self._computed)

    # -- computing ------------------------------------------------------------------------------

    def start(self) -> None:
        """Reads the weights; otherwise the first call or step() does."""
        self._need_file("start()")
        with self._refusal_with_plan():
            _library.call("ballast_model_start", self._handle)

    @contextlib.contextmanager
    def _refusal_with_plan(self) -> Iterator[None]:
        try:
            yield
        except Refused as e:
            e.plan = self._plan_as_set()
            raise

    def __call__(
        self,
        latent: Any,
        t: float,
        text: Any = None,
        conditioning: Any = None,
        out: Any = None,
    ) -> Any:
        """The model's output, a velocity, for a latent as it is; with what was trained so far.

        latent: [channels, frames, height, width]; t: the model's time, 0 to 1000; text: [rows,
        width]. The result is a new numpy array of float32, or out, which is written in place.

        >>> velocity = model(latent, t=500.0, text=states)
        """
        self._need_file("calling the model")
        structure, held = self._structure(Sample(latent, text, conditioning))
        array, borrowed = result_array(out, held[0].shape)
        self._expect([self._size_of(held[0])])
        with self._refusal_with_plan():
            _library.call(
                "ballast_model_predict", self._handle, byref(structure), float(t), borrowed.pointer
            )
        return array

    def step(self, samples: Sequence[Sample]) -> StepResult:
        """One optimizer step on these samples: forward, backward, update.

        >>> model.step([ballast.Sample(latent, text=states)]).loss
        """
        self._need_file("step()")
        if self._training is None:
            predicted_only = self._method()["method"] == "predict_only"
            self._training = {"method": "lora"}
            if predicted_only:
                self._reopen()
        structures = (SampleStruct * len(samples))()
        kept: List[List[Borrowed]] = []
        for i, sample in enumerate(samples):
            structures[i], held = self._structure(sample)
            kept.append(held)
        self._expect([self._size_of(held[0]) for held in kept])
        with self._refusal_with_plan():
            found = _library.call_json("ballast_model_step", self._handle, structures, len(samples))
        return StepResult(
            int(found["step"]),
            _float(found["loss"]),
            _float(found["grad_norm"]),
            _float(found["seconds"]),
            bool(found["updated"]),
        )

    def _reopen(self) -> None:
        self.close()
        self._batches = []
        self._open()

    @staticmethod
    def _size_of(latent: Borrowed) -> Size:
        return latent.shape[1], latent.shape[2], latent.shape[3]

    @staticmethod
    def _structure(sample: Sample) -> "Tuple[SampleStruct, List[Borrowed]]":
        structure = SampleStruct()
        structure.struct_size = ctypes.sizeof(SampleStruct)
        structure.t = math.nan if sample.t is None else sample.t
        held = []
        for name, array, ndim in (
            ("latent", sample.latent, 4),
            ("text", sample.text, 2),
            ("conditioning", sample.conditioning, 4),
        ):
            if array is None and name != "latent":
                continue
            borrowed = borrow(array, name, ndim)
            held.append(borrowed)
            setattr(structure, name, borrowed.pointer)
        return structure, held

    def set_learning_rate(self, rate: float) -> None:
        """From the next step on."""
        self._need_file("set_learning_rate()")
        self._set(learning_rate=rate)

    # -- files ----------------------------------------------------------------------------------

    def _save(self, **what: Any) -> None:
        self._need_file("saving")
        _library.call("ballast_model_save", self._handle, json.dumps(what).encode())

    def save_lora(self, path: PathOrName, format: str = "comfy", dtype: str = "bf16") -> None:
        """Writes the factors; format is comfy, kohya or peft, dtype f32, bf16 or f16."""
        self._save(what="lora", path=os.fspath(path), format=format, dtype=dtype)

    def save_model(self, path: PathOrName, dtype: str = "bf16") -> None:
        """Writes all weights, of a model that was trained with method "full"."""
        self._save(what="model", path=os.fspath(path), dtype=dtype)

    def save_checkpoint(self, folder: PathOrName, keep: int = 3) -> None:
        """Trained weights, optimizer state and step count, below folder; the newest `keep` stay."""
        self._save(what="checkpoint", path=os.fspath(folder), keep=keep)

    def load_checkpoint(self, folder: PathOrName) -> bool:
        """Continues with the newest checkpoint of a model with the same training; False: there is
        none. From there on every bit is as if nothing had stopped."""
        self._need_file("load_checkpoint()")
        if not self._batches:
            raise UsageError(
                "load_checkpoint() plans the steps to come: call plan(frames=, height=, width=) first",
                2,
            )
        found = c_int()
        _library.call(
            "ballast_model_load_checkpoint", self._handle, os.fspath(folder).encode(), byref(found)
        )
        return bool(found.value)

    @property
    def measured(self) -> "Dict[str, int]":
        """Most of each memory that was used so far: device, host, disk, and ram of the process."""
        self._need_file("measured")
        return {
            k: int(v) for k, v in _library.call_json("ballast_model_measured", self._handle).items()
        }


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)
