"""The parts of a causal video autoencoder, the same for every library that has it.

WAN 2.1's, WAN 2.2's and Qwen-Image's autoencoders are made of the same few layers, which diffusers and ComfyUI name
and nest in their own ways. Here they become one list of layers for each half, by the names of classes and attributes.
Modules are referred to, and never copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Union, cast

from torch import nn

from .running import PlanError

#: The ends of names of classes that only differ in their library's prefix.
RESIDUAL = ("ResidualBlock",)
ATTENTION = ("AttentionBlock",)
RESAMPLE = ("Resample",)
CAUSAL = ("CausalConv3d",)


@dataclass(frozen=True, slots=True)
class Half:
    """A causal convolution after a norm and an activation, or after neither."""

    norm: nn.Module | None
    activation: nn.Module | None
    convolution: nn.Module


@dataclass(frozen=True, slots=True)
class Residual:
    """Two causal convolutions, added to their input or to a pointwise convolution of it."""

    first: Half
    last: Half
    shortcut: nn.Module | None


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of one head over all pixels of each frame, added to its input."""

    norm: nn.Module
    query_key_value: nn.Module
    output: nn.Module


@dataclass(frozen=True, slots=True)
class Resample:
    """Twice or half the height and width, and perhaps the frames."""

    #: A convolution, after an upsampling by 2, or of stride 2 with zeros to the right and below.
    space: nn.Module
    time: nn.Module | None
    #: False if it halves.
    enlarges: bool


@dataclass(frozen=True, slots=True)
class Shortcut:
    """Layers to whose output their input is added, with its channels repeated or averaged (WAN 2.2)."""

    layers: tuple[Layer, ...]
    module: nn.Module


Layer = Union[Residual, Attention, Resample, Shortcut]


@dataclass(frozen=True, slots=True)
class HalfStructure:
    """An encoder or a decoder."""

    first: Half
    layers: tuple[Layer, ...]
    last: Half
    #: The pointwise convolution of the latents, or of the moments.
    pointwise: nn.Module

    def called(self, *, calls_shortcuts: bool) -> list[nn.Module]:
        """The modules that are called, or computed by their weights where nobody has changed them; with those of WAN
        2.2's shortcuts if it calls them."""
        found: list[nn.Module | None] = [self.pointwise]
        halves = [self.first, self.last]
        for layer in _with_inner(self.layers):
            if isinstance(layer, Residual):
                halves += [layer.first, layer.last]
                found.append(layer.shortcut)
            elif isinstance(layer, Attention):
                found += [layer.norm, layer.query_key_value, layer.output]
            elif isinstance(layer, Resample):
                found += [layer.space, layer.time]
            elif calls_shortcuts:
                found.append(layer.module)
        for half in halves:
            found += [half.norm, half.convolution]
            if not isinstance(half.activation, nn.SiLU):
                found.append(half.activation)
        return [one for one in found if one is not None]


@dataclass(frozen=True, slots=True)
class Structure:
    """An autoencoder of clips."""

    dialect: Literal["diffusers", "comfyui"]
    family: Literal["wan-2.1", "wan-2.2"]
    encoder: HalfStructure | None
    decoder: HalfStructure
    latent_channels: int
    #: Side of the squares of pixels that enter and leave the network as channels.
    patch: int
    spatial_scale: int
    temporal_scale: int
    #: Decoded values are kept within −1 … 1.
    clamps: bool


def find_structure(module: nn.Module) -> Structure | None:
    """The structure of an autoencoder of diffusers or of ComfyUI; None of any other module.

    Raises:
        PlanError: it is one by its class, and has layers that none of its kind had.
    """
    names = {base.__name__: base.__module__ for base in type(module).__mro__}
    if not names.keys().isdisjoint(("AutoencoderKLWan", "AutoencoderKLQwenImage")):
        return _of_diffusers(module)
    if names.get("WanVAE", "").startswith("comfy.") and hasattr(module, "conv2"):
        return _of_comfyui(module)
    return None


def is_named(module: object, ends: tuple[str, ...]) -> bool:
    """True if a class of the module has one of the names, a library's prefix aside."""
    return any(base.__name__.endswith(ends) for base in type(module).__mro__)


def channels_of(convolution: nn.Module, name: Literal["in_channels", "out_channels"]) -> int:
    """The channels of a convolution."""
    return int(getattr(convolution, name))


def _child(module: nn.Module, name: str) -> nn.Module:
    child = getattr(module, name, None)
    if not isinstance(child, nn.Module):
        raise PlanError(f"{type(module).__name__}: it has no layer `{name}`: this release of its library is not known")
    return child


def _children(module: nn.Module, name: str) -> Iterator[nn.Module]:
    return iter(cast(Iterable[nn.Module], _child(module, name)))


def _of_diffusers(module: nn.Module) -> Structure:
    config = getattr(module, "config", None)
    patch = int(getattr(config, "patch_size", None) or 1)
    halves: list[HalfStructure | None] = []
    for name, blocks, pointwise in (
        ("encoder", "down_blocks", "quant_conv"),
        ("decoder", "up_blocks", "post_quant_conv"),
    ):
        part = getattr(module, name, None)
        if not isinstance(part, nn.Module):
            halves.append(None)
            continue
        middle, layers = list(_middle(_child(part, "mid_block"))), list(_layers(_children(part, blocks)))
        halves.append(
            HalfStructure(
                first=Half(None, None, _child(part, "conv_in")),
                layers=tuple(layers + middle if name == "encoder" else middle + layers),
                last=Half(_child(part, "norm_out"), _child(part, "nonlinearity"), _child(part, "conv_out")),
                pointwise=_child(module, pointwise),
            )
        )
    return _structure(module, "diffusers", (halves[0], halves[1]), patch, clamps=True)


def _middle(block: nn.Module) -> Iterator[Layer]:
    """A residual layer, and then pairs of attention and residual layer."""
    resnets, attentions = list(_children(block, "resnets")), list(_children(block, "attentions"))
    yield _residual(resnets[0])
    for attention, resnet in zip(attentions, resnets[1:]):
        yield _attention(attention)
        yield _residual(resnet)


def _of_comfyui(module: nn.Module) -> Structure:
    halves: list[HalfStructure] = []
    for name, blocks, pointwise in (("encoder", "downsamples", "conv1"), ("decoder", "upsamples", "conv2")):
        part = _child(module, name)
        middle, layers = list(_layers(_children(part, "middle"))), list(_layers(_children(part, blocks)))
        norm, activation, convolution = _children(part, "head")
        halves.append(
            HalfStructure(
                first=Half(None, None, _child(part, "conv1")),
                layers=tuple(layers + middle if name == "encoder" else middle + layers),
                last=Half(norm, activation, convolution),
                pointwise=_child(module, pointwise),
            )
        )
    is_wan22 = any(isinstance(layer, Shortcut) for layer in halves[1].layers)
    return _structure(module, "comfyui", (halves[0], halves[1]), 2 if is_wan22 else 1, clamps=False)


def _structure(
    module: nn.Module,
    dialect: Literal["diffusers", "comfyui"],
    halves: tuple[HalfStructure | None, HalfStructure | None],
    patch: int,
    *,
    clamps: bool,
) -> Structure:
    encoder, decoder = halves
    if decoder is None:
        raise PlanError(f"{type(module).__name__}: it has no decoder")
    enlarging = [layer for layer in _flat(decoder.layers) if isinstance(layer, Resample)]
    is_wan22 = any(isinstance(layer, Shortcut) for layer in decoder.layers)
    return Structure(
        dialect=dialect,
        family="wan-2.2" if is_wan22 else "wan-2.1",
        encoder=encoder,
        decoder=decoder,
        latent_channels=channels_of(decoder.pointwise, "in_channels"),
        patch=patch,
        spatial_scale=patch * 2 ** len(enlarging),
        temporal_scale=2 ** sum(layer.time is not None for layer in enlarging),
        clamps=clamps,
    )


def _flat(layers: Iterable[Layer]) -> Iterator[Layer]:
    return (layer for layer in _with_inner(layers) if not isinstance(layer, Shortcut))


def _with_inner(layers: Iterable[Layer]) -> Iterator[Layer]:
    """Layers, and those in shortcuts after them."""
    for layer in layers:
        yield layer
        if isinstance(layer, Shortcut):
            yield from _with_inner(layer.layers)


def _layers(modules: Iterable[nn.Module]) -> Iterator[Layer]:
    """Layers and blocks, in their order."""
    for module in modules:
        if hasattr(module, "avg_shortcut") or hasattr(module, "resnets"):
            yield from _block(module)
        elif is_named(module, RESAMPLE):
            yield from _resample(module)
        elif is_named(module, RESIDUAL):
            yield _residual(module)
        elif is_named(module, ATTENTION):
            yield _attention(module)
        else:
            raise PlanError(f"{type(module).__name__}: a layer that is not known: this release of its library is newer")


def _block(module: nn.Module) -> Iterator[Layer]:
    """A block's layers, in a shortcut if it has one."""
    inner: list[nn.Module] = []
    for name in ("resnets", "upsamples", "downsamples", "upsamplers", "upsampler", "downsampler"):
        part = getattr(module, name, None)
        if isinstance(part, (nn.ModuleList, nn.Sequential)):
            inner.extend(part)
        elif isinstance(part, nn.Module):
            inner.append(part)
    layers, shortcut = _layers(inner), getattr(module, "avg_shortcut", None)
    if isinstance(shortcut, nn.Module):
        yield Shortcut(tuple(layers), shortcut)
    else:
        yield from layers


def _residual(module: nn.Module) -> Residual:
    residual = getattr(module, "residual", None)
    if isinstance(residual, nn.Sequential):
        # Norm, activation and convolution; and again, with dropout before the convolution.
        norm1, act1, conv1, norm2, act2, *_, conv2 = residual
        shortcut = _child(module, "shortcut")
    else:
        norm1, norm2 = _child(module, "norm1"), _child(module, "norm2")
        conv1, conv2 = _child(module, "conv1"), _child(module, "conv2")
        act1 = act2 = _child(module, "nonlinearity")
        shortcut = _child(module, "conv_shortcut")
    first, last = Half(norm1, act1, conv1), Half(norm2, act2, conv2)
    return Residual(first, last, None if isinstance(shortcut, nn.Identity) else shortcut)


def _attention(module: nn.Module) -> Attention:
    return Attention(_child(module, "norm"), _child(module, "to_qkv"), _child(module, "proj"))


def _resample(module: nn.Module) -> Iterator[Resample]:
    mode = str(getattr(module, "mode", ""))
    if mode == "none":
        return
    time = _child(module, "time_conv") if mode.endswith("3d") else None
    *_, space = _children(module, "resample")
    yield Resample(space, time, mode.startswith("upsample"))
