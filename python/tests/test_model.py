"""WanModel, WanVAE and TextEncoder: arrays of others in, the same bits out."""

from __future__ import annotations

import gc
import os
import pathlib
import sys
import threading
from typing import Any, Dict, Iterator, List, Optional, Tuple

import ml_dtypes
import numpy as np
import pytest

import ballast

from conftest import MODEL

pytestmark = pytest.mark.usefixtures("library")

SIZE = (2, 4, 4)  # of a latent: frames, height, width
random = np.random.default_rng(5)
LATENT = random.standard_normal((16, *SIZE), np.float32)


@pytest.fixture(scope="module")
def encoder() -> ballast.TextEncoder:
    return ballast.TextEncoder(MODEL, device="cpu", threads=2)


@pytest.fixture(scope="module")
def states(encoder: ballast.TextEncoder) -> "np.ndarray[Any, Any]":
    return encoder("a red circle falls")


@pytest.fixture
def model() -> Iterator[ballast.WanModel]:
    with ballast.WanModel(MODEL / "transformer", device="cpu", threads=2) as m:
        yield m


class OnlyDLPack:
    """An array that knows nothing but DLPack; by default as numpy gives it."""

    def __init__(self, array: "np.ndarray[Any, Any]", versions: bool = True) -> None:
        self.array = array
        self.versions = versions

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, *, max_version: Optional[Tuple[int, int]] = None) -> Any:
        if max_version is None:
            return self.array.__dlpack__()
        if not self.versions:
            raise TypeError("unexpected keyword argument max_version")
        return self.array.__dlpack__(max_version=max_version)


class Elsewhere(OnlyDLPack):
    def __dlpack_device__(self) -> Tuple[int, int]:
        return (2, 0)


def test_every_kind_of_array_gives_the_same_bits(
    model: ballast.WanModel, states: "np.ndarray[Any, Any]"
) -> None:
    expected = model(LATENT, t=500.0, text=states)
    assert expected.shape == LATENT.shape and expected.dtype == np.float32
    assert np.isfinite(expected).all() and expected.std() > 0
    for versions in (True, False):
        given = model(OnlyDLPack(LATENT, versions), t=500.0, text=OnlyDLPack(states, versions))
        assert given.tobytes() == expected.tobytes()
    with_another_time = model(LATENT, t=100.0, text=states)
    assert with_another_time.tobytes() != expected.tobytes()


def test_narrower_types_are_read_as_they_are(
    model: ballast.WanModel, states: "np.ndarray[Any, Any]"
) -> None:
    for kind in (np.float16, ml_dtypes.bfloat16):
        narrow = LATENT.astype(kind)
        expected = model(narrow.astype(np.float32), t=500.0, text=states)
        assert model(narrow, t=500.0, text=states).tobytes() == expected.tobytes()


def test_out_is_the_callers_memory(model: ballast.WanModel, states: "np.ndarray[Any, Any]") -> None:
    expected = model(LATENT, t=500.0, text=states)
    out = np.full(LATENT.shape, 7, np.float32)
    address = out.ctypes.data
    assert model(LATENT, t=500.0, text=states, out=out) is out
    assert out.ctypes.data == address and out.tobytes() == expected.tobytes()
    out[:] = 7
    model(LATENT, t=500.0, text=states, out=OnlyDLPack(out))
    assert out.tobytes() == expected.tobytes()
    half = np.empty(LATENT.shape, np.float16)
    model(LATENT, t=500.0, text=states, out=half)
    assert np.abs(half - expected).max() < 0.01 * np.abs(expected).max()


def test_what_would_need_a_copy_is_refused(
    model: ballast.WanModel, states: "np.ndarray[Any, Any]"
) -> None:
    def refused(match: str, latent: Any = LATENT, **more: Any) -> None:
        with pytest.raises(TypeError, match=match):
            model(latent, **{"t": 500.0, "text": states, **more})

    refused(r"found float64; call latent.astype\(numpy.float32\)", LATENT.astype(np.float64))
    refused("found float64", OnlyDLPack(LATENT.astype(np.float64)))
    refused("numpy.ascontiguousarray", np.asfortranarray(LATENT))
    refused(r"latent.contiguous\(\)", OnlyDLPack(LATENT.transpose(0, 1, 3, 2)))
    refused(r"latent.cpu\(\)", Elsewhere(LATENT))
    refused("found list", LATENT.tolist())
    refused("4 dimensions, found 3", LATENT[0])
    frozen = np.empty(LATENT.shape, np.float32)
    frozen.flags.writeable = False
    refused("out: it is read-only", out=frozen)
    refused("out: it(s memory)? is (read-only|not shared)", out=OnlyDLPack(frozen))
    refused("out: expected shape", out=np.empty((16, 2, 4, 8), np.float32))
    refused("out: expected float32", out=np.empty(LATENT.shape, np.int32))
    with pytest.raises(ballast.InputError):
        model(LATENT[:8].copy(), t=500.0, text=states)
    # The inputs themselves may be read-only.
    fixed = LATENT.copy()
    fixed.flags.writeable = False
    assert (model(fixed, t=500.0, text=states) == model(LATENT, t=500.0, text=states)).all()


def test_calls_keep_no_reference(model: ballast.WanModel, states: "np.ndarray[Any, Any]") -> None:
    wrapped, out = OnlyDLPack(LATENT), np.empty(LATENT.shape, np.float32)
    model(wrapped, t=500.0, text=states, out=out)
    gc.collect()
    before = [sys.getrefcount(x) for x in (LATENT, wrapped, states, out)]
    for _ in range(1000):
        model(wrapped, t=500.0, text=states, out=out)
        with pytest.raises(TypeError):
            model(wrapped, t=500.0, text=states, out=states)
    gc.collect()
    assert [sys.getrefcount(x) for x in (LATENT, wrapped, states, out)] == before


def trained(
    tmp_path: pathlib.Path, name: str, states: "np.ndarray[Any, Any]", **how: Any
) -> Tuple[List[float], bytes]:
    """Losses of three steps and the LoRA that they lead to."""
    with ballast.WanModel(
        MODEL / "transformer", device="cpu", threads=1, training={"rank": 4, "seed": 3}, **how
    ) as m:
        samples = [ballast.Sample(LATENT, text=states), ballast.Sample(LATENT, text=states, t=0.5)]
        results = [m.step(samples) for _ in range(3)]
        assert [r.step for r in results] == [1, 2, 3] and all(r.updated for r in results)
        m.save_lora(tmp_path / name, dtype="f32")
    return [r.loss for r in results], (tmp_path / name).read_bytes()


def test_switches_of_memory_change_no_bit(
    tmp_path: pathlib.Path, states: "np.ndarray[Any, Any]"
) -> None:
    expected = trained(tmp_path, "a.safetensors", states)
    assert expected[0][0] != expected[0][2]
    for how in (
        {"gradient_checkpointing": True, "offload_to_cpu": True},
        {"gradient_checkpointing": False, "offload_to_cpu": False},
        {"budget": {"gpu": "8MB"}},
    ):
        assert trained(tmp_path, "b.safetensors", states, **how) == expected


def test_a_switch_between_steps_keeps_what_was_trained(
    tmp_path: pathlib.Path, states: "np.ndarray[Any, Any]"
) -> None:
    expected = trained(tmp_path, "a.safetensors", states)
    with ballast.WanModel(
        MODEL / "transformer", device="cpu", threads=1, training={"rank": 4, "seed": 3}
    ) as m:
        samples = [ballast.Sample(LATENT, text=states), ballast.Sample(LATENT, text=states, t=0.5)]
        losses = [m.step(samples).loss]
        m.enable_gradient_checkpointing()
        m.enable_offloading()
        losses.append(m.step(samples).loss)
        m.leave_memory_to_the_planner()
        losses.append(m.step(samples).loss)
        m.save_lora(tmp_path / "b.safetensors", dtype="f32")
    assert (losses, (tmp_path / "b.safetensors").read_bytes()) == expected


def test_a_checkpoint_continues_to_the_same_bits(
    tmp_path: pathlib.Path, states: "np.ndarray[Any, Any]"
) -> None:
    def make() -> ballast.WanModel:
        return ballast.WanModel(
            MODEL / "transformer", device="cpu", threads=1, training={"rank": 4, "seed": 3}
        )

    sample = [ballast.Sample(LATENT, text=states)]
    with make() as m:
        m.step(sample)
        m.save_checkpoint(tmp_path / "saved")
        expected = m.step(sample)
    with make() as m:
        m.plan(frames=5, height=32, width=32)
        assert not m.load_checkpoint(tmp_path / "nothing")
        assert m.load_checkpoint(tmp_path / "saved")
        again = m.step(sample)
    assert (again.step, again.loss) == (2, expected.loss)


def test_the_first_step_makes_a_model_one_that_trains(
    model: ballast.WanModel, states: "np.ndarray[Any, Any]"
) -> None:
    before = model(LATENT, t=500.0, text=states)
    first = model.step([ballast.Sample(LATENT, text=states)])
    assert first.step == 1 and first.loss > 0
    assert np.abs(model(LATENT, t=500.0, text=states) - before).max() > 0


def test_plans_are_of_the_model_as_it_is_set(model: ballast.WanModel) -> None:
    plan = model.plan(frames=5, height=32, width=32)
    assert plan.fits and plan.device.planned > 0 and "fits" in str(plan)
    model.set_budget(gpu="2MB", ram="4MB")
    refused = model.plan(frames=5, height=32, width=32)
    assert not refused.fits and refused.advice
    with pytest.raises(ballast.Refused) as error:
        model(LATENT, t=500.0)
    assert error.value.advice and error.value.plan is not None and not error.value.plan.fits
    with pytest.raises(ballast.UsageError, match="multiples of 16"):
        model.plan(frames=5, height=40, width=32)


def test_without_a_file_a_released_model_can_be_planned() -> None:
    model = ballast.WanModel(model_type="t2v", num_layers=30, budget={"gpu": "24GB", "ram": "32GB"})
    plan = model.plan(frames=25, height=480, width=832)
    assert plan.to_dict()["model"] == "wan2.1-t2v-1.3b"
    with pytest.raises(ballast.UsageError, match="checkpoint="):
        model(LATENT, t=500.0)
    with pytest.raises(ballast.UsageError, match="no released model"):
        ballast.WanModel(model_type="t2v", num_layers=31)
    with pytest.raises(ballast.UsageError, match="needs checkpoint="):
        ballast.WanModel()


def test_an_unknown_keyword_is_named_with_the_nearest_one() -> None:
    with pytest.raises(TypeError, match="gradient_checkpoint; did you mean gradient_checkpointing"):
        ballast.WanModel(MODEL / "transformer", gradient_checkpoint=True)
    with pytest.raises(TypeError, match="budget has no argument vram"):
        ballast.WanModel(MODEL / "transformer", budget={"vram": "8GB"})
    with pytest.raises(ballast.Error, match="none.safetensors"):
        ballast.WanModel("none.safetensors")


def test_two_threads_with_a_model_each_give_the_bits_of_one(
    model: ballast.WanModel, states: "np.ndarray[Any, Any]"
) -> None:
    expected = model(LATENT, t=500.0, text=states).tobytes()
    results: Dict[int, set[bytes]] = {}

    def work(number: int) -> None:
        with ballast.WanModel(MODEL / "transformer", device="cpu", threads=1) as mine:
            results[number] = {mine(LATENT, t=500.0, text=states).tobytes() for _ in range(20)}

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: {expected}, 1: {expected}}


def test_after_a_fork_calls_in_the_child_are_usage_errors(
    model: ballast.WanModel, states: "np.ndarray[Any, Any]"
) -> None:
    model(LATENT, t=500.0, text=states)
    child = os.fork()
    if child == 0:
        try:
            model(LATENT, t=500.0, text=states)
        except ballast.UsageError as e:
            os._exit(17 if "forked" in str(e) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17


def test_a_vae_encodes_and_decodes() -> None:
    vae = ballast.WanVAE(MODEL / "vae.safetensors", device="cpu", gradient_checkpointing=True)
    cell = int(vae.info["pixels_per_cell"])
    ramp = np.linspace(-1, 1, 8 * cell, dtype=np.float32)
    video = np.ascontiguousarray(
        np.broadcast_to(ramp[None, :, None, None], (5, 8 * cell, 8 * cell, 3))
    )
    z = vae.encode(video)
    assert z.shape == (int(vae.info["z_dim"]), 2, 8, 8) and np.isfinite(z).all()
    assert vae.encode(OnlyDLPack(video)).tobytes() == z.tobytes()
    back = vae.decode(z)
    assert back.shape == video.shape
    assert np.corrcoef(back.ravel(), video.ravel())[0, 1] > 0.5
    vae.close()
    with pytest.raises(ballast.UsageError, match="closed"):
        vae.decode(z)


def test_a_text_encoder_gives_as_many_rows_as_a_prompt_has(encoder: ballast.TextEncoder) -> None:
    short, long = encoder("circle"), encoder("a red circle falls and a blue square rises")
    assert short.dtype == np.float32
    assert 0 < len(short) < len(long) <= int(encoder.info["rows"])
    assert short.shape[1] == int(encoder.info["width"])
    assert encoder("circle").tobytes() == short.tobytes()
