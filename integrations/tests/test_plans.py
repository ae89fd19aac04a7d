"""Plans carried out on autoencoders: tiles and chunks, limits, failures, records and threads."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tilewright
import torch
from causal_weights import causal_autoencoder, random_latents, random_pixels
from tilewright import records
from tilewright.executor import device as devices
from tilewright.executor import governor as governors
from tilewright.executor import machine, peak, probes, shapes, tiles, unplanned
from tilewright.executor.asking import InputError
from tilewright.executor.autoencoders import Autoencoder, find_autoencoder
from tilewright.executor.failures import NonFiniteValues, WorkFailed, failure_of, non_finite
from tilewright.executor.governor import VaeGovernor
from tilewright.executor.peak import Peak
from tilewright.executor.replacing import Replacement
from tilewright.executor.running import Cancelled, PlanError, Run
from tilewright.executor.tiles import Axis, carry_out
from torch import Tensor, nn
from weights import kl_diffusers

ROOT = Path(__file__).resolve().parents[2]

MIB = 1 << 20


def _reference() -> Any:
    """The reference of blended decodes that the program is tested against, too."""
    file = ROOT / "tests" / "fixtures" / "blend_reference.py"
    found = importlib.util.spec_from_file_location("blend_reference", file)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


REFERENCE = _reference()

PLAN = records.Plan(
    space=records.WholeSpace(),
    time=records.WholeTime(),
    batch=1,
    precision=records.UniformPrecision(dtype="f32"),
    layout="channels-first",
    release="keep",
    offload=False,
    prefetch=0,
    reason="",
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that the user keeps is read or written."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    devices.forget()
    yield
    devices.forget()
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="module")
def vae() -> Any:
    return kl_diffusers("tiny-flux")


@pytest.fixture(scope="module")
def autoencoder(vae: Any) -> Autoencoder:
    found = find_autoencoder(vae)
    assert found is not None
    return found


def latents_of(height: int, width: int, *, batch: int = 1, channels: int = 16) -> Tensor:
    return torch.randn(batch, channels, height, width, generator=torch.Generator().manual_seed(1))


def whole_of(vae: Any, latents: Tensor) -> Tensor:
    with torch.no_grad():
        return cast(Tensor, vae.decode(latents).sample)


def blended_reference(vae: Any, latents: Tensor, tile: tuple[int, int], overlap: int) -> Any:
    def decode(crop: Any) -> Any:
        return whole_of(vae, torch.as_tensor(crop)).numpy()

    return REFERENCE.blended(decode, latents, 8, tile, overlap)


def run_of(plan: records.Plan, **options: Any) -> Run:
    return Run.of(plan, "cpu", **options)


def blended(height: int, width: int, overlap: int) -> records.BlendedSpace:
    return records.BlendedSpace(height=height, width=width, overlap=overlap)


def difference(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return float((one.double() - other.double()).abs().max())


# Tiles and chunks


@pytest.mark.parametrize("extent", [8, 96, 104, 1000])
@pytest.mark.parametrize(("tile", "overlap"), [(8, 0), (64, 16), (64, 0), (72, 24), (512, 64), (96, 90)])
def test_tiles_lie_and_fade_as_those_of_the_reference(extent: int, tile: int, overlap: int) -> None:
    axis = Axis.of(extent, tile, overlap)
    assert list(axis.starts) == REFERENCE.tile_starts(extent, tile, overlap)
    expected = REFERENCE.axis_weights(extent, tile, overlap if tile < extent else 0)
    total = torch.zeros(extent)
    for index, (start, weights) in enumerate(zip(axis.starts, axis.weights(), strict=True)):
        assert np.abs(weights.numpy() - expected[index, start : start + axis.tile]).max() < 1e-6
        total[start : start + axis.tile] += weights
    assert float((total - 1).abs().max()) < 1e-6


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("height", "width", "overlap"), [(64, 64, 16), (64, 104, 8), (72, 64, 0), (104, 64, 24)])
def test_blended_tiles_are_the_reference_of_the_same_module(
    vae: Any, autoencoder: Autoencoder, height: int, width: int, overlap: int, batch: int
) -> None:
    latents = latents_of(13, 17, batch=2)
    plan = replace(PLAN, space=blended(height, width, overlap), batch=batch)
    told: list[tuple[int, int]] = []

    def tell(done: int, total: int) -> None:
        told.append((done, total))

    run = run_of(plan, on_progress=tell)
    output = carry_out(autoencoder, "decode", latents, run)
    expected = blended_reference(vae, latents, (height, width), overlap)
    assert float(np.abs(output.numpy() - expected).max()) < 2e-5
    assert told == sorted(told) and told[-1][0] == told[-1][1]


@pytest.mark.parametrize("space", [records.WholeSpace(), records.ExactSpace(height=64, width=136, overlap=0)])
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_samples_in_turn_are_those_of_the_module(
    vae: Any, autoencoder: Autoencoder, space: records.Space, batch: int
) -> None:
    latents = latents_of(13, 17, batch=3)
    output = carry_out(autoencoder, "decode", latents, run_of(replace(PLAN, space=space, batch=batch)))
    assert difference(output, whole_of(vae, latents)) < 2e-5


def test_blended_encodes_are_the_modules_away_from_seams(vae: Any, autoencoder: Autoencoder) -> None:
    pixels = torch.rand(1, 3, 104, 136, generator=torch.Generator().manual_seed(3)) * 2 - 1
    tile = replace(PLAN, space=blended(64, 136, 16))
    with torch.no_grad():
        moments = vae.encode(pixels).latent_dist.parameters
        parts = [vae.encode(pixels[:, :, top : top + 64]).latent_dist.parameters for top in (0, 40)]
    output = carry_out(autoencoder, "encode", pixels, run_of(tile))
    # Tiles of 8 latent rows from the rows 0 and 5: only the rows that both have are mixed.
    assert difference(output[:, :, :5], parts[0][:, :, :5]) < 1e-5
    assert difference(output[:, :, 8:], parts[1][:, :, 3:]) < 1e-5
    assert difference(carry_out(autoencoder, "encode", pixels, run_of(PLAN)), moments) < 1e-5


class Counting:
    """An autoencoder of clips whose frames tell their number: latent t holds the number of the frame that its group
    ends with, and the frames between are drawn out in a line. It knows nothing of what was before its first frame."""

    module: nn.Module = nn.Identity()
    family = "wan-2.1"
    dialect: Any = "diffusers"
    is_video = True
    latent_channels = 1
    spatial_scale = 8
    temporal_scale = 4

    def __init__(self) -> None:
        self.chunks: list[int] = []

    def shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {}

    def decode(self, latents: Tensor, run: Run) -> Tensor:
        assert run.plan.time == records.WholeTime() and run.plan.space == records.WholeSpace()
        self.chunks.append(latents.shape[2])
        frames = [latents[:, :, 0]]
        for before, after in zip(latents.unbind(2), latents.unbind(2)[1:], strict=False):
            frames += [before + (after - before) * step / 4 for step in (1, 2, 3, 4)]
        return torch.stack(frames, 2).repeat_interleave(8, 3).repeat_interleave(8, 4)

    def encode(self, pixels: Tensor, run: Run) -> Tensor:
        assert run.plan.time == records.WholeTime() and run.plan.space == records.WholeSpace()
        self.chunks.append(pixels.shape[2])
        return pixels[:, :, ::4, ::8, ::8]


@pytest.mark.parametrize("frames", [1, 5, 17, 21, 33, 49])
@pytest.mark.parametrize(("chunk", "overlap"), [(8, 4), (16, 4), (12, 0), (16, 8), (20, 8)])
def test_chunks_fade_without_seam_or_doubled_frames_at_any_tail(frames: int, chunk: int, overlap: int) -> None:
    counting = Counting()
    latents = torch.arange(0, frames, 4, dtype=torch.float32).view(1, 1, -1, 1, 1).expand(2, 1, -1, 2, 3)
    time = records.BlendedTime(frames=chunk, overlap=overlap)
    output = carry_out(counting, "decode", latents, run_of(replace(PLAN, time=time)))
    assert output.shape == (2, 1, frames, 16, 24)
    assert float((output - torch.arange(frames).view(1, 1, -1, 1, 1)).abs().max()) < 1e-4
    # The last chunk is as long as the others.
    assert len(set(counting.chunks)) == 1
    clip = torch.arange(frames, dtype=torch.float32).view(1, 1, -1, 1, 1).expand(2, 1, -1, 16, 24)
    back = carry_out(counting, "encode", clip, run_of(replace(PLAN, time=time)))
    assert difference(back, latents) < 1e-4


def test_chunks_and_tiles_fade_together() -> None:
    latents = torch.arange(0, 21, 4, dtype=torch.float32).view(1, 1, -1, 1, 1).expand(1, 1, -1, 12, 12)
    plan = replace(PLAN, time=records.BlendedTime(frames=12, overlap=4), space=blended(64, 64, 16))
    output = carry_out(Counting(), "decode", latents, run_of(plan))
    assert float((output - torch.arange(21).view(1, 1, -1, 1, 1)).abs().max()) < 1e-4


@pytest.mark.parametrize("time_", [records.WholeTime(), records.CarriedTime(frames=4)])
def test_tiles_of_a_clip_are_the_modules_own_tiles(time_: records.Time) -> None:
    module: Any = causal_autoencoder("wan-2.1", "diffusers")
    found = find_autoencoder(module)
    assert found is not None
    latents = random_latents("wan-2.1", 9, 96, 64)
    output = carry_out(found, "decode", latents, run_of(replace(PLAN, space=blended(64, 64, 16), time=time_)))
    with torch.no_grad():
        parts = [module.decode(latents[:, :, :, top : top + 8]).sample for top in (0, 4)]
    weights = Axis.of(96, 64, 16).weights()
    expected = torch.zeros(1, 3, 9, 96, 64)
    for start, part, weight in zip((0, 32), parts, weights, strict=True):
        expected[:, :, :, start : start + 64] += part * weight.view(-1, 1)
    assert difference(output, expected) < 1e-4


def test_frames_leave_a_gpu_as_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    found = find_autoencoder(causal_autoencoder("wan-2.1", "diffusers"))
    assert found is not None
    latents = random_latents("wan-2.1", 9, 32, 32, batch=2)
    expected = carry_out(found, "decode", latents, run_of(PLAN))
    leaves: Callable[[torch.device], bool] = lambda device: True  # noqa: E731
    monkeypatch.setattr(tiles, "leaves_device", leaves)
    taken: list[int] = []
    spied: Any = Spied(found, before=lambda stage, run: taken.append(run.on_frames is not None))
    assert torch.equal(carry_out(spied, "decode", latents, run_of(PLAN)), expected)
    assert taken == [True, True]


def test_values_that_are_not_finite_are_seen_in_the_tile_that_has_them(autoencoder: Autoencoder) -> None:
    calls: list[int] = []

    def spoil(stage: str, output: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            output[0, 0, 3, 5] = torch.nan
            output[0, 1, 3, 6:8] = torch.inf
        return output

    plan = replace(PLAN, space=blended(64, 64, 16))
    with pytest.raises(NonFiniteValues) as raised:
        carry_out(cast(Any, Spied(autoencoder, after=spoil)), "decode", latents_of(13, 17), run_of(plan))
    assert raised.value.values == 3 and len(calls) == 2


def test_values_are_counted_part_by_part() -> None:
    values = torch.zeros(2, 3, 1500, 1000)
    values[1, 2, 1499, 999] = torch.nan
    values[0, 0, 0] = torch.inf
    assert non_finite(values.transpose(2, 3)) == 1001
    assert non_finite(torch.zeros(0)) == 0 and non_finite(torch.ones(3, dtype=torch.int32)) == 0


# Failures


@pytest.mark.parametrize(
    ("error", "bytes_"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has …"), 5 << 29),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:125] err == 0. DefaultCPUAllocator: can't allocate memory: you "
                      "tried to allocate 137438953472 bytes. Error code 12 (Cannot allocate memory)"), 1 << 37),
        (RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB"), 20 * MIB),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), 0),
        (MemoryError(), 0),
    ],
)  # fmt: skip
def test_allocators_errors_are_known_with_their_bytes(error: Exception, bytes_: int) -> None:
    assert failure_of(error) == records.OutOfMemoryFailure(bytes=bytes_)


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("out of memory"), KeyError("x")])
def test_other_errors_are_no_failures_of_a_plan(error: Exception) -> None:
    assert failure_of(error) is None


@dataclass(slots=True)
class Spied:
    """An autoencoder that tells what is asked of it, and whose answers may be changed."""

    inner: Any
    before: Callable[[str, Run], Any] | None = None
    after: Callable[[str, Tensor], Tensor] | None = None
    plans: list[records.Plan] = field(default_factory=list[records.Plan])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def decode(self, latents: Tensor, run: Run) -> Tensor:
        return self._asked("decode", latents, run)

    def encode(self, pixels: Tensor, run: Run) -> Tensor:
        return self._asked("encode", pixels, run)

    def _asked(self, stage: str, values: Tensor, run: Run) -> Tensor:
        self.plans.append(run.plan)
        if self.before is not None:
            self.before(stage, run)
        output = getattr(self.inner, stage)(values, run)
        return output if self.after is None else self.after(stage, output)


# Decisions


def governor_of(autoencoder: Any, policy: str = "fixed", **options: Any) -> VaeGovernor:
    return VaeGovernor(autoencoder, policy, **options)


def out_of_memory(most: int) -> Callable[[str, Run], None]:
    """Fails the first attempts as PyTorch does."""
    calls: list[records.Plan] = []

    def fail(stage: str, run: Run) -> None:
        if run.plan not in calls:
            calls.append(run.plan)
        if len(calls) <= most:
            held = torch.zeros(1 << 20)
            count = held.numel()
            raise RuntimeError(f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {count} bytes")

    return fail


SETTINGS: dict[str, dict[str, Any]] = {
    "whole": {},
    "exact": {"space": "exact", "tile": 64},
    "channels-first": {"layout": "channels-first"},
    "batch": {"batch": 2},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_governed_decodes_and_encodes_are_the_modules(vae: Any, autoencoder: Autoencoder, name: str) -> None:
    governor = governor_of(autoencoder, settings=SETTINGS[name])
    latents = latents_of(16, 20, batch=2)
    output = governor.decode(latents)
    assert difference(output, whole_of(vae, latents)) < 2e-5 and not output.requires_grad
    pixels = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(3)) * 2 - 1
    with torch.no_grad():
        moments = vae.encode(pixels).latent_dist.parameters
    assert difference(governor.encode(pixels), moments) < 2e-5
    decoded, encoded = governor.records
    assert (decoded.stage, encoded.stage) == ("decode", "encode")
    assert decoded.answer is not None and decoded.fallback is None
    assert decoded.plan.space.kind == ("exact" if name == "exact" else "whole")


def test_a_blended_plan_that_is_allowed_is_the_references(vae: Any, autoencoder: Autoencoder) -> None:
    settings: dict[str, Any] = {"space": "blended", "tile": 64, "overlap": 16}
    latents = latents_of(16, 20)
    output = governor_of(autoencoder, settings=settings).decode(latents)
    expected = blended_reference(vae, latents, (64, 64), 16)
    assert float(np.abs(output.numpy() - expected).max()) < 2e-5
    # Without the user's word, tiles of a policy that always has them are replaced.
    allowed, forbidden = (governor_of(autoencoder, "diffusers", allows_blended=allows) for allows in (True, False))
    assert difference(forbidden.decode(latents), whole_of(vae, latents)) < 2e-5
    assert difference(allowed.decode(latents), whole_of(vae, latents)) > 2e-5
    kinds = [governor.records[-1].plan.space.kind for governor in (allowed, forbidden)]
    assert kinds[0] == "blended" != kinds[1]


@pytest.mark.parametrize("family", ["wan-2.1", "wan-2.2", "qwen-image"])
def test_clips_are_governed_as_pictures_are(family: Any) -> None:
    module: Any = causal_autoencoder(family, "diffusers")
    found = find_autoencoder(module)
    assert found is not None
    governor = governor_of(found, "adaptive")
    latents = random_latents(family, 9, 64, 64, batch=2)
    with torch.no_grad():
        expected = module.decode(latents).sample
        pixels = random_pixels(5, 64, 64, batch=2)
        moments = module.encode(pixels).latent_dist.parameters
    assert difference(governor.decode(latents), expected) < 1e-4
    assert difference(governor.encode(pixels), moments) < 1e-4
    assert [record.outcome is not None for record in governor.records] == [True, True]
    assert governor.records[0].request.frames == 9 and governor.records[0].request.batch == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_output_has_the_modules_type(dtype: torch.dtype) -> None:
    module = kl_diffusers("tiny-sd3", dtype=dtype)
    found = find_autoencoder(module)
    assert found is not None
    output = governor_of(found).decode(latents_of(8, 8).to(dtype))
    assert output.dtype == dtype and next(module.parameters()).dtype == dtype
    wide = kl_diffusers("tiny-sd3", dtype=dtype).double()
    tolerance = 1e-9 if dtype == torch.float64 else 0.05
    assert difference(output, whole_of(wide, latents_of(8, 8).to(dtype).double())) < tolerance


def test_the_callers_modes_are_kept(vae: Any, autoencoder: Autoencoder) -> None:
    governor, latents = governor_of(autoencoder), latents_of(8, 8)
    expected = whole_of(vae, latents)
    with torch.inference_mode():
        assert difference(governor.decode(latents), expected) < 2e-5
        assert torch.is_inference_mode_enabled()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert difference(governor.decode(latents), expected) < 2e-5
        assert torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
    assert not governor.decode(latents.clone().requires_grad_()).requires_grad


# Limits


def test_a_plan_beyond_the_limit_is_not_run_if_another_fits(vae: Any, autoencoder: Autoencoder) -> None:
    governor, latents = governor_of(autoencoder), latents_of(32, 32)
    whole = governor.decide("decode", latents.shape, device="cpu", dtype=torch.float32).estimate
    assert whole is not None
    limit = whole.peak_bytes * 6 // 10
    spied = Spied(autoencoder)
    tight = governor_of(spied, memory_limit=limit)
    output = tight.decode(latents)
    [record] = tight.records
    assert record.estimate is not None and record.estimate.peak_bytes <= limit == record.request.memory_limit
    assert record.plan.space.kind != "whole" and all(plan.space.kind != "whole" for plan in spied.plans[:1]) | (
        record.plan.space.kind == "blended"
    )
    if record.plan.space.kind == "exact":
        assert difference(output, whole_of(vae, latents)) < 2e-5


def test_limits_are_taken_as_quotes_take_them(autoencoder: Autoencoder) -> None:
    shape = (1, 16, 16, 16)
    asked: dict[str, Any] = {"device": "cpu", "dtype": torch.float32}
    by_text = governor_of(autoencoder, memory_limit="1GiB").decide("decode", shape, **asked)
    assert by_text.record.request.memory_limit == 1 << 30
    by_default = governor_of(autoencoder).decide("decode", shape, **asked).record
    assert abs(by_default.request.memory_limit - 0.8 * by_default.device.free_bytes) < 2
    for wrong in ("much", 0, -5, 1.5, True):
        with pytest.raises(tilewright.ModelError, match="memory_limit: expected a number of bytes"):
            governor_of(autoencoder, memory_limit=cast(Any, wrong))
    with pytest.raises(tilewright.ModelError, match="objective: expected fastest"):
        governor_of(autoencoder, objective=cast(Any, "pretty"))
    with pytest.raises(tilewright.PolicyError, match="settings: a Policy has its own"):
        VaeGovernor(autoencoder, tilewright.Policy("fixed"), settings={"batch": 1})


def test_a_limit_below_the_leanest_plan_is_refused_in_one_line(autoencoder: Autoencoder) -> None:
    spied = Spied(autoencoder)
    with pytest.raises(tilewright.ModelError, match="a memory limit of .* is too little") as raised:
        governor_of(spied, memory_limit="64KiB").decode(latents_of(16, 16))
    assert "\n" not in str(raised.value) and not spied.plans


def test_a_machine_without_room_is_no_reason_not_to_try(
    vae: Any, autoencoder: Autoencoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "host_memory", lambda: machine.Memory(1 << 30, 1 << 16))
    governor, latents = governor_of(autoencoder), latents_of(16, 16)
    output = governor.decode(latents)
    [record] = governor.records
    assert record.device.free_bytes == 1 << 16 and record.outcome is not None
    assert difference(output, whole_of(vae, latents)) < 2e-5


@pytest.mark.parametrize(
    ("options", "is_given_back"),
    [({}, False), ({"settings": {"release": "each-step"}}, True), ({"memory_limit": "1GiB"}, True)],
)
def test_freed_memory_is_given_back_between_pieces_where_it_counts(
    autoencoder: Autoencoder, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], is_given_back: bool
) -> None:
    steps: list[torch.device] = []
    monkeypatch.setattr(governors, "trim", steps.append)
    governor = governor_of(autoencoder, **options)
    governor.decode(latents_of(16, 16))
    assert (len(steps) > 3) == is_given_back


# Attempts


def test_memory_that_ran_out_leads_to_the_next_plan(vae: Any, autoencoder: Autoencoder) -> None:
    spied = Spied(autoencoder, before=out_of_memory(1))
    # Processors with instructions for bf16 would go on in that.
    governor = governor_of(spied, "adaptive", settings={"precision": "f32"})
    announced: list[records.Plan] = []
    latents = latents_of(32, 32)
    output = governor.decode(latents, on_decision=lambda decision: announced.append(decision.plan))
    [record] = governor.records
    [attempt] = record.attempts
    assert announced == [attempt.plan, record.plan] and announced[0] != announced[1]
    assert attempt.failure == records.OutOfMemoryFailure(bytes=1 << 20)
    assert record.outcome is not None and record.outcome.attempts == 2
    if record.plan.space.kind != "blended":
        assert difference(output, whole_of(vae, latents)) < 2e-5


def test_values_that_overflowed_are_made_again_in_a_wider_type(vae: Any, autoencoder: Autoencoder) -> None:
    def overflow(stage: str, run: Run) -> None:
        if run.compute != torch.float32:
            raise NonFiniteValues(7)

    spied = Spied(autoencoder, before=overflow)
    governor = governor_of(spied, settings={"precision": "f16"})
    latents = latents_of(16, 16)
    assert difference(governor.decode(latents), whole_of(vae, latents)) < 2e-5
    [record] = governor.records
    assert record.attempts[0].failure == records.NonFiniteFailure(values=7)
    assert record.attempts[0].plan.precision.dtype == "f16" and record.plan.precision.dtype == "f32"
    assert record.fallback is not None


def test_real_overflow_in_f16_is_seen_and_mended(autoencoder: Autoencoder) -> None:
    module = kl_diffusers("tiny-flux")
    with torch.no_grad():
        module.decoder.conv_in.weight.mul_(1e6)
    found = find_autoencoder(module)
    assert found is not None
    governor, latents = governor_of(found, settings={"precision": "f16"}), latents_of(8, 8)
    output = governor.decode(latents)
    expected = whole_of(module, latents)
    assert difference(output, expected) < 2e-5 * max(float(expected.abs().max()), 1.0)
    assert isinstance(governor.records[0].attempts[0].failure, records.NonFiniteFailure)


def test_attempts_end_and_the_line_says_what_to_do(autoencoder: Autoencoder) -> None:
    spied = Spied(autoencoder, before=out_of_memory(1000))
    governor = governor_of(spied, "adaptive")
    says = "gave up after [2-6] attempts, the last for lack of memory .*free memory"
    announced: list[str] = []
    with pytest.raises(WorkFailed, match=says) as raised:
        governor.decode(latents_of(32, 32), on_decision=lambda decision: announced.append(decision.plan.to_json()))
    error = raised.value
    assert "\n" not in str(error) and isinstance(error.__cause__, RuntimeError)
    assert error.__cause__.__traceback__ is None
    [record] = governor.records
    assert record.outcome is None and len(record.attempts) + 1 == error.attempts == len(set(announced))
    assert error.attempts <= governors.MOST_ATTEMPTS and isinstance(error.failure, records.OutOfMemoryFailure)
    # The host's own plans come after the policy's.
    assert record.fallback is not None and record.fallback.reason == "exhausted"


def test_latents_that_are_not_finite_are_said_to_be(autoencoder: Autoencoder) -> None:
    latents = latents_of(8, 8)
    latents[0, 3, 2, 1] = torch.nan
    governor = governor_of(autoencoder)
    with pytest.raises(WorkFailed, match="latents: 1 values are NaN or infinite, which no plan mends"):
        governor.decode(latents)


def test_weights_that_are_not_finite_are_said_to_be() -> None:
    module = kl_diffusers("tiny-flux")
    with torch.no_grad():
        module.decoder.conv_out.bias.fill_(torch.inf)
    found = find_autoencoder(module)
    assert found is not None
    with pytest.raises(WorkFailed, match="gave up after 1 attempt: .* values of the decode are NaN .* weights"):
        governor_of(found).decode(latents_of(8, 8))


def test_a_failed_attempt_holds_no_tensors(autoencoder: Autoencoder) -> None:
    held: list[weakref.ref[Tensor]] = []

    def fail(stage: str, run: Run) -> None:
        if not held:
            large = torch.zeros(1 << 20)
            held.append(weakref.ref(large))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB")
        assert held[0]() is None

    governor = governor_of(Spied(autoencoder, before=fail), "adaptive")
    governor.decode(latents_of(16, 16))
    assert held and len(governor.records[0].attempts) == 1


@pytest.mark.parametrize("error", [ValueError("mine"), RuntimeError("a kernel failed"), KeyboardInterrupt()])
def test_other_errors_pass_as_they_are(autoencoder: Autoencoder, error: BaseException) -> None:
    def fail(stage: str, run: Run) -> None:
        raise error

    governor = governor_of(Spied(autoencoder, before=fail))
    with pytest.raises(type(error)) as raised:
        governor.decode(latents_of(8, 8))
    assert raised.value is error and not governor.records
    # The next work has its turn.
    governor.autoencoder = autoencoder
    assert governor.decode(latents_of(8, 8)).shape == (1, 3, 64, 64)


def test_a_decode_is_cancelled_between_pieces(autoencoder: Autoencoder) -> None:
    governor = governor_of(autoencoder, settings={"space": "exact", "tile": 64})
    told: list[int] = []
    with pytest.raises(Cancelled):
        governor.decode(
            latents_of(32, 32), on_progress=lambda done, total: told.append(done), is_cancelled=lambda: len(told) > 2
        )
    [record] = governor.records
    assert record.outcome is None and not record.attempts and len(told) == 3
    with pytest.raises(Cancelled):
        governor.decode(latents_of(8, 8), is_cancelled=lambda: True)
    assert len(governor.records) == 1


# Records


def test_records_are_the_programs(autoencoder: Autoencoder, tmp_path: Path) -> None:
    kept: list[records.Record] = []
    governor = governor_of(Spied(autoencoder, before=out_of_memory(1)), "adaptive", on_record=kept.append)
    governor.decode(latents_of(32, 32))
    governor.encode(torch.zeros(1, 3, 64, 64))
    assert kept == governor.records and [record.stage for record in kept] == ["decode", "encode"]
    file = tmp_path / "records.jsonl"
    file.write_text("".join(record.to_json() + "\n" for record in kept))
    for line, record in zip(file.read_text().splitlines(), kept, strict=True):
        assert records.Record.from_json(line) == record
        outcome = json.loads(line)["outcome"]
        assert outcome["elapsed_ms"] > 0 and outcome["attempts"] == len(record.attempts) + 1
    program = os.environ.get("TILEWRIGHT_PROGRAM", "")
    if not Path(program).is_file():
        pytest.skip("the program is not built here")
    run = subprocess.run([program, "policy", "replay", str(file)], capture_output=True, text=True, check=False)
    # Both are read; a replay needs what was said to the policy, too.
    assert "none of 2 records was made with --record full" in run.stderr


def test_records_are_bounded(autoencoder: Autoencoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(governors, "MOST_RECORDS", 3)
    governor = governor_of(autoencoder)
    for side in (4, 5, 6, 7):
        governor.decode(latents_of(side, 8))
    assert [record.request.height for record in governor.records] == [40, 48, 56]


def test_outcomes_are_learnt(autoencoder: Autoencoder, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[tuple[records.Plan, records.Outcome]] = []
    policy = tilewright.Policy("adaptive")
    own = tilewright.Policy.learn

    def learn(self: Any, request: Any, plan: Any, outcome: Any, **options: Any) -> None:
        learnt.append((plan, outcome))
        own(self, request, plan, outcome, **options)

    monkeypatch.setattr(tilewright.Policy, "learn", learn)
    governor = VaeGovernor(autoencoder, policy)
    governor.decode(latents_of(16, 16))
    [(plan, outcome)] = learnt
    assert governor.records[0].plan == plan and governor.records[0].outcome == outcome


# Inputs that no plan is for


def test_odd_sizes_go_to_the_module_and_the_record_says_so(vae: Any, autoencoder: Autoencoder) -> None:
    governor = governor_of(Spied(autoencoder))
    pixels = torch.rand(1, 3, 100, 130, generator=torch.Generator().manual_seed(3)) * 2 - 1
    with torch.no_grad():
        expected = vae.encode(pixels).latent_dist.parameters
    assert torch.equal(governor.encode(pixels), expected)
    [record] = governor.records
    assert "no plan has a price at 1 frames of 130×100 pixels" in record.plan.reason
    assert record.fallback is not None and record.fallback.reason == "not-answered" and record.outcome is not None
    assert records.Record.from_json(record.to_json()) == record


def test_a_plan_that_can_not_be_carried_out_is_the_modules_to_do(vae: Any, autoencoder: Autoencoder) -> None:
    def refuse(stage: str, run: Run) -> None:
        raise PlanError("space: none of this module's")

    governor = governor_of(Spied(autoencoder, before=refuse))
    latents = latents_of(8, 8)
    assert torch.equal(governor.decode(latents), whole_of(vae, latents))
    assert "space: none of this module's" in governor.records[0].plan.reason


def test_what_tilewright_put_in_place_of_decode_is_not_asked(vae: Any, autoencoder: Autoencoder) -> None:
    expected = whole_of(vae, latents_of(8, 8))
    replacement = Replacement(vae, {"decode": lambda *_: pytest.fail("it would go round")})
    replacement.install()
    try:
        found = unplanned.output_of_module(autoencoder, "decode", latents_of(8, 8), torch.device("cpu"))
    finally:
        replacement.remove()
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((1, 16, 8), "latents: .1, 16, 8. where the flux autoencoder takes .N, 16, h, w."),
        ((1, 4, 8, 8), "take the autoencoder that they were made for"),
        ((0, 16, 8, 8), "at least one of each"),
        ((1, 16, 8, 0), "at least one of each"),
    ],
)
def test_latents_of_others_are_refused_in_one_line(autoencoder: Autoencoder, shape: tuple[int, ...], says: str) -> None:
    spied = Spied(autoencoder)
    with pytest.raises(InputError, match=says) as raised:
        governor_of(spied).decode(torch.zeros(shape))
    assert "\n" not in str(raised.value) and not spied.plans
    with pytest.raises(InputError, match="holds no fractions"):
        governor_of(spied).decode(torch.zeros(1, 16, 8, 8, dtype=torch.int64))


def test_latents_of_pictures_are_no_clips() -> None:
    found = find_autoencoder(causal_autoencoder("wan-2.1", "diffusers"))
    assert found is not None
    with pytest.raises(InputError, match="add an axis of frames after the channels"):
        governor_of(found).decode(torch.zeros(1, 4, 8, 8))


# Threads


def test_threads_take_turns(vae: Any, autoencoder: Autoencoder) -> None:
    running: list[int] = []
    most: list[int] = []

    def enter(stage: str, run: Run) -> None:
        running.append(1)
        most.append(len(running))
        time.sleep(0.02)

    def leave(stage: str, output: Tensor) -> Tensor:
        running.pop()
        return output

    governor = governor_of(Spied(autoencoder, before=enter, after=leave))
    inputs = [latents_of(4, side) for side in (4, 5, 6, 7)]
    outputs: dict[int, Tensor] = {}

    def decode(index: int) -> None:
        outputs[index] = governor.decode(inputs[index])

    threads = [threading.Thread(target=decode, args=(index,)) for index in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1 and len(governor.records) == 4
    for index, one in enumerate(inputs):
        assert difference(outputs[index], whole_of(vae, one)) < 2e-5


def test_a_thread_that_waits_is_cancelled(autoencoder: Autoencoder) -> None:
    entered, released = threading.Event(), threading.Event()

    def hold(stage: str, run: Run) -> None:
        entered.set()
        released.wait(30)

    governor = governor_of(Spied(autoencoder, before=hold))
    first = threading.Thread(target=lambda: governor.decode(latents_of(4, 4)))
    first.start()
    assert entered.wait(30)
    with pytest.raises(Cancelled):
        governor.decode(latents_of(4, 4), is_cancelled=lambda: True)
    released.set()
    first.join()
    assert len(governor.records) == 1


# The device


def test_a_device_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[torch.device] = []
    own = probes.Probes.measured

    def count(self: probes.Probes, backend: str, **options: Any) -> dict[str, Any]:
        measured.append(self.device)
        return own(self, backend, **options)

    monkeypatch.setattr(probes.Probes, "measured", count)
    devices.forget()
    first = devices.device_of("cpu", folder=tmp_path)
    assert devices.device_of("cpu", folder=tmp_path).fingerprint == first.fingerprint and len(measured) == 1
    [file] = tmp_path.iterdir()
    devices.forget()
    kept = devices.device_of("cpu", folder=tmp_path)
    assert len(measured) == 1 and kept.facts.fast_dtypes == first.facts.fast_dtypes
    assert "f32" in kept.facts.fast_dtypes and str(torch.__version__) in kept.fingerprint
    for damage in ("", "{", "[]", json.dumps({**json.loads(file.read_text()), "measured": {"speeds": []}}), "\udcff"):
        file.write_text(damage, errors="surrogateescape")
        devices.forget()
        assert devices.device_of("cpu", folder=tmp_path).fingerprint == first.fingerprint
    assert len(measured) == 6 and list(tmp_path.iterdir()) == [file]
    # Other threads are another device.
    torch.set_num_threads(2)
    assert devices._fingerprint(torch.device("cpu"), devices._cpu_facts()) != first.fingerprint  # pyright: ignore


def test_memory_is_asked_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    devices.device_of("cpu")
    monkeypatch.setattr(devices, "host_memory", lambda: machine.Memory(1 << 33, 1 << 32))
    facts = devices.device_of("cpu").facts
    assert (facts.total_bytes, facts.free_bytes, facts.unified) == (1 << 33, 1 << 32, True)


def test_a_measurement_is_cancelled_between_probes(tmp_path: Path) -> None:
    devices.forget()
    asked: list[int] = []

    def is_cancelled() -> bool:
        asked.append(1)
        return len(asked) > 2

    with pytest.raises(Cancelled):
        devices.device_of("cpu", is_cancelled=is_cancelled, folder=tmp_path)
    assert len(asked) == 3 and not list(tmp_path.iterdir())


def test_a_folder_that_can_not_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    devices.forget()
    assert devices.device_of("cpu", folder=tmp_path / "file" / "below").facts.backend == "cpu"


@pytest.mark.parametrize("name", ["meta", "mps", "xpu:0"])
def test_other_devices_are_refused(name: str) -> None:
    with pytest.raises(tilewright.ModelError, match=f"{name}: plans are carried out on cpu and cuda alone"):
        devices.device_of(name)


def _said(value: Any, *_: Any) -> Any:
    return value


class Gpu:
    """A stand-in for what PyTorch tells of a GPU."""

    name = "AMD Radeon 8060S"
    gcnArchName = "gfx1151:sramecc-:xnack-"
    major, minor = 11, 5
    multi_processor_count = 40
    is_integrated = 1
    pci_domain_id, pci_bus_id, pci_device_id = 0, 0xC5, 0


def test_facts_of_a_gpu_are_those_of_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_a_gpu(
        monkeypatch,
        get_device_properties=Gpu,
        mem_get_info=(15 << 30, 16 << 30),
        memory_reserved=3 << 30,
        memory_allocated=1 << 30,
    )
    monkeypatch.setattr(torch.version, "hip", "7.16")
    seen: list[Any] = []

    def memory(reported: machine.Memory, **options: Any) -> machine.Memory:
        seen.append((reported, options))
        return machine.Memory(97 << 30, 95 << 30)

    monkeypatch.setattr(devices, "gpu_memory", memory)
    facts = devices._gpu_facts(torch.device("cuda", 0))  # pyright: ignore
    assert seen == [(machine.Memory(16 << 30, 17 << 30), {"is_integrated": True, "bus_address": "0000:c5:00.0"})]
    assert (facts["backend"], facts["arch"], facts["unified"]) == ("rocm", "gfx1151", True)
    assert facts["free_bytes"] == 95 << 30 and {"name": "hip", "value": "7.16"} in facts["hints"]
    monkeypatch.setattr(torch.version, "hip", None)
    assert devices._gpu_facts(torch.device("cuda", 0))["arch"] == "sm_115"  # pyright: ignore


def stand_in_for_a_gpu(monkeypatch: pytest.MonkeyPatch, **told: Any) -> None:
    """PyTorch's answers about a GPU, where there is none: what is computed is computed on the CPU."""
    usual: dict[str, Any] = {
        "synchronize": None,
        "mem_get_info": (8 << 30, 16 << 30),
        "memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_allocated": 0,
        "reset_peak_memory_stats": None,
    }
    for name, value in {**usual, **told}.items():
        monkeypatch.setattr(torch.cuda, name, partial(_said, value))


def test_measurements_of_a_gpu_make_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_a_gpu(monkeypatch)
    monkeypatch.setattr(probes, "GPU_SIDES", {16: (16, 8), 32: (8,)})
    monkeypatch.setattr(probes, "GPU_SCRATCH", (8, 8))
    monkeypatch.setattr(probes, "GPU_TOKENS", 64)
    monkeypatch.setattr(probes, "CPU_VALUES", 1 << 10)
    monkeypatch.setattr(probes, "GPU_VALUES", 1 << 12)
    own = probes.Probes(torch.device("cpu"))
    own.on_cpu = False
    measured, heads = own.measured("cuda"), own.fused_heads()
    assert {speed["dtype"] for speed in measured["speeds"]} == {"f32", "bf16", "f16"}
    assert len(heads) == 3 * len(probes.TRIED_WIDTHS)
    facts = devices._blank_facts("cuda")  # pyright: ignore
    place = torch.device("cuda", 0)
    text = devices._description(place, facts, "a GPU", {"measured": measured, "heads": heads})  # pyright: ignore
    device = tilewright.Device.from_json(text)
    assert device.facts.backend == "cuda" and "f32" in device.facts.fast_dtypes


def test_a_peak_of_a_gpu_is_its_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"allocation.all.allocated": 10, "segment.all.allocated": 2}
    stand_in_for_a_gpu(
        monkeypatch, memory_stats=counts, memory_allocated=100, memory_reserved=700, max_memory_allocated=550
    )
    with Peak(torch.device("cuda", 0)) as found:
        counts.update({"allocation.all.allocated": 30, "segment.all.allocated": 5})
        before = {"in use": 100, "held": 700, "allocations": 10, "segments": 2}
        assert found._before == before  # pyright: ignore
    assert found.bytes == 450
    assert found.pool == records.PoolStatistics(hits=17, misses=3, held_bytes=700)


def test_memory_of_an_apu_is_what_its_kernel_driver_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 1 << 30
    monkeypatch.setattr(machine, "_linux_memory", lambda: machine.Memory(128 * gib, 100 * gib))
    monkeypatch.setattr(machine, "_PCI", tmp_path)
    card = tmp_path / "0000:c5:00.0"
    card.mkdir()
    reported = machine.Memory(16 * gib, 15 * gib)
    where: dict[str, Any] = {"is_integrated": True, "bus_address": "0000:c5:00.0"}
    # Without the driver's word, what the runtime reports is less what is left to the system.
    assert machine.gpu_memory(reported, **where) == machine.Memory(16 * gib, 15 * gib)
    for name, value in {"vram_total": 1, "vram_used": 1, "gtt_total": 96, "gtt_used": 1}.items():
        (card / f"mem_info_{name}").write_text(f"{value * gib}\n")
    assert machine.gpu_memory(reported, **where) == machine.Memory(97 * gib, 95 * gib)
    (card / "mem_info_vram_total").write_text(str(96 * gib))
    (card / "mem_info_gtt_total").write_text(str(16 * gib))
    assert machine.gpu_memory(reported, **where) == machine.Memory(96 * gib, 95 * gib)
    own = machine.gpu_memory(reported, is_integrated=False, bus_address=None)
    assert own == reported


# Shapes


def test_a_model_is_made_of_shapes_alone_and_leaves_nothing(
    vae: Any, autoencoder: Autoencoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    model = shapes.model_of_autoencoder(autoencoder)
    assert model.kind == "vae" and shapes.model_of_autoencoder(autoencoder) is model
    assert not list(tmp_path.iterdir())
    device = devices.device_of("cpu")
    request = model.decode(device, width=64, height=64).request
    assert request.model.family == "flux"
    weights = sum(weight.numel() * weight.element_size() for weight in vae.parameters())
    assert request.model.parameter_bytes <= weights
    with pytest.raises(tilewright.ModelError, match="odd: a type F7 is none of safetensors'"):
        shapes.model_of({"odd": ("F7", (1,))}, part="vae")
    with pytest.raises(tilewright.ModelError) as raised:
        shapes.model_of({"odd": ("F32", (1,))}, part="vae")
    assert str(tmp_path) not in str(raised.value) and not list(tmp_path.iterdir())


def test_a_large_model_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    blocks: list[int] = []
    own = shapes.Model

    def look(path: Any, **options: Any) -> Any:
        status = os.stat(path)
        blocks.append(status.st_blocks * 512)
        assert status.st_size > 1 << 40
        return own(path, **options)

    monkeypatch.setattr(shapes, "Model", look)
    with pytest.raises(tilewright.ModelError):
        shapes.model_of({"large": ("F32", (1 << 20, 1 << 19))}, part="vae")
    assert blocks and blocks[0] < MIB


def test_models_go_with_their_modules() -> None:
    module = kl_diffusers("tiny-sd3")
    found = find_autoencoder(module)
    assert found is not None
    shapes.model_of_autoencoder(found)
    before = len(shapes._known)  # pyright: ignore
    changed = shapes.model_of_autoencoder(found)
    module.half()
    assert shapes.model_of_autoencoder(found) is not changed
    del module, found, changed
    gc.collect()
    assert len(shapes._known) == before - 1  # pyright: ignore


# Peaks


def measured_peak(size: int, monkeypatch: pytest.MonkeyPatch, has_mark: bool) -> int:
    if not has_mark:
        monkeypatch.setattr(peak, "_reset_high_water", lambda: False)
    with Peak(torch.device("cpu")) as found:
        values = torch.ones(size // 4)
        if not has_mark:
            time.sleep(0.05)
        del values
    assert found.bytes is not None
    return found.bytes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems tell no resident memory here")
@pytest.mark.parametrize("has_mark", [True, False])
def test_a_peak_is_what_was_held_at_the_highest(monkeypatch: pytest.MonkeyPatch, has_mark: bool) -> None:
    # The second one would fit in what the first one left.
    for size in (256 * MIB, 64 * MIB):
        assert abs(measured_peak(size, monkeypatch, has_mark) - size) < 16 * MIB


def test_a_peak_that_nobody_tells_is_the_estimate(autoencoder: Autoencoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak, "_resident", dict[str, int])
    monkeypatch.setattr(peak, "_reset_high_water", lambda: True)
    governor = governor_of(autoencoder)
    governor.decode(latents_of(8, 8))
    [record] = governor.records
    assert record.outcome is not None and record.estimate is not None
    assert record.outcome.peak_bytes == record.estimate.peak_bytes
