"""What a run will use: `ballast plan` as objects."""

from __future__ import annotations

import dataclasses
import html
import json
import os
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

from . import _find, _library
from ._errors import Advice, Refused, UsageError
from ._options import Config, config_file, flag_words, replaced
from ._process import output_of, without_progress


@dataclasses.dataclass(frozen=True)
class Use:
    """Bytes of one kind of memory: planned, allowed, and by role where that is known.

    >>> plan.device.planned <= plan.device.budget
    True
    """

    planned: int
    budget: Optional[int]
    roles: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of a run: load, step, update. plan.phases["step"].device.roles"""

    name: str
    seconds: float
    device: Use
    host: Use
    disk: Use


def shown_bytes(count: float) -> str:
    """3 digits and a unit, as the program writes sizes."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    if unit == "B":
        return f"{int(count)} B"
    return f"{count:.{2 if count < 9.995 else 1 if count < 99.95 else 0}f} {unit}"


class Plan:
    """What a run will use, and how long a step takes; made by ballast.plan().

    >>> plan = ballast.plan("wan2.2-t2v-a14b", frames=81, gpu="24GB", ram="32GB", target="rtx4090")
    >>> plan.fits, plan.device.planned
    (True, 23735052166)

    device is GPU memory (on the CPU the compute share of RAM), host RAM, disk the space for
    optimizer state. A plan that does not fit is an answer too: fits is False, and advice says what
    would help.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        config: Optional[Config] = None,
        words: Sequence[str] = (),
        text: Optional[str] = None,
    ) -> None:
        self._document = dict(document)
        self._config = config
        self._words = list(words)
        self._text = text
        self._applicable = config is not None or bool(words)

    # -- numbers --------------------------------------------------------------------------------

    @property
    def fits(self) -> bool:
        return bool(self._document["fits"])

    @property
    def seconds_per_step(self) -> float:
        return float(self._document["seconds_per_step"])

    @property
    def policy(self) -> str:
        """How weights and activations are kept, in words."""
        return str(self._document.get("policy_text") or self._document.get("policy", ""))

    @property
    def device(self) -> Use:
        """GPU memory; on the CPU the share of RAM that is computed in."""
        return self._total("device")

    @property
    def host(self) -> Use:
        """RAM; on the CPU the rest of it."""
        return self._total("host")

    @property
    def disk(self) -> Use:
        return self._total("disk")

    @property
    def phases(self) -> Dict[str, Phase]:
        """By name, in order; empty for a plan that does not fit."""
        return {
            p["name"]: Phase(
                p["name"],
                float(p.get("seconds", 0)),
                *(self._use(p.get(t, {}), t) for t in ("device", "host", "disk")),
            )
            for p in self._document.get("phases", [])
            if isinstance(p, Mapping)
        }

    @property
    def advice(self) -> Tuple[Advice, ...]:
        """What would make it fit, each change planned anew; empty where it fits."""
        apply = self.changed if self._applicable else None
        return tuple(
            Advice(a["change"], a.get("effect", ""), a, apply)
            for a in self._document.get("advice", [])
        )

    def _total(self, tier: str) -> Use:
        return self._use(self._document.get(tier, {}), tier)

    def _use(self, found: Mapping[str, Any], tier: str) -> Use:
        roles = found.get("roles")
        if roles is None:
            roles = next(
                (
                    s.get("roles", {})
                    for s in self._document.get("shortages", [])
                    if s["tier"] == tier
                ),
                {},
            )
        budget = found.get("budget_bytes", self._document.get(tier, {}).get("budget_bytes"))
        return Use(
            int(found.get("peak_bytes", 0)), None if budget is None else int(budget), dict(roles)
        )

    def to_dict(self) -> Dict[str, Any]:
        """What `ballast plan --json` prints."""
        copy: Dict[str, Any] = json.loads(json.dumps(self._document))
        return copy

    # -- other plans ----------------------------------------------------------------------------

    def changed(self, change: str) -> "Plan":
        """The same run with other flags: plan.changed("--gpu 12GB")."""
        if not self._applicable:
            raise UsageError(
                "only a plan of ballast.plan() or ballast.train() can be planned again"
            )
        if not change.startswith("--"):
            raise UsageError(
                f"this is no flag of the command line, it cannot be applied: {change}", 2
            )
        return _planned(self._config, replaced(self._words, change))

    # -- for people -----------------------------------------------------------------------------

    def __str__(self) -> str:
        """The table of `ballast plan`."""
        if self._text is None:
            self._text = self._table()
        return self._text

    def _table(self) -> str:
        if not self._applicable or not _find.has_program():
            return self._summary()
        with _words_of(self._config, self._words) as words:
            code, out, said = output_of(["plan", *words], allowed=(0, 3))
        text = out if code == 0 else without_progress(said)
        return text.rstrip("\n")

    def _summary(self) -> str:
        lines = [
            f"{'fits' if self.fits else 'does not fit'}: {self._document.get('model', '')} "
            f"{self._document.get('mode', '')}, {self._document.get('shape', '')}"
        ]
        for name, use in self._rows():
            allowed = "" if use.budget is None else f" of {shown_bytes(use.budget)}"
            lines.append(f"{name:<12} {shown_bytes(use.planned)}{allowed}")
        lines.append(f"{'policy':<12} {self.policy}")
        lines.append(f"{'step':<12} {self.seconds_per_step:.4g} s")
        lines += [f"  {i}. {a}" for i, a in enumerate(self.advice, 1)]
        return "\n".join(lines)

    def _rows(self) -> "list[tuple[str, Use]]":
        names = {"device": "GPU memory", "host": "RAM", "disk": "disk"}
        if "ram" in self._document or self._document.get("ram_of_this_machine"):
            names["device"] = "RAM (compute share)"
        rows = [(names[t], self._total(t)) for t in names]
        return [(n, u) for n, u in rows if n != "disk" or u.planned > 0]

    def __repr__(self) -> str:
        return str(self)

    def save_html(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the page of `ballast plan --html`: every buffer over time, and what advice leads to."""
        if not self._applicable:
            raise UsageError("only a plan of ballast.plan() or ballast.train() has a page")
        with _words_of(self._config, self._words) as words:
            output_of(["plan", *words, "--html", os.fspath(path)], allowed=(0, 3))

    def _repr_html_(self) -> str:
        """For notebooks: a picture and a table, without scripts."""
        step = self.phases.get("step")
        bars = []
        for tier, (name, use) in zip(("device", "host", "disk"), self._rows()):
            roles = use.roles or (getattr(step, tier).roles if step else {})
            bars.append(_bar(name, use, roles))
        rows = "".join(
            f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in self._facts()
        )
        verdict = "fits" if self.fits else "does not fit"
        return f"<div><b>{verdict}</b>{''.join(bars)}<table>{rows}</table></div>"

    def _facts(self) -> "list[tuple[str, str]]":
        d = self._document
        facts = [("run", f"{d.get('model', '')} {d.get('mode', '')}: {d.get('shape', '')}")]
        facts += [
            (
                n,
                shown_bytes(u.planned)
                + ("" if u.budget is None else f" of {shown_bytes(u.budget)}"),
            )
            for n, u in self._rows()
        ]
        facts += [("policy", self.policy), ("step", f"{self.seconds_per_step:.4g} s")]
        return facts + [(f"advice {i}", str(a)) for i, a in enumerate(self.advice, 1)]


_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb", "#997700")


def _bar(name: str, use: Use, roles: Mapping[str, int]) -> str:
    """One kind of memory against its budget, by role; an SVG of at most 20 shapes."""
    width, height = 640, 22
    whole = max(use.planned, use.budget or 0, 1)
    ordered = sorted(roles.items(), key=lambda r: -r[1])
    shapes, at = [], 0.0
    for i, (role, count) in enumerate(
        [*ordered[:7], ("other", use.planned - sum(c for _, c in ordered[:7]))]
    ):
        wide = max(count, 0) / whole * width
        if wide <= 0:
            continue
        label = html.escape(f"{role.replace('_', ' ')}: {shown_bytes(count)}")
        shapes.append(
            f'<rect x="{at:.1f}" y="0" width="{wide:.1f}" height="{height}" '
            f'fill="{_COLOURS[i]}"><title>{label}</title></rect>'
        )
        at += wide
    if use.budget:
        x = use.budget / whole * width
        shapes.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke="#cc0000" stroke-width="2"/>'
        )
    allowed = "" if use.budget is None else f" of {shown_bytes(use.budget)}"
    title = html.escape(f"{name}: {shown_bytes(use.planned)}{allowed}")
    return (
        f'<div>{title}</div><svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" xmlns="http://www.w3.org/2000/svg"><rect width="{width}" height="{height}" '
        f'fill="#eeeeee"/>{"".join(shapes)}</svg>'
    )


class _words_of:
    """The words of a command line behind "plan"; a configuration that is a dict is a file meanwhile."""

    def __init__(self, config: Optional[Config], words: Sequence[str]) -> None:
        self._file = None if config is None else config_file(config)
        self._words = words

    def __enter__(self) -> "list[str]":
        return [*([self._file.__enter__()] if self._file else []), *self._words]

    def __exit__(self, *exception: Any) -> None:
        if self._file:
            self._file.__exit__(*exception)


def _planned(config: Optional[Config], words: Sequence[str]) -> Plan:
    with _words_of(config, words) as given:
        arguments = ["plan", *given, "--json"]
        if _find.has_program():
            code, out, said = output_of(arguments, allowed=(0, 3))
        else:
            code, out, said = _library.command(arguments)
    if not out.strip():  # refused before anything was planned
        from ._process import failure

        raise failure(code, said)
    return Plan(json.loads(out), config, words)


def plan_of_run(
    document: Mapping[str, Any], config: Optional[Config], words: Sequence[str]
) -> Plan:
    return Plan({k: v for k, v in document.items() if k != "kind"}, config, words)


def plan(
    model: Optional[Config] = None,
    *,
    config: Optional[Config] = None,
    mode: Optional[str] = None,
    frames: Optional[int] = None,
    height: Optional[int] = None,
    width: Optional[int] = None,
    batch: Optional[int] = None,
    rank: Optional[int] = None,
    gpu: Union[str, int, None] = None,
    ram: Union[str, int, None] = None,
    disk: Union[str, int, None] = None,
    device: Optional[str] = None,
    threads: Optional[int] = None,
    policy: Optional[str] = None,
    weights: Optional[str] = None,
    target: Optional[str] = None,
    flags: Sequence[str] = (),
    **options: Any,
) -> Plan:
    """What a run will use, as `ballast plan` says it. Needs no weights and no GPU.

    model: a preset, a file, a folder or a model id; or the configuration of a training, which is a
    path that ends in .toml or a dict of the same tables. Options are the flags of `ballast plan`;
    flags are words of its command line.

    >>> ballast.plan("wan2.2-t2v-a14b", mode="lora", frames=81, height=480, width=832,
    ...              gpu="24GB", ram="32GB", target="rtx4090").fits
    True
    """
    if config is None and (
        isinstance(model, Mapping) or (model is not None and os.fspath(model).endswith(".toml"))
    ):
        model, config = None, model
    named: Dict[str, Any] = {
        "model": model, "mode": mode, "frames": frames, "height": height, "width": width,
        "batch": batch, "rank": rank, "gpu": gpu, "ram": ram, "disk": disk, "device": device,
        "threads": threads, "policy": policy, "weights": weights, "target": target, **options,
    }  # fmt: skip
    return _planned(config, [*flag_words(named), *flags])


__all__ = ["Phase", "Plan", "Refused", "Use", "plan"]
