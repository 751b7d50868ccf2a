"""Ballast: trains and runs large video and text transformers inside the memory you have.

>>> import ballast
>>> ballast.plan("wan2.2-t2v-a14b", frames=81, gpu="24GB", ram="32GB", target="rtx4090")
>>> ballast.train("lora.toml", on_step=lambda s: print(s.step, s.loss))
"""

from . import _library
from ._codecs import TextEncoder, WanVAE
from ._errors import (
    Advice,
    DeviceError,
    Error,
    InputError,
    InternalError,
    Refused,
    StorageError,
    UsageError,
)
from ._info import Info, inspect
from ._model import Sample, StepResult, WanModel
from ._plan import Phase, Plan, Use, plan
from ._progress import Progress
from ._sampling import generate, sample
from ._training import Event, Step, Training, TrainResult, train

_library.load()

__all__ = [
    "Advice",
    "DeviceError",
    "Error",
    "Event",
    "Info",
    "InputError",
    "InternalError",
    "Phase",
    "Plan",
    "Progress",
    "Refused",
    "Sample",
    "Step",
    "StepResult",
    "StorageError",
    "TextEncoder",
    "TrainResult",
    "Training",
    "UsageError",
    "Use",
    "WanModel",
    "WanVAE",
    "generate",
    "inspect",
    "plan",
    "sample",
    "train",
]
