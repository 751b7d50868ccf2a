"""Clips from prompts and texts from prompts, by the program in a process of its own."""

from __future__ import annotations

import glob
import json
import os
import tempfile
from typing import Any, List, Optional, Sequence, Union, overload

import numpy as np
import numpy.typing as npt

from ._errors import UsageError
from ._options import PathOrName, flag_words
from ._png import read_png
from ._process import output_of
from ._progress import OnProgress


def _lines_of(prompts: Sequence[str]) -> str:
    for p in prompts:
        if "\n" in p or not p.strip():
            raise UsageError(f"a prompt of several must be one line and not empty, found {p!r}", 2)
    return "".join(p + "\n" for p in prompts)


def _frames_of(output: str) -> "npt.NDArray[np.uint8]":
    if os.path.exists(output):
        return read_png(output)[None]
    stem = glob.escape(output[: -len(".png")])
    return np.stack([read_png(p) for p in sorted(glob.glob(stem + "_*.png"))])


def sample(
    model: PathOrName,
    prompt: Union[str, Sequence[str]],
    *,
    flags: Sequence[str] = (),
    quiet: bool = False,
    on_progress: Optional[OnProgress] = None,
    **options: Any,
) -> "npt.NDArray[np.uint8]":
    """Clips from prompts, as `ballast sample` makes them: uint8 [frames, height, width, 3].

    Several prompts, or count=, put the number of the clip in front. Options are the flags of
    `ballast sample`: frames, width, height, steps, seed, gpu, ram, ...

    >>> clip = ballast.sample("Wan2.2-TI2V-5B", "a lighthouse in a storm", gpu="8GB", ram="24GB")
    >>> clip.shape
    (121, 704, 1280, 3)

    on_progress is called with how far each part is (ballast.Progress); an exception in it ends the
    run. To have mp4, GIF or WebP files use the program: ballast sample --output clip.mp4.
    """
    for given in ("output", "json", "plan", "prompt_file"):
        if given in options:
            raise TypeError(f"sample() has no argument {given}: it returns the frames as an array")
    with tempfile.TemporaryDirectory(prefix="ballast-") as folder:
        words = ["--model", os.fspath(model), *flag_words(options), *flags]
        if isinstance(prompt, str):
            words += ["--prompt", prompt]
        else:
            with open(os.path.join(folder, "prompts.txt"), "w", encoding="utf-8") as f:
                f.write(_lines_of(prompt))
            words += ["--prompt-file", f.name]
        target = os.path.join(folder, "clip.png")
        out = output_of(["sample", *words, "--output", target, "--json"], quiet=quiet,
                        on_progress=on_progress)[1]  # fmt: skip
        clips = [_frames_of(path) for path in json.loads(out)["outputs"]]
    one = isinstance(prompt, str) and len(clips) == 1
    return clips[0] if one else np.stack(clips)


@overload
def generate(
    model: PathOrName, prompt: str, *, flags: Sequence[str] = ..., quiet: bool = ...,
    on_progress: Optional[OnProgress] = ..., **options: Any
) -> str: ...  # fmt: skip
@overload
def generate(model: PathOrName, prompt: Sequence[
    str
], *, flags: Sequence[
    str
] = ..., quiet: bool = ..., on_progress: Optional[OnProgress] = ..., **options: Any,
) -> List[str]: ...  # fmt: skip


def generate(
    model: PathOrName,
    prompt: Union[str, Sequence[str]],
    *,
    flags: Sequence[str] = (),
    quiet: bool = False,
    on_progress: Optional[OnProgress] = None,
    **options: Any,
) -> Union[str, List[str]]:
    """Texts from prompts by a T5 model, as `ballast generate` writes them.

    >>> ballast.generate("google/flan-t5-xl", "translate to German: hello", ram="16GB")
    'Hallo'
    """
    for given in ("output", "json", "plan", "prompt_file"):
        if given in options:
            raise TypeError(f"generate() has no argument {given}: it returns the texts")
    words = ["--model", os.fspath(model), *flag_words(options), *flags]
    if isinstance(prompt, str):
        words += ["--prompt", prompt]
        text = None
    else:
        words += ["--prompt-file", "-"]
        text = _lines_of(prompt)
    out = output_of(["generate", *words, "--json"], quiet=quiet, text=text,
                    on_progress=on_progress)[1]  # fmt: skip
    texts = [str(t["text"]) for t in json.loads(out)["texts"]]
    return texts[0] if isinstance(prompt, str) else texts
