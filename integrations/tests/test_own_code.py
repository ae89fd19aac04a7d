"""Code of a user's own in an autoencoder: it counts in governed decodes and encodes, as it does in the module's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from causal_weights import causal_autoencoder, has_comfyui
from tilewright import records
from tilewright.executor import own_code
from tilewright.executor.autoencoders import find_autoencoder
from tilewright.executor.governor import VaeGovernor
from tilewright.executor.replacing import Replacement
from torch import Tensor, nn
from weights import kl_comfyui, kl_diffusers

torch.set_num_threads(1)

#: The largest difference from the module's own output, in f32, of a plan; the module's own way has none.
CLOSE = 1e-5

MODULES: dict[str, Callable[[], Any]] = {
    "kl diffusers": lambda: kl_diffusers("tiny-sd"),
    "kl comfyui": lambda: kl_comfyui("tiny-sd"),
    "wan-2.1 diffusers": lambda: causal_autoencoder("wan-2.1", "diffusers"),
    "wan-2.2 diffusers": lambda: causal_autoencoder("wan-2.2", "diffusers"),
    "qwen-image diffusers": lambda: causal_autoencoder("qwen-image", "diffusers"),
    "wan-2.1 comfyui": lambda: causal_autoencoder("wan-2.1", "comfyui"),
    "wan-2.2 comfyui": lambda: causal_autoencoder("wan-2.2", "comfyui"),
}

#: Modules that are walked through, of each kind, by the stage that they run in.
PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "kl diffusers": {
        "decode": (
            "decoder",
            "decoder.mid_block",
            "decoder.mid_block.attentions.0",
            "decoder.mid_block.attentions.0.group_norm",
            "decoder.mid_block.resnets.1",
            "decoder.up_blocks.1",
            "decoder.up_blocks.0.upsamplers.0",
            "decoder.up_blocks.0.resnets.0.norm1",
            "decoder.up_blocks.0.resnets.0.nonlinearity",
            "decoder.up_blocks.0.resnets.0.dropout",
            "decoder.conv_norm_out",
            "decoder.conv_act",
        ),
        "encode": ("encoder", "encoder.down_blocks.0", "encoder.down_blocks.0.downsamplers.0", "encoder.conv_norm_out"),
    },
    "kl comfyui": {
        "decode": ("decoder", "decoder.mid.attn_1", "decoder.mid.block_1", "decoder.up.1.upsample", "decoder.norm_out"),
        "encode": ("encoder", "encoder.mid.block_2", "encoder.norm_out"),
    },
    "wan-2.1 diffusers": {
        "decode": (
            "decoder",
            "decoder.mid_block",
            "decoder.mid_block.attentions.0",
            "decoder.up_blocks.1",
            "decoder.up_blocks.0.resnets.0",
            "decoder.up_blocks.0.upsamplers.0",
            "decoder.up_blocks.0.upsamplers.0.resample.0",
            "decoder.nonlinearity",
        ),
        "encode": ("encoder", "encoder.mid_block.resnets.0"),
    },
    "wan-2.2 diffusers": {
        "decode": ("decoder.up_blocks.0", "decoder.up_blocks.0.avg_shortcut"),
        "encode": ("encoder",),
    },
    "qwen-image diffusers": {"decode": ("decoder.mid_block", "decoder.up_blocks.0.resnets.0"), "encode": ("encoder",)},
    "wan-2.1 comfyui": {"decode": ("decoder", "decoder.middle.1", "decoder.upsamples.0"), "encode": ("encoder",)},
    "wan-2.2 comfyui": {"decode": ("decoder", "decoder.upsamples.0.avg_shortcut"), "encode": ("encoder",)},
}

EACH_PLACE = [
    (kind, stage, place) for kind, stages in PLACES.items() for stage, places in stages.items() for place in places
]


def made(kind: str) -> Any:
    """A module with random weights."""
    if kind.endswith("comfyui") and not has_comfyui():
        pytest.skip("ComfyUI is not here")
    return MODULES[kind]()


@functools.cache
def kept(kind: str) -> Any:
    """The autoencoder in a module for tests that put back what they change."""
    return find_autoencoder(made(kind))


def values_of(kind: str, stage: str) -> Tensor:
    """Latents or pixels."""
    channels = 3 if stage == "encode" else kept(kind).latent_channels
    side = 32 if stage == "encode" else 8 if kind.startswith("kl") else 4
    shape = (1, channels, side, side) if kind.startswith("kl") else (1, channels, 1, side, side)
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).clamp(-1, 1)


def own_output(module: Any, kind: str, stage: str, values: Tensor) -> Tensor:
    """The output of the module itself."""
    with torch.no_grad():
        if stage == "decode":
            decoded = module.decode(values)
            return decoded if isinstance(decoded, Tensor) else decoded.sample
        if kind == "kl comfyui":
            return module.quant_conv(module.encoder(values))
        encoded = module.encode(values)
        return encoded if isinstance(encoded, Tensor) else encoded.latent_dist.parameters


def governor_of(module: Any) -> VaeGovernor:
    """A governor whose plans are whole and in f32."""
    autoencoder = find_autoencoder(module)
    assert autoencoder is not None
    return VaeGovernor(autoencoder, "fixed", settings={"precision": "f32"})


def note_of(governor: VaeGovernor) -> str | None:
    """The reason for which the latest work was the module's own."""
    fallback = governor.records[-1].fallback
    return None if fallback is None else fallback.detail


def check(module: Any, kind: str, stage: str, note: str, plain: Tensor | None) -> None:
    """The governed output is the module's own, the user's code included, and the record says why."""
    values, governor = values_of(kind, stage), governor_of(module)
    expected = own_output(module, kind, stage, values)
    assert plain is None or not torch.allclose(expected, plain, atol=1e-3), "the user's code does something"
    output = getattr(governor, stage)(values)
    if kind == "kl comfyui" and stage == "encode" and output.shape != expected.shape:
        # There are no moments to be had.
        expected = module.encode(values)
    assert torch.equal(output, expected)
    found = note_of(governor)
    assert found is not None and note in found, found


@pytest.fixture(scope="module")
def plain() -> Callable[[str, str], Tensor]:
    """The output of a kind that nobody has changed."""

    @functools.cache
    def output(kind: str, stage: str) -> Tensor:
        return own_output(made(kind), kind, stage, values_of(kind, stage))

    return output




@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("stage", ["decode", "encode"])
def test_plans_are_carried_out_on_what_nobody_has_changed(kind: str, stage: str) -> None:
    module, values = made(kind), values_of(kind, stage)
    governor = governor_of(module)
    expected = own_output(module, kind, stage, values)
    # Hooks that only watch, as the ComfyUI pack's do, and the other half's are nothing to a plan.
    calls: list[int] = []

    def watch(*_: Any) -> None:
        calls.append(1)

    watch.__dict__[own_code.WATCHES] = True
    for layer in module.modules():
        layer.register_forward_pre_hook(watch)
    module.register_forward_hook(lambda *_: None)
    other = module.encoder if stage == "decode" else module.decoder
    other.register_forward_hook(lambda *_: None)
    output = getattr(governor, stage)(values)
    assert (output - expected).abs().max() < CLOSE
    assert note_of(governor) is None
    assert isinstance(governor.records[-1].plan, records.Plan)


@pytest.mark.parametrize(("kind", "stage", "place"), EACH_PLACE)
def test_hooks_of_modules_that_are_walked_through_run(
    kind: str, stage: str, place: str, plain: Callable[[str, str], Tensor]
) -> None:
    module = kept(kind).module
    part = module.get_submodule(place)

    def hook(_module: nn.Module, _given: Any, output: Any) -> Any:
        # No norm after it makes up for that.
        return [hook(part, _given, one) for one in output] if isinstance(output, list) else output + output.abs()

    handle = part.register_forward_hook(hook)
    try:
        check(module, kind, stage, f"{place} has a forward hook of yours", plain(kind, stage))
    finally:
        handle.remove()


@pytest.mark.parametrize("with_kwargs", [False, True])
def test_hooks_before_a_module_run(with_kwargs: bool, plain: Callable[[str, str], Tensor]) -> None:
    module = made("kl diffusers")
    hook: Any = (lambda _, given: (given[0] * 2 + 1, *given[1:])) if not with_kwargs else (
        lambda _, given, named: ((given[0] * 2 + 1, *given[1:]), named)
    )
    module.decoder.up_blocks[1].register_forward_pre_hook(hook, with_kwargs=with_kwargs)
    note = "decoder.up_blocks.1 has a forward pre-hook of yours"
    check(module, "kl diffusers", "decode", note, plain("kl diffusers", "decode"))


@pytest.mark.parametrize("is_pre", [False, True])
def test_hooks_of_all_modules_run(is_pre: bool, plain: Callable[[str, str], Tensor]) -> None:
    modules = nn.modules.module
    if is_pre:
        handle = modules.register_module_forward_pre_hook(
            lambda module, given: (given[0] + 1,) if isinstance(module, nn.SiLU) else None
        )
    else:
        handle = modules.register_module_forward_hook(
            lambda module, _, output: output * 2 if isinstance(module, nn.SiLU) else None
        )
    try:
        unlike = plain("kl diffusers", "decode") if not is_pre else None
        check(made("kl diffusers"), "kl diffusers", "decode", "a hook of yours is on all modules", unlike)
    finally:
        handle.remove()


def changed(own: Callable[..., Any]) -> Callable[..., Any]:
    """A method that says it is the library's, and is not."""

    @functools.wraps(own)
    def method(*args: Any, **kwargs: Any) -> Any:
        output = own(*args, **kwargs)
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, Tensor):
            return (first * 1.5 + 0.1, *output[1:]) if isinstance(output, tuple) else first * 1.5 + 0.1
        if hasattr(output, "sample") and isinstance(output.sample, Tensor):
            output.sample = output.sample * 1.5 + 0.1
        else:
            output.latent_dist.parameters = output.latent_dist.parameters * 1.5 + 0.1
        return output

    return method


METHODS = [
    ("kl diffusers", "decode", "", "decode"),
    ("kl diffusers", "decode", "", "_decode"),
    ("kl diffusers", "encode", "", "encode"),
    ("kl diffusers", "encode", "", "_encode"),
    ("kl diffusers", "decode", "decoder", "forward"),
    ("kl diffusers", "decode", "decoder.up_blocks.0", "forward"),
    ("kl diffusers", "decode", "decoder.mid_block.resnets.0", "forward"),
    ("kl diffusers", "decode", "decoder.conv_act", "forward"),
    ("kl diffusers", "encode", "encoder", "forward"),
    ("kl comfyui", "decode", "", "decode"),
    ("kl comfyui", "encode", "", "encode"),
    ("kl comfyui", "decode", "decoder", "forward"),
    ("kl comfyui", "encode", "encoder", "forward"),
    ("wan-2.1 diffusers", "decode", "", "_decode"),
    ("wan-2.1 diffusers", "encode", "", "encode"),
    ("wan-2.1 diffusers", "decode", "decoder.up_blocks.0", "forward"),
    ("wan-2.1 diffusers", "decode", "decoder.up_blocks.0.resnets.0", "forward"),
    ("wan-2.2 diffusers", "decode", "decoder.up_blocks.0.avg_shortcut", "forward"),
    ("qwen-image diffusers", "decode", "decoder.mid_block", "forward"),
    ("wan-2.1 comfyui", "decode", "", "decode"),
    ("wan-2.1 comfyui", "encode", "", "encode"),
    ("wan-2.1 comfyui", "decode", "decoder.middle.0", "forward"),
    ("wan-2.2 comfyui", "decode", "decoder", "forward"),
]


def said(place: str, name: str) -> str:
    """The note on a method."""
    return f"{place} has a {name} of yours" if place else f"the module's {name} is yours"


@pytest.mark.parametrize(("kind", "stage", "place", "name"), METHODS)
def test_methods_of_a_users_class_run(
    kind: str, stage: str, place: str, name: str, plain: Callable[[str, str], Tensor]
) -> None:
    module = made(kind)
    part = module.get_submodule(place)
    library = type(part)
    # A class of the same name, so that the structure is found.
    part.__class__ = type(library.__name__, (library,), {name: changed(getattr(library, name))})
    unlike = None if (kind, stage) == ("kl comfyui", "encode") else plain(kind, stage)
    check(module, kind, stage, said(place, name), unlike)


@pytest.mark.parametrize(("kind", "stage", "place", "name"), METHODS)
def test_methods_put_on_an_object_run(
    kind: str, stage: str, place: str, name: str, plain: Callable[[str, str], Tensor]
) -> None:
    module = made(kind)
    # They may come after the autoencoder was found, too.
    governor, values = governor_of(module), values_of(kind, stage)
    part = module.get_submodule(place)
    setattr(part, name, changed(getattr(part, name)))
    expected = own_output(module, kind, stage, values)
    if (kind, name) == ("kl comfyui", "encode"):
        expected = module.encode(values)
    assert expected.shape != plain(kind, stage).shape or not torch.allclose(expected, plain(kind, stage), atol=1e-3)
    output = getattr(governor, stage)(values)
    if output.shape != expected.shape:
        # There are no moments to be had.
        expected = module.encode(values)
    assert torch.equal(output, expected)
    found = note_of(governor)
    assert found is not None
    assert said(place, name) in found or "changed since it was found" in found


def test_methods_of_the_librarys_class_that_are_replaced_run(monkeypatch: pytest.MonkeyPatch) -> None:
    module, kind = made("kl diffusers"), "kl diffusers"
    governor, values = governor_of(module), values_of(kind, "decode")
    governor.decode(values)
    assert note_of(governor) is None
    of = type(module.decoder)
    monkeypatch.setattr(of, "forward", changed(of.forward))
    assert torch.equal(governor.decode(values), own_output(module, kind, "decode", values))
    assert "decoder has a forward of yours" in (note_of(governor) or "")
    monkeypatch.undo()
    governor.decode(values)
    assert note_of(governor) is None


def test_tilewrights_own_methods_are_passed_over() -> None:
    module, kind = made("kl diffusers"), "kl diffusers"
    governor, values = governor_of(module), values_of(kind, "decode")
    plain = own_output(module, kind, "decode", values)

    def decode(_: Any, latents: Tensor, **__: Any) -> Any:
        return (governor.decode(latents),)

    replacement = Replacement(module, {"decode": decode})
    replacement.install()
    assert (module.decode(values)[0] - plain).abs().max() < CLOSE
    assert note_of(governor) is None
    # A user's wrapper around it calls it, and is not left out.
    module.decode = lambda latents, own=module.decode: own(latents)[0] * 2
    assert (module.decode(values) - 2 * plain).abs().max() < CLOSE
    assert note_of(governor) is None
    replacement.remove()


def test_a_users_method_below_tilewrights_own_runs() -> None:
    module, kind = made("kl diffusers"), "kl diffusers"
    module.decode = changed(module.decode)
    governor, values = governor_of(module), values_of(kind, "decode")
    expected = own_output(module, kind, "decode", values)
    replacement = Replacement(module, {"decode": lambda _, latents: governor.decode(latents)})
    replacement.install()
    assert torch.equal(module.decode(values), expected)
    assert "the module's decode is yours" in (note_of(governor) or "")
    replacement.remove()


def test_hooks_of_accelerates_kind_by_a_user_run() -> None:
    from accelerate.hooks import ModelHook, add_hook_to_module

    class Doubling(ModelHook):
        """A hook that changes values."""

        def post_forward(self, module: nn.Module, output: Any) -> Any:
            return output * 2

    for place in ("decoder.mid_block", "decoder.conv_in"):
        module = made("kl diffusers")
        governor = governor_of(module)
        add_hook_to_module(module.get_submodule(place), Doubling())
        values = values_of("kl diffusers", "decode")
        assert torch.equal(governor.decode(values), own_output(module, "kl diffusers", "decode", values))
        assert f"{place} has a hook Doubling of yours" in (note_of(governor) or "")
        # The library's own hook around a forward of the user's hides it no more.
        module = made("kl diffusers")
        governor, part = governor_of(module), module.get_submodule(place)
        part.forward = changed(part.forward)
        add_hook_to_module(part, ModelHook())
        assert torch.equal(governor.decode(values), own_output(module, "kl diffusers", "decode", values))
        assert f"{place} has a forward of yours" in (note_of(governor) or "")
        module = made("kl diffusers")
        governor = governor_of(module)
        add_hook_to_module(module.get_submodule(place), ModelHook())
        governor.decode(values)
        assert note_of(governor) is None


@pytest.mark.parametrize("kind", ["wan-2.1 diffusers", "qwen-image diffusers", "wan-2.1 comfyui", "wan-2.2 comfyui"])
@pytest.mark.parametrize("mode", ["circular", "reflect"])
def test_convolutions_of_clips_pad_as_they_are_set_to(
    kind: str, mode: str, plain: Callable[[str, str], Tensor]
) -> None:
    module = made(kind)
    convolutions = [
        (name, part)
        for name, part in module.decoder.named_modules(prefix="decoder")
        if isinstance(part, nn.Conv2d) and part.kernel_size == (3, 3)
    ]
    for _, part in convolutions:
        part.padding_mode = mode
    check(module, kind, "decode", f"has the padding mode {mode}", plain(kind, "decode"))


def test_causal_convolutions_of_a_users_class_run(plain: Callable[[str, str], Tensor]) -> None:
    kind = "wan-2.1 diffusers"
    module, values = made(kind), values_of("wan-2.1 diffusers", "decode")
    governor = governor_of(module)
    part = module.decoder.conv_in
    library = type(part)
    part.__class__ = type(library.__name__, (library,), {"forward": changed(library.forward)})
    expected = own_output(module, kind, "decode", values)
    assert not torch.allclose(expected, plain(kind, "decode"), atol=1e-3)
    assert (governor.decode(values) - expected).abs().max() < CLOSE


def test_layers_that_were_put_in_since_count() -> None:
    kind = "wan-2.1 diffusers"
    module, values = made(kind), values_of("wan-2.1 diffusers", "decode")
    governor = governor_of(module)
    other = causal_autoencoder("wan-2.1", "diffusers", seed=9)
    module.decoder = other.decoder
    expected = own_output(module, kind, "decode", values)
    assert (governor.decode(values) - expected).abs().max() < CLOSE
