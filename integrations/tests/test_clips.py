"""Causal video autoencoders by plans: clips whole and in chunks, and exact bands, against the modules' own decodes
and encodes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from causal_weights import (
    Dialect,
    Family,
    Width,
    causal_autoencoder,
    has_comfyui,
    random_latents,
    random_pixels,
    spatial_scale,
)
from tilewright import records
from tilewright.executor.causal_decoding import Chunks, ClipDecode
from tilewright.executor.causal_hooks import Blocks
from tilewright.executor.causal_layers import Bands
from tilewright.executor.causal_steps import decoder_steps
from tilewright.executor.causal_structure import find_structure
from tilewright.executor.clips import CausalAutoencoder
from tilewright.executor.device import device_of
from tilewright.executor.layers import Format
from tilewright.executor.running import Cancelled, PlanError, Run
from tilewright.executor.shapes import model_of_autoencoder
from torch import Tensor, nn

torch.set_num_threads(1)

#: The largest difference from the module's own output, in f32.
CLOSE = 1e-5

#: The largest difference of a peak from its estimate, as a share of that.
NEAR = 0.1

MODULES: tuple[tuple[Family, Dialect], ...] = (
    ("wan-2.1", "diffusers"),
    ("wan-2.2", "diffusers"),
    ("qwen-image", "diffusers"),
    ("wan-2.1", "comfyui"),
    ("wan-2.2", "comfyui"),
)

each_module = pytest.mark.parametrize(("family", "dialect"), MODULES)


def made(family: Family, dialect: Dialect, **options: Any) -> tuple[nn.Module, CausalAutoencoder]:
    """A module with random weights, and the autoencoder that it is."""
    if dialect == "comfyui" and not has_comfyui():
        pytest.skip("ComfyUI is not here")
    module = causal_autoencoder(family, dialect, **options)
    return module, found(module)


def found(module: nn.Module) -> CausalAutoencoder:
    """The autoencoder that a module is."""
    autoencoder = CausalAutoencoder.find(module)
    assert autoencoder is not None
    return autoencoder


def run_of(
    *,
    frames: int | None = None,
    rows: int | None = None,
    precision: records.Precision | None = None,
    layout: records.Layout = "channels-first",
    **hooks: Any,
) -> Run:
    """An attempt on the processor: in chunks of so many frames, in bands of so many rows."""
    plan = records.Plan(
        space=records.WholeSpace() if rows is None else records.ExactSpace(height=rows, width=4096, overlap=0),
        time=records.WholeTime() if frames is None else records.CarriedTime(frames=frames),
        batch=1,
        precision=precision or records.UniformPrecision(dtype="f32"),
        layout=layout,
        release="keep",
        offload=False,
        prefetch=0,
        reason="",
    )
    return Run.of(plan, "cpu", **hooks)


def own_decode(module: Any, latents: Tensor) -> Tensor:
    """The output of the module itself."""
    with torch.no_grad():
        decoded = module.decode(latents)
    return decoded if isinstance(decoded, Tensor) else decoded.sample


def own_encode(module: Any, pixels: Tensor) -> Tensor:
    """The moments that the module itself gives; ComfyUI's the means alone."""
    with torch.no_grad():
        encoded = module.encode(pixels)
    return encoded if isinstance(encoded, Tensor) else encoded.latent_dist.parameters


def difference(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors of one shape."""
    assert one.shape == other.shape
    return (one.double() - other.double()).abs().max().item()


def sides(family: Family) -> tuple[int, int]:
    """Height and width of a small picture: of more rows than a band has at least, and no square."""
    scale = spatial_scale(family)
    return 5 * scale, 3 * scale


@each_module
@pytest.mark.parametrize("frames", [1, 5, 9, 17])
def test_decodes_are_the_modules_own_in_chunks_and_in_bands(family: Family, dialect: Dialect, frames: int) -> None:
    module, autoencoder = made(family, dialect)
    latents = random_latents(family, frames, *sides(family), batch=2 if frames == 5 else 1)
    expected = own_decode(module, latents)
    assert expected.shape[2] == frames and expected.std() > 0.01
    plans: list[dict[str, Any]] = [{"rows": 16, "frames": 12}, {"frames": 3, "layout": "channels-last"}]
    if frames in (5, 17):
        plans += [{}, {"rows": 1}, {"frames": 8}, {"frames": 1}, {"frames": 999}]
        plans += [{"rows": 24, "layout": "channels-last"}]
    for plan in plans:
        output = autoencoder.decode(latents, run_of(**plan))
        assert difference(output, expected) < CLOSE, plan


@each_module
@pytest.mark.parametrize("frames", [1, 5, 9, 17])
def test_encodes_are_the_modules_own(family: Family, dialect: Dialect, frames: int) -> None:
    module, autoencoder = made(family, dialect)
    pixels = random_pixels(frames, *sides(family), batch=2 if frames == 5 else 1)
    expected = own_encode(module, pixels)
    assert expected.shape[2] == 1 + (frames - 1) // 4 and expected.std() > 0.01
    plans: list[dict[str, Any]] = [{}, {"frames": 8, "layout": "channels-last"}]
    for plan in plans:
        output = autoencoder.encode(pixels, run_of(**plan))
        assert difference(output, expected) < CLOSE, plan


@each_module
def test_frames_that_make_no_whole_latent_frame_are_left_out(family: Family, dialect: Dialect) -> None:
    _, autoencoder = made(family, dialect)
    pixels = random_pixels(8, *sides(family))
    output = autoencoder.encode(pixels, run_of())
    assert torch.equal(output, autoencoder.encode(pixels[:, :, :5], run_of()))


def test_clips_come_out_the_same_to_the_bit_in_chunks_of_any_length() -> None:
    _, autoencoder = made("wan-2.1", "diffusers")
    latents = random_latents("wan-2.1", 13, 24, 40)
    expected = autoencoder.decode(latents, run_of())
    for frames in (1, 2, 5, 8, 11, 16):
        assert torch.equal(autoencoder.decode(latents, run_of(frames=frames)), expected), frames


@each_module
def test_frames_leave_as_they_come(family: Family, dialect: Dialect) -> None:
    _, autoencoder = made(family, dialect)
    height, width = sides(family)
    latents = random_latents(family, 13, height, width, batch=2)
    expected = autoencoder.decode(latents, run_of())
    for frames, at_once in ((None, 4), (8, 8), (2, 2)):
        taken: list[tuple[int, Tensor]] = []
        run = run_of(frames=frames, on_frames=lambda values, first: taken.append((first, values)))  # noqa: B023
        rest = autoencoder.decode(latents, run)
        assert rest.shape == (2, 3, 0, height, width)
        assert all(values.shape[2] <= at_once for _, values in taken)
        firsts = [first for first, _ in taken]
        half = len(firsts) // 2
        assert firsts[0] == 0 and firsts[:half] == firsts[half:] == sorted(set(firsts)) and len(firsts) > 2
        clips = [torch.cat([values for _, values in part], 2) for part in (taken[:half], taken[half:])]
        assert torch.equal(torch.cat(clips), expected)


@each_module
def test_cancelled_and_failed_attempts_leave_nothing_in_the_module(family: Family, dialect: Dialect) -> None:
    module, autoencoder = made(family, dialect)
    latents = random_latents(family, 5, *sides(family))
    pixels = random_pixels(5, *sides(family))
    state = {name: dict(part.__dict__) for name, part in module.named_modules()}
    decoded, encoded = autoencoder.decode(latents, run_of()), autoencoder.encode(pixels, run_of())

    for last in (0, 1, 30, 100):
        asked = iter(range(10_000))
        ended = lambda asked=asked, last=last: next(asked) >= last  # noqa: E731
        with pytest.raises(Cancelled):
            autoencoder.decode(latents, run_of(is_cancelled=ended))
        assert next(asked) == last + 1, "nothing runs after a cancellation"
        with pytest.raises(Cancelled):
            autoencoder.encode(pixels, run_of(is_cancelled=lambda: True))

    def fail(_values: Tensor, first: int) -> None:
        if first > 0:
            raise MemoryError

    with pytest.raises(MemoryError):
        autoencoder.decode(latents, run_of(on_frames=fail))
    for name, part in module.named_modules():
        assert part.__dict__.keys() == state[name].keys(), name
        assert all(part.__dict__[key] is value for key, value in state[name].items()), name
    assert torch.equal(autoencoder.decode(latents, run_of()), decoded)
    assert torch.equal(autoencoder.encode(pixels, run_of()), encoded)
    assert difference(own_decode(module, latents), decoded) < CLOSE


@each_module
def test_progress_goes_up_to_its_end(family: Family, dialect: Dialect) -> None:
    _, autoencoder = made(family, dialect)
    latents, pixels = random_latents(family, 9, *sides(family), batch=2), random_pixels(9, *sides(family), batch=2)
    for work in (
        lambda run: autoencoder.decode(latents, run),
        lambda run: autoencoder.encode(pixels, run),
    ):
        told: list[tuple[int, int]] = []
        work(run_of(frames=8, on_progress=lambda done, total: told.append((done, total))))  # noqa: B023
        assert len({total for _, total in told}) == 1 and told[-1][0] == told[-1][1]
        assert [done for done, _ in told] == sorted(done for done, _ in told)
        # The halves are as much work as each other.
        assert any(0.4 < done / total < 0.6 for done, total in told)


@pytest.mark.parametrize("family", ["wan-2.1", "wan-2.2"])
def test_first_frames_in_f16_are_not_saturated_as_the_modules_own_are(family: Family) -> None:
    module, autoencoder = made(family, "comfyui")
    *_, last = (
        parameter
        for name, parameter in module.named_parameters()
        if name.startswith("decoder.upsamples") and name.endswith("residual.6.bias")
    )
    with torch.no_grad():
        # A pixel's length over all channels is beyond f16 then, though each value of it is not.
        last.fill_(30_000.0)
    latents = random_latents(family, 5, *sides(family))
    expected = autoencoder.decode(latents, run_of())
    own = own_decode(copy.deepcopy(module).half(), latents.half())
    assert difference(own[:, :, :1], expected[:, :, :1]) > 0.1 or not own.isfinite().all()
    mixed = autoencoder.decode(latents, run_of(precision=records.MixedPrecision(dtype="f16")))
    assert difference(mixed[:, :, :1], expected[:, :, :1]) < 0.05
    assert difference(mixed, expected) < 0.05


@pytest.mark.parametrize("is_mixed", [False, True])
def test_states_are_in_the_type_of_convolutions_and_frames_between_layers_are_not(is_mixed: bool) -> None:
    module, _ = made("wan-2.1", "diffusers")
    structure = find_structure(module)
    assert structure is not None
    precision = records.MixedPrecision(dtype="bf16") if is_mixed else records.UniformPrecision(dtype="bf16")
    to = Format.of(run_of(precision=precision), False)
    frames: list[Tensor] = []
    latents = random_latents("wan-2.1", 9, 16, 24)
    with torch.no_grad(), Blocks.of(module) as blocks:
        chunks = Chunks.of(to.run.plan, 4, 3)
        steps, bands = decoder_steps(structure.decoder), Bands(None, 16)
        clip = ClipDecode(structure, steps, to, blocks, bands, chunks, lambda _: None)
        clip.run(latents, frames.append)
    # The last layer keeps sums, which are no convolution's input.
    kept = [frame for past in clip.pasts[:-1] for frame in past.frames]
    assert len(kept) > 40 and {frame.dtype for frame in kept} == {torch.bfloat16}
    assert {frame.dtype for frame in clip.pasts[-1].frames} == {torch.float32 if is_mixed else torch.bfloat16}
    assert {part.dtype for part in frames} == {torch.float32 if is_mixed else torch.bfloat16}


@each_module
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_weights_of_another_type_are_cast_for_the_call(family: Family, dialect: Dialect, stored: torch.dtype) -> None:
    module, autoencoder = made(family, dialect, dtype=stored)
    wide = copy.deepcopy(module).float()
    latents, pixels = random_latents(family, 5, *sides(family)), random_pixels(5, *sides(family))
    assert difference(autoencoder.decode(latents, run_of()), own_decode(wide, latents)) < CLOSE
    assert difference(autoencoder.encode(pixels, run_of()), own_encode(wide, pixels)) < CLOSE
    assert {parameter.dtype for parameter in module.parameters()} == {stored}
    narrow = run_of(precision=records.UniformPrecision(dtype="bf16"))
    assert difference(found(wide).decode(latents, narrow), own_decode(wide, latents)) < 0.1


def test_modules_in_f64_stay_in_it() -> None:
    for family, dialect in MODULES:
        if dialect == "comfyui":
            continue
        module, autoencoder = made(family, dialect, dtype=torch.float64)
        latents, pixels = random_latents(family, 5, 16, 32).double(), random_pixels(5, 16, 32).double()
        # The module's own upsampling rounds to f32.
        assert difference(autoencoder.decode(latents, run_of(frames=8, rows=8)), own_decode(module, latents)) < 2e-7
        assert difference(autoencoder.encode(pixels, run_of()), own_encode(module, pixels)) < 1e-12


@pytest.mark.parametrize("family", ["wan-2.1", "wan-2.2"])
def test_comfyuis_own_ways_with_weights_count(family: Family) -> None:
    module, autoencoder = made(family, "comfyui")
    latents = random_latents(family, 5, *sides(family))
    plain = own_decode(module, latents)
    decoder: Any = module.get_submodule("decoder")
    # As a LoRA or a patch in low memory has it.
    decoder.conv1.weight_function = [lambda weight: weight * 0.5]
    expected = own_decode(module, latents)
    assert difference(expected, plain) > 1e-3
    assert difference(autoencoder.decode(latents, run_of()), expected) < CLOSE


@pytest.mark.parametrize("family", ["wan-2.1", "wan-2.2", "qwen-image"])
def test_weights_that_accelerate_brings_layer_by_layer_are_there(family: Family) -> None:
    accelerate = pytest.importorskip("accelerate")
    module, autoencoder = made(family, "diffusers")
    latents, pixels = random_latents(family, 5, *sides(family)), random_pixels(5, *sides(family))
    decoded, encoded = autoencoder.decode(latents, run_of()), autoencoder.encode(pixels, run_of())
    accelerate.cpu_offload(module, execution_device=torch.device("cpu"))
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}
    offloaded = found(module)
    assert torch.equal(offloaded.decode(latents, run_of()), decoded)
    assert torch.equal(offloaded.encode(pixels, run_of()), encoded)
    assert {parameter.device.type for parameter in module.parameters()} == {"meta"}


@pytest.mark.parametrize("level", ["block_level", "leaf_level"])
def test_groups_that_diffusers_offloads_are_brought_and_taken_away(level: str) -> None:
    hooks = pytest.importorskip("diffusers.hooks")
    module, autoencoder = made("wan-2.2", "diffusers")
    latents = random_latents("wan-2.2", 5, *sides("wan-2.2"))
    decoded = autoencoder.decode(latents, run_of())
    place = torch.device("cpu")
    options = {"num_blocks_per_group": 1} if level == "block_level" else {}
    hooks.apply_group_offloading(module, onload_device=place, offload_device=place, offload_type=level, **options)
    moved: list[str] = []
    group = type(next(iter(_groups(module))))
    before = group.onload_, group.offload_
    group.onload_ = lambda self: (moved.append("on"), before[0](self))
    group.offload_ = lambda self: (moved.append("off"), before[1](self))
    try:
        assert torch.equal(found(module).decode(latents, run_of()), decoded)
    finally:
        group.onload_, group.offload_ = before
    assert moved.count("on") == moved.count("off") > 3


def _groups(module: nn.Module) -> list[Any]:
    registries = [getattr(part, "_diffusers_hook", None) for part in module.modules()]
    hooks = [hook for registry in registries if registry is not None for hook in registry.hooks.values()]
    return [hook.group for hook in hooks if hasattr(hook, "group")]


@each_module
def test_layers_that_somebody_has_changed_are_called(family: Family, dialect: Dialect) -> None:
    module, autoencoder = made(family, dialect)
    latents = random_latents(family, 5, *sides(family))
    plain = own_decode(module, latents)
    for name, part in module.named_modules():
        if not name.startswith("decoder") or not hasattr(part, "kernel_size"):
            continue
        forward: Callable[..., Tensor] = part.forward
        part.forward = lambda *values, forward=forward, **named: forward(*values, **named) * 1.02
    expected = own_decode(module, latents)
    assert difference(expected, plain) > 1e-3
    assert difference(autoencoder.decode(latents, run_of(rows=16)), expected) < CLOSE


def test_what_is_known_of_a_module_is_what_it_is() -> None:
    for family, dialect in MODULES:
        if dialect == "comfyui" and not has_comfyui():
            continue
        _, autoencoder = made(family, dialect)
        assert autoencoder.family == ("wan-2.2" if family == "wan-2.2" else "wan-2.1")
        assert (autoencoder.dialect, autoencoder.is_video) == (dialect, True)
        assert (autoencoder.spatial_scale, autoencoder.temporal_scale) == (spatial_scale(family), 4)
        assert autoencoder.latent_channels == random_latents(family, 1, 16, 16).shape[1]
    assert CausalAutoencoder.find(nn.Linear(2, 2)) is None
    assert CausalAutoencoder.find(nn.Sequential()) is None


@each_module
def test_shapes_are_told_without_a_value(family: Family, dialect: Dialect) -> None:
    module, _ = made(family, dialect, dtype=torch.bfloat16)
    state = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    shapes = found(module.to("meta")).shapes()
    assert {name: shape for name, (_, shape) in shapes.items()} == state
    assert {dtype for dtype, _ in shapes.values()} == {"BF16"}


def test_what_can_not_be_carried_out_is_refused_in_one_line() -> None:
    _, autoencoder = made("wan-2.1", "diffusers")
    latents, pixels = random_latents("wan-2.1", 5, 16, 24), random_pixels(5, 16, 24)
    blended = run_of()
    blended.plan = replace(blended.plan, space=records.BlendedSpace(height=8, width=8, overlap=0))
    refused: list[Callable[[], Tensor]] = [
        lambda: autoencoder.decode(latents[0], run_of()),
        lambda: autoencoder.decode(latents[:, :3], run_of()),
        lambda: autoencoder.decode(latents[:, :, :0], run_of()),
        lambda: autoencoder.encode(pixels[:, :1], run_of()),
        lambda: autoencoder.encode(pixels[..., :20], run_of()),
        lambda: autoencoder.encode(pixels, run_of(rows=8)),
        lambda: autoencoder.decode(latents, blended),
    ]
    for work in refused:
        with pytest.raises(PlanError) as raised:
            work()
        assert str(raised.value) and "\n" not in str(raised.value)


def peak_of(work: Callable[[], object]) -> int:
    """The most bytes of tensors, and of what convolutions hold meanwhile, beyond those before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        work()
    recorded: Any = profile.profiler
    events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def check_peak(autoencoder: CausalAutoencoder, latents: Tensor, run: Run) -> None:
    """Compares what a decode holds with what the plan was priced at."""
    frames = 1 + (latents.shape[2] - 1) * 4
    height, width = (side * autoencoder.spatial_scale for side in latents.shape[3:])
    model = model_of_autoencoder(autoencoder)
    assert (model.kind, model.decode(device_of("cpu"), width=width, height=height).request.model.family) == (
        "video-vae",
        autoencoder.family,
    )
    quote = model.decode(device_of("cpu"), width=width, height=height, frames=frames)
    run = replace(run, on_frames=lambda _values, _first: None)
    peak, estimate = peak_of(lambda: autoencoder.decode(latents, run)), quote.estimate(run.plan).peak_bytes
    assert abs(peak / estimate - 1) < NEAR, (run.plan.space, run.plan.time, peak, estimate)


@pytest.mark.parametrize(
    ("family", "dialect", "width", "height"),
    [
        ("wan-2.1", "diffusers", "narrow", 64),
        ("wan-2.2", "comfyui", "tiny", 128),
        ("wan-2.2", "diffusers", "tiny", 128),
    ],
)
def test_peaks_are_near_their_estimates(family: Family, dialect: Dialect, width: Width, height: int) -> None:
    _, autoencoder = made(family, dialect, width=width)
    latents = random_latents(family, 9, height, height * 3 // 2, width_of=width)
    plans: list[dict[str, Any]] = [{"rows": 16}, {}, {"frames": 8}]
    for plan in plans:
        check_peak(autoencoder, latents, run_of(**plan))


@pytest.mark.parametrize("dialect", ["diffusers", "comfyui"])
def test_peaks_of_wan_at_its_published_width_and_17_frames_are_near_their_estimates(dialect: Dialect) -> None:
    module, autoencoder = made("wan-2.1", dialect, width="published")
    latents = random_latents("wan-2.1", 17, 64, 96, width_of="published")
    check_peak(autoencoder, latents, run_of(rows=16))
    small = latents[:, :, :2, :4, :4]
    assert difference(autoencoder.decode(small, run_of(rows=16)), own_decode(module, small)) < CLOSE


def test_what_is_held_does_not_grow_with_the_clip() -> None:
    _, autoencoder = made("wan-2.1", "diffusers")
    latents = random_latents("wan-2.1", 33, 24, 40)
    run = run_of(on_frames=lambda _values, _first: None)
    short, long = (peak_of(lambda: autoencoder.decode(latents[:, :, :count], run)) for count in (4, 9))  # noqa: B023
    assert long <= 1.01 * short
