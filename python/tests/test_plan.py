"""ballast.plan and ballast.inspect."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
from typing import Any, Dict
from xml.etree import ElementTree

import pytest

import ballast
from ballast import _find, _model, _options

from conftest import MODEL

CARD: Dict[str, Any] = {"frames": 25, "height": 512, "width": 512, "target": "rtx4090"}


def test_a_plan_has_the_programs_numbers() -> None:
    plan = ballast.plan("wan2.2-t2v-a14b", mode="lora", gpu="24GB", ram=32_000_000_000, **CARD)
    words = (
        "plan --model wan2.2-t2v-a14b --mode lora --gpu 24GB --ram 32GB --frames 25 --height 512"
    )
    words += " --width 512 --target rtx4090"
    run = [_find.program(), *words.split()]
    printed = json.loads(subprocess.run([*run, "--json"], capture_output=True, check=True).stdout)
    assert plan.to_dict() == printed
    assert plan.fits
    assert plan.device.planned == printed["device"]["peak_bytes"] <= 24_000_000_000
    assert plan.device.budget == 24_000_000_000
    assert plan.host.budget == 32_000_000_000
    assert plan.seconds_per_step == printed["seconds_per_step"]
    assert plan.policy == printed["policy_text"]
    assert plan.phases["step"].device.roles["weight_slots"] > 0
    assert plan.advice == ()
    table = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert str(plan) == table.rstrip("\n")


def test_a_refusal_is_a_value_and_its_advice_can_be_applied() -> None:
    plan = ballast.plan("wan2.2-t2v-a14b", gpu="1GB", ram="16GB", **CARD)
    assert not plan.fits
    assert plan.device.planned > plan.device.budget == 1_000_000_000  # type: ignore[operator]
    fitting = [a for a in plan.advice if a.effect.startswith("fits")]
    assert fitting, str(plan)
    better = fitting[0].apply()
    assert better.fits
    assert "what would help" in str(plan)


def test_advice_replaces_flags_and_their_values() -> None:
    words = ["--model", "a", "--frames", "81", "--gpu=3GB", "--fp8-matmul", "--versus", "x"]
    assert _options.replaced(words, "--frames 41 --gpu 4GB") == [
        "--model", "a", "--fp8-matmul", "--versus", "x", "--frames", "41", "--gpu", "4GB",
    ]  # fmt: skip


def test_a_configuration_may_be_a_dict(config: Dict[str, Any]) -> None:
    plan = ballast.plan(config, gpu="60MB")
    assert plan.fits
    refused = ballast.plan(config=config, gpu="1MB")
    assert not refused.fits
    assert refused.device.budget == 1_000_000
    assert not pathlib.Path(config["output_dir"]).exists()


def test_tables_are_written_as_toml() -> None:
    text = _options.toml_text({"a": {"b": [1, 2.5, True, "c\n"], "d": None}, "e": "f"})
    assert text == '"e" = "f"\n["a"]\n"b" = [1, 2.5, true, "c\\n"]\n'
    with pytest.raises(TypeError, match="not object"):
        _options.toml_text({"a": object()})


def test_a_wrong_flag_is_a_usage_error_with_the_nearest_one() -> None:
    with pytest.raises(ballast.UsageError, match="--frame.*--frames") as error:
        ballast.plan("wan2.1-t2v-1.3b", frame=5)
    assert error.value.code == 2
    with pytest.raises(ballast.UsageError, match="6 means 6 bytes"):
        ballast.plan("wan2.1-t2v-1.3b", gpu="6")


def test_a_page_and_a_picture_come_of_a_plan(tmp_path: pathlib.Path) -> None:
    for gpu in ("24GB", "1GB"):
        plan = ballast.plan("wan2.2-t2v-a14b", gpu=gpu, ram="16GB", **CARD)
        plan.save_html(tmp_path / "plan.html")
        assert "<html" in (tmp_path / "plan.html").read_text()
        picture = plan._repr_html_()
        ElementTree.fromstring(picture)  # it is well-formed
        assert "<script" not in picture and "<svg" in picture
        assert picture.count("<rect") < 2000


def test_the_names_of_released_models_are_the_programs() -> None:
    with pytest.raises(ballast.UsageError) as error:
        ballast.plan("wan0")
    listed = re.findall(r"wan2[a-z0-9.-]+", error.value.message)
    assert sorted(listed) == sorted(_model.PRESETS)


def test_inspect_has_attributes() -> None:
    info = ballast.inspect(MODEL / "transformer")
    assert info.kind == "Wan diffusion transformer"
    assert info.content.feed_forward_width == info["content"]["feed-forward width"] == 384
    assert "<table>" in info._repr_html_()
    with pytest.raises(AttributeError, match="there are path"):
        info.nothing
    with pytest.raises(ballast.StorageError, match="none.safetensors"):
        ballast.inspect("none.safetensors")
