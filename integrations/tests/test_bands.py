"""KL autoencoders by plans: whole and in exact bands, against the modules' own decodes and encodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tilewright import records
from tilewright.executor import layers
from tilewright.executor.bands import held_pictures
from tilewright.executor.kl import KlAutoencoder
from tilewright.executor.running import Cancelled, PlanError, Run
from torch import Tensor, nn
from weights import TINY, kl_comfyui, kl_diffusers

torch.set_num_threads(1)

#: The largest difference from the module's own output, in f32.
CLOSE = 1e-5

MAKERS: dict[str, Callable[..., Any]] = {"diffusers": kl_diffusers, "comfyui": kl_comfyui}


def plan_of(
    height: int | None = None,
    *,
    dtype: records.Dtype = "f32",
    mixed: bool = False,
    layout: records.Layout = "channels-first",
    batch: int = 8,
    space: records.Space | None = None,
) -> records.Plan:
    """A plan: whole, or in exact bands of a height in pixels."""
    bands = records.WholeSpace() if height is None else records.ExactSpace(height=height, width=4096, overlap=0)
    precision = records.MixedPrecision(dtype=dtype) if mixed else records.UniformPrecision(dtype=dtype)
    return records.Plan(
        space=space or bands,
        time=records.WholeTime(),
        batch=batch,
        precision=precision,
        layout=layout,
        release="keep",
        offload=False,
        prefetch=0,
        reason="",
    )


def run_of(height: int | None = None, **plan: Any) -> Run:
    """An attempt on the processor that nobody ends."""
    return Run.of(plan_of(height, **plan), "cpu")


def own_decode(module: Any, latents: Tensor) -> Tensor:
    """The output of the module itself."""
    with torch.no_grad():
        decoded = module.decode(latents)
    return decoded if isinstance(decoded, Tensor) else decoded.sample


def own_encode(module: Any, pixels: Tensor) -> Tensor:
    """The moments that the module itself gives."""
    with torch.no_grad():
        if type(module).__module__.startswith("diffusers"):
            return module.encode(pixels).latent_dist.parameters
        moments = module.encoder(pixels)
        return module.quant_conv(moments) if hasattr(module, "quant_conv") else moments


def found(module: nn.Module) -> KlAutoencoder:
    """The autoencoder that a module is."""
    autoencoder = KlAutoencoder.find(module)
    assert autoencoder is not None
    return autoencoder


def noise(*shape: int, seed: int = 1) -> Tensor:
    """Values of a normal distribution."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def difference(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors of one shape."""
    assert one.shape == other.shape
    return (one.double() - other.double()).abs().max().item()


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("dialect", MAKERS)
def test_decodes_in_bands_are_the_modules_own(dialect: str, kind: str) -> None:
    module = MAKERS[dialect](kind)
    autoencoder = found(module)
    assert (autoencoder.dialect, autoencoder.is_video, autoencoder.temporal_scale) == (dialect, False, 1)
    # Bands of eight rows at the smallest size: 17 leave a last one of a single row.
    for shape in ((1, 17, 5), (2, 9, 8)):
        latents = noise(shape[0], autoencoder.latent_channels, *shape[1:])
        expected = own_decode(module, latents)
        for height in (None, 1, autoencoder.spatial_scale, 8 * autoencoder.spatial_scale, 100, 10_000):
            output = autoencoder.decode(latents, run_of(height))
            assert difference(output, expected) < CLOSE, (shape, height)
        output = autoencoder.decode(latents, run_of(1, layout="channels-last", batch=1))
        assert difference(output, expected) < CLOSE, shape


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("dialect", MAKERS)
def test_encodes_in_bands_are_the_modules_own(dialect: str, kind: str) -> None:
    module = MAKERS[dialect](kind)
    autoencoder = found(module)
    scale = autoencoder.spatial_scale
    # Odd sizes: halving leaves a row and a column out.
    for batch, height, width in ((1, 9 * scale, 5 * scale), (2, 8 * scale + 1, 6 * scale - 1)):
        pixels = noise(batch, 3, height, width).clamp(-1, 1)
        expected = own_encode(module, pixels)
        for band in (None, 1, 40, 10_000):
            output = autoencoder.encode(pixels, run_of(band))
            assert difference(output, expected) < CLOSE, (height, width, band)
        output = autoencoder.encode(pixels, run_of(40, layout="channels-last", batch=1))
        assert difference(output, expected) < CLOSE, (height, width)


def test_a_sums_mean_costs_the_squares_no_bits() -> None:
    module = kl_diffusers("tiny-sd")
    # Values far from zero: their squares have few bits left for the variance.
    module.decoder.conv_in.bias.data += 300.0
    latents = noise(1, 4, 20, 6)
    expected = own_decode(module.double(), latents.double())
    output = found(module.float()).decode(latents, run_of(16))
    own = difference(own_decode(module, latents), expected)
    assert difference(output, expected) < max(2 * own, CLOSE)


@pytest.mark.parametrize("dialect", MAKERS)
def test_narrow_types_are_close_and_mixed_ones_closer(dialect: str) -> None:
    module = MAKERS[dialect]("tiny-sdxl")
    autoencoder, latents = found(module), noise(2, 4, 12, 9)
    expected = own_decode(module, latents)
    for dtype, most in (("bf16", 0.2), ("f16", 0.02)):
        errors = []
        for mixed in (False, True):
            for height in (None, 16):
                output = autoencoder.decode(latents, run_of(height, dtype=dtype, mixed=mixed))
                assert output.dtype == torch.float32
                errors.append((output - expected).square().mean().sqrt().item())
        assert 0 < max(errors[2:]) < min(errors[:2]) and max(errors) < most / 4, errors
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    mixed = autoencoder.decode(latents, run_of(16, mixed=True))
    assert difference(mixed, expected) < CLOSE


@pytest.mark.parametrize("dialect", MAKERS)
def test_modules_in_other_types_run_in_the_plans(dialect: str) -> None:
    narrow = MAKERS[dialect]("tiny-flux", dtype=torch.bfloat16)
    wide = MAKERS[dialect]("tiny-flux")
    with torch.no_grad():
        for one, other in zip(wide.parameters(), narrow.parameters()):
            one.copy_(other)
    latents = noise(1, 16, 9, 6)
    for height in (None, 32):
        output = found(narrow).decode(latents, run_of(height))
        assert difference(output, own_decode(wide, latents)) < CLOSE
        pixels = noise(1, 3, 64, 40)
        assert difference(found(narrow).encode(pixels, run_of(height)), own_encode(wide, pixels)) < CLOSE
    assert {parameter.dtype for parameter in narrow.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("dialect", MAKERS)
def test_plans_in_f32_keep_modules_in_f64_in_their_type(dialect: str) -> None:
    module = MAKERS[dialect]("tiny-sd").double()
    autoencoder, latents = found(module), noise(1, 4, 9, 5).double()
    expected = own_decode(module, latents)
    first, last = "channels-first", "channels-last"
    for height, mixed, layout in ((None, False, first), (8, True, first), (8, False, last)):
        output = autoencoder.decode(latents, run_of(height, mixed=mixed, layout=layout))
        assert output.dtype == torch.float64
        assert difference(output, expected) < 1e-12
    narrow = autoencoder.decode(latents, run_of(8, dtype="bf16"))
    assert narrow.dtype == torch.float32


def test_inputs_may_be_of_any_type_and_order_and_stay_as_they_are() -> None:
    module = kl_diffusers("tiny-sd3")
    autoencoder, latents = found(module), noise(2, 9, 10, 16)
    forms = [latents.permute(0, 3, 1, 2)[:1], latents.permute(0, 3, 2, 1)[:, :, ::2], noise(1, 16, 9, 7)]
    forms += [form.to(dtype) for form in forms for dtype in (torch.float16, torch.bfloat16, torch.float64)]
    forms.append(noise(1, 16, 9, 7).requires_grad_())
    for given in forms:
        before, version = given.detach().clone(), given._version
        expected = own_decode(module, before.float())
        for height in (None, 8):
            output = autoencoder.decode(given, run_of(height))
            assert not output.requires_grad
            assert difference(output, expected) < CLOSE
        assert torch.equal(given, before) and given._version == version


def test_a_callers_autocast_changes_no_types() -> None:
    module = kl_diffusers("tiny-sd")
    autoencoder, latents = found(module), noise(1, 4, 9, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        output = autoencoder.decode(latents, run_of(8))
    assert difference(output, own_decode(module, latents)) < CLOSE


def state(module: nn.Module) -> dict[str, Any]:
    """All that can be seen of a module: tensors with the places of their values, and attributes of its parts."""
    tensors = {name: (one.data_ptr(), one._version) for name, one in module.state_dict(keep_vars=True).items()}
    parts = {name: {key: repr(value) for key, value in vars(part).items()} for name, part in module.named_modules()}
    return {"tensors": tensors, "parts": parts}


@pytest.mark.parametrize("dialect", MAKERS)
def test_modules_stay_as_they_are_after_success_and_failure(dialect: str) -> None:
    module = MAKERS[dialect]("tiny-sdxl")
    autoencoder, latents = found(module), noise(1, 4, 12, 9)
    before = state(module)
    autoencoder.decode(latents, run_of(16))
    asked = 0

    def end_later() -> bool:
        nonlocal asked
        asked += 1
        return asked > 40

    with pytest.raises(Cancelled):
        autoencoder.decode(latents, Run.of(plan_of(16), "cpu", is_cancelled=end_later))
    with pytest.raises(RuntimeError):
        # A width that no memory has.
        autoencoder.decode(latents[..., :1].expand(1, 4, 12, 1 << 40), run_of(16))
    assert state(module) == before


def test_progress_goes_up_to_all_of_it() -> None:
    autoencoder = found(kl_diffusers("tiny-sd"))
    for height, batch in ((None, 1), (8, 1), (8, 2)):
        told: list[tuple[int, int]] = []
        run = Run.of(plan_of(height, batch=batch), "cpu", on_progress=lambda done, total: told.append((done, total)))
        autoencoder.decode(noise(2, 4, 17, 5), run)
        assert told == sorted(told) and len(set(told)) > 8
        assert told[-1][0] == told[-1][1] and len({total for _, total in told}) == 1


def test_a_cancellation_is_seen_at_every_question() -> None:
    autoencoder, latents = found(kl_diffusers("tiny-sd")), noise(1, 4, 12, 9)
    for height in (None, 8):
        asked = 0

        def count(most: int) -> bool:
            nonlocal asked
            asked += 1
            return asked > most

        autoencoder.decode(latents, Run.of(plan_of(height), "cpu", is_cancelled=lambda: count(1_000_000)))
        total = asked
        assert total > 20
        for most in range(0, total, 7):
            asked = 0
            with pytest.raises(Cancelled):
                autoencoder.decode(latents, Run.of(plan_of(height), "cpu", is_cancelled=lambda most=most: count(most)))
            # Nothing more begins.
            assert asked == most + 1


@pytest.mark.parametrize("dialect", MAKERS)
def test_what_takes_long_is_divided_where_somebody_may_cancel(
    dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = MAKERS[dialect]("tiny-sd")
    autoencoder, latents, pixels = found(module), noise(1, 4, 40, 36), noise(1, 3, 80, 71)
    expected, moments = own_decode(module, latents), own_encode(module, pixels)
    rows: list[int] = []
    convolve = torch.nn.functional.conv2d

    def watched(values: Tensor, *arguments: Any, **named: Any) -> Tensor:
        rows.append(values.shape[2])
        return convolve(values, *arguments, **named)

    from tilewright.executor import kl_attention

    monkeypatch.setattr(torch.nn.functional, "conv2d", watched)
    monkeypatch.setattr(layers, "CPU_OPERATIONS", 1e5)
    monkeypatch.setattr(layers, "STRIP", 1 << 12)
    monkeypatch.setattr(kl_attention, "CPU_OPERATIONS", 1e5)
    monkeypatch.setattr(kl_attention, "LEAST_QUERIES", 100)
    for height in (None, 64):
        for layout in ("channels-first", "channels-last"):
            run = Run.of(plan_of(height, layout=layout), "cpu", is_cancelled=lambda: False)
            assert difference(autoencoder.decode(latents, run), expected) < CLOSE
            assert difference(autoencoder.encode(pixels, run), moments) < CLOSE
    # A convolution takes 16 rows at once and those beside them; PyTorch's own, of ComfyUI's layers, is not seen here.
    assert max(rows, default=0) <= 40
    rows.clear()
    autoencoder.decode(latents, run_of())
    assert dialect == "comfyui" or max(rows) == 80


def test_attention_may_be_of_any_processor() -> None:
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0, SlicedAttnProcessor

    class Other(AttnProcessor):
        """A processor that nobody knows."""

    module = kl_diffusers("tiny-sd")
    latents = noise(2, 4, 12, 9)
    for processor in (AttnProcessor(), AttnProcessor2_0(), SlicedAttnProcessor(1), Other()):
        module.set_attn_processor(processor)
        expected = own_decode(module, latents)
        for height in (None, 8):
            assert difference(found(module).decode(latents, run_of(height)), expected) < CLOSE, processor
    fused = kl_diffusers("tiny-sd")
    fused.fuse_qkv_projections()
    assert difference(found(fused).decode(latents, run_of(8)), own_decode(fused, latents)) < CLOSE
    without = kl_diffusers("tiny-sd", mid_block_add_attention=False)
    assert difference(found(without).decode(latents, run_of(8)), own_decode(without, latents)) < CLOSE
    pixels = noise(1, 3, 20, 16)
    assert difference(found(without).encode(pixels, run_of(8)), own_encode(without, pixels)) < CLOSE


@pytest.mark.parametrize(
    ("widths", "layers_per_block", "kept"),
    [
        ((128, 256, 512, 512), 3, [True, True, False]),
        ((8, 16, 32, 32), 3, [True, True, False]),
        ((16, 32, 64, 64), 3, [True, True, False]),
        ((32, 64, 64), 2, [True, False]),
        ((24, 40, 40), 2, [True, False]),
    ],
)
def test_only_the_largest_upsampled_picture_is_computed_twice(
    widths: tuple[int, ...], layers_per_block: int, kept: list[bool]
) -> None:
    levels = [(width, layers_per_block, index > 0) for index, width in reversed(list(enumerate(widths)))]
    assert held_pictures(widths[-1], levels, 3, True) == kept


@contextmanager
def meta_outside_of_calls(module: nn.Module) -> Any:
    """Weights that are there within accelerate's hooks alone."""
    from accelerate import cpu_offload
    from accelerate.hooks import remove_hook_from_submodules

    cpu_offload(module, execution_device=torch.device("cpu"))
    assert all(parameter.is_meta for parameter in module.parameters())
    yield
    assert all(parameter.is_meta for parameter in module.parameters())
    remove_hook_from_submodules(module)


def test_accelerates_hooks_bring_weights_and_take_them_away() -> None:
    module, latents, pixels = kl_diffusers("tiny-sd"), noise(1, 4, 12, 9), noise(1, 3, 20, 16)
    expected, moments = own_decode(module, latents), own_encode(module, pixels)
    with meta_outside_of_calls(module):
        autoencoder = found(module)
        for height in (None, 8):
            for layout in ("channels-first", "channels-last"):
                run = run_of(height, layout=layout)
                assert difference(autoencoder.decode(latents, run), expected) < CLOSE
                assert difference(autoencoder.encode(pixels, run), moments) < CLOSE


@pytest.mark.parametrize("offload_type", ["leaf_level", "block_level"])
def test_group_offloading_brings_weights_and_takes_them_away(offload_type: str, tmp_path: Any) -> None:
    module, latents, pixels = kl_diffusers("tiny-sd"), noise(1, 4, 12, 9), noise(1, 3, 20, 16)
    expected, moments = own_decode(module, latents), own_encode(module, pixels)
    # Values wait in files, so that nothing that is read outside of calls has them.
    module.enable_group_offload(
        onload_device=torch.device("cpu"),
        offload_device=torch.device("cpu"),
        offload_type=offload_type,
        offload_to_disk_path=str(tmp_path),
        **({"num_blocks_per_group": 1} if offload_type == "block_level" else {}),
    )
    autoencoder = found(module)
    for height in (None, 8):
        assert difference(autoencoder.decode(latents, run_of(height)), expected) < CLOSE
        assert difference(autoencoder.encode(pixels, run_of(height)), moments) < CLOSE


def test_layers_that_are_kept_in_fewer_bits_are_widened_by_their_hooks() -> None:
    module, latents = kl_diffusers("tiny-sd"), noise(1, 4, 12, 9)
    module.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)
    expected = own_decode(module, latents)
    for height in (None, 8):
        assert difference(found(module).decode(latents, run_of(height)), expected) < CLOSE
    assert torch.float8_e4m3fn in {parameter.dtype for parameter in module.parameters()}


def test_comfyuis_layers_change_their_weights_on_the_way() -> None:
    module, latents, pixels = kl_comfyui("tiny-sd", dtype=torch.float16), noise(1, 4, 12, 9), noise(1, 3, 20, 16)
    for part in module.modules():
        if hasattr(part, "comfy_cast_weights"):
            part.comfy_cast_weights = True
            part.weight_function = [lambda weight: weight * 1.01]
            part.bias_function = [lambda bias: bias + 0.01]
    expected, moments = own_decode(module, latents), own_encode(module, pixels)
    for height in (None, 8):
        for layout in ("channels-first", "channels-last"):
            run = run_of(height, layout=layout)
            assert difference(found(module).decode(latents, run), expected) < CLOSE
            assert difference(found(module).encode(pixels, run), moments) < CLOSE


def test_layers_of_others_are_called_with_their_hooks() -> None:
    class Doubled(nn.Conv2d):
        """A layer whose weights are not all that it does."""

        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    module, latents = kl_diffusers("tiny-sd"), noise(1, 4, 12, 9)
    plain = own_decode(module, latents)
    first = module.decoder.up_blocks[0].resnets[0]
    first.conv2.__class__ = Doubled
    calls: list[int] = []
    handle = first.conv1.register_forward_hook(lambda *_: calls.append(1))
    expected = own_decode(module, latents)
    assert difference(plain, expected) > 0.01
    calls.clear()
    for height in (None, 8):
        assert difference(found(module).decode(latents, run_of(height)), expected) < CLOSE
    assert len(calls) > 2
    handle.remove()


def test_only_what_is_understood_is_found() -> None:
    from diffusers import AutoencoderTiny

    assert KlAutoencoder.find(AutoencoderTiny()) is None
    assert KlAutoencoder.find(nn.Conv2d(1, 1, 1)) is None
    changed = kl_diffusers("tiny-sd")
    autoencoder = found(changed)
    changed.decoder.up_blocks[0].forward = lambda hidden: hidden
    assert KlAutoencoder.find(changed) is None
    with pytest.raises(PlanError, match="changed since it was found"):
        autoencoder.decode(noise(1, 4, 8, 8), run_of())
    circular = kl_diffusers("tiny-sd")
    circular.decoder.conv_in.padding_mode = "circular"
    assert KlAutoencoder.find(circular) is None
    assert KlAutoencoder.find(kl_comfyui("tiny-sd", batch_norm_latent=True)) is None
    families = {kind: found(kl_diffusers(kind)).family for kind in TINY}
    assert families == {kind: kind.removeprefix("tiny-") for kind in TINY}


def test_what_a_plan_is_not_for_is_refused_in_one_line() -> None:
    autoencoder = found(kl_diffusers("tiny-sd"))
    blended = records.BlendedSpace(height=64, width=64, overlap=16)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: autoencoder.decode(noise(1, 16, 8, 8), run_of()), r"latents: expected \[N, 4, H, W\]"),
        (lambda: autoencoder.decode(noise(4, 8, 8), run_of()), r"latents: expected \[N, 4, H, W\]"),
        (lambda: autoencoder.decode(noise(1, 4, 8, 8).int(), run_of()), "of floats"),
        (lambda: autoencoder.decode(noise(0, 4, 8, 8), run_of()), "too small"),
        (lambda: autoencoder.encode(noise(1, 3, 16, 1), run_of()), "too small: at least 1 sample of 2x2"),
        (lambda: autoencoder.encode(noise(1, 4, 16, 16), run_of()), r"pictures: expected \[N, 3, H, W\]"),
        (lambda: autoencoder.decode(noise(1, 4, 8, 8), run_of(space=blended)), "blended"),
        (lambda: autoencoder.decode(noise(1, 4, 8, 8), run_of(0)), "0 rows"),
        (lambda: run_of(dtype="i8"), "can't run in i8"),
    ]
    for call, said in cases:
        with pytest.raises(PlanError, match=said) as refused:
            call()
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("dialect", MAKERS)
def test_shapes_are_those_of_a_file(dialect: str, tmp_path: Any) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    module = MAKERS[dialect]("tiny-sd", dtype=torch.bfloat16)
    save_file({name: one.contiguous() for name, one in module.state_dict().items()}, tmp_path / "vae.safetensors")
    with safe_open(tmp_path / "vae.safetensors", "pt") as file:
        stored = {name: file.get_slice(name) for name in file.keys()}
        expected = {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in stored.items()}
    assert found(module).shapes() == expected
    assert found(module.to("meta")).shapes() == expected
