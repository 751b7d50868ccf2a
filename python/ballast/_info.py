"""What a file or folder holds: `ballast inspect` as an object."""

from __future__ import annotations

import html
import json
import os
from typing import Any, Dict, Iterator, Mapping, Union

from . import _find, _library
from ._process import output_of


class Info(Mapping[str, Any]):
    """What `ballast inspect --json` says; keys are attributes too, with _ for spaces.

    >>> info = ballast.inspect("model/transformer")
    >>> info.kind, info.content.blocks, info["content"]["feed-forward width"]
    ('Wan diffusion transformer', 4, 384)
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = dict(document)

    def __getitem__(self, key: str) -> Any:
        return self._document[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._document)

    def __len__(self) -> int:
        return len(self._document)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        for key, value in self._document.items():
            if key.replace(" ", "_").replace("-", "_") == name:
                return Info(value) if isinstance(value, dict) else value
        raise AttributeError(f"{name}: there are {', '.join(self._document) or 'none'}")

    def __dir__(self) -> "list[str]":
        names = [k.replace(" ", "_").replace("-", "_") for k in self._document]
        return sorted([*super().__dir__(), *names])

    def to_dict(self) -> Dict[str, Any]:
        copy: Dict[str, Any] = json.loads(json.dumps(self._document))
        return copy

    def __repr__(self) -> str:
        return f"Info({json.dumps(self._document, indent=2, ensure_ascii=False)})"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(k)}</td><td>{html.escape(_shown(v))}</td></tr>"
            for k, v in self._document.items()
        )
        return f"<table>{rows}</table>"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}: {_shown(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_shown(v) for v in value)
    return str(value)


def inspect(path: Union[str, "os.PathLike[str]"]) -> Info:
    """What a model, LoRA, image or video file is, or a folder with one.

    >>> ballast.inspect("adapter_model.safetensors").kind
    'LoRA'
    """
    arguments = ["inspect", "--json", os.fspath(path)]
    if _find.has_program():
        out = output_of(arguments)[1]
    else:
        out = _library.command(arguments)[1]
    return Info(json.loads(out))
