"""The layers of KL autoencoders, found in the modules of diffusers and ComfyUI without importing either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from .band_norms import Norm
from .bands import Resnet
from .kl_attention import Attention, attention_of
from .layers import Conv, Downsample, casts, is_replaced


class UnknownStructureError(Exception):
    """A module has a part that is none of a KL autoencoder's, or is changed."""


@dataclass(frozen=True, slots=True)
class Level:
    """Residual layers at one size, each with an attention or none, and the way to the next size.

    Attributes:
        block: the module around them, if it is called.
        resnets: the residual layers.
        scaling: the module around the upsampling or downsampling, if there is one.
        up: the convolution after an upsampling.
        down: the convolution that halves the size.
    """

    block: nn.Module | None
    resnets: list[tuple[Resnet, Attention | None]]
    scaling: nn.Module | None = None
    up: Conv | None = None
    down: Downsample | None = None


@dataclass(frozen=True, slots=True)
class Middle:
    """Residual layers at the smallest size, the first followed by an attention if there is one."""

    block: nn.Module | None
    resnets: list[tuple[Resnet, Attention | None]]


@dataclass(frozen=True, slots=True)
class Half:
    """A decoder or an encoder, with the 1×1 convolution between it and the latent.

    Attributes:
        block: the decoder or encoder itself.
        quant: the 1×1 convolution before a decoder or after an encoder.
        levels: from the middle block outwards of a decoder, and towards it of an encoder.
    """

    block: nn.Module
    quant: Conv | None
    conv_in: Conv
    middle: Middle
    levels: list[Level]
    norm_out: Norm
    conv_out: Conv
    is_decoder: bool

    @property
    def spatial_scale(self) -> int:
        """Pixels per latent pixel."""
        return 1 << sum(level.scaling is not None for level in self.levels)

    @property
    def called(self) -> list[nn.Module]:
        """The modules that are called, or computed by their weights where nobody has changed them."""
        found = [one.module for one in (self.quant, self.conv_in, self.conv_out) if one is not None]
        for resnets in (self.middle.resnets, *(level.resnets for level in self.levels)):
            for resnet, attention in resnets:
                convs = resnet.conv1, resnet.conv2, resnet.shortcut
                found.extend(one.module for one in convs if one is not None)
                found.extend(() if attention is None else attention.called)
        for level in self.levels:
            found.extend(one.module for one in (level.up, level.down) if one is not None)
        return found


def bare(module: nn.Module) -> nn.Module:
    """The module that `torch.compile` has wrapped; itself if it has not."""
    return cast(nn.Module, getattr(module, "_orig_mod", module))


def is_of(module: nn.Module, package: str, *names: str) -> bool:
    """True if a module's class, or one that it is made from, has one of these names in a package."""
    own = type(module).__mro__
    return any(one.__name__ in names and one.__module__.split(".")[0] == package for one in own)


def _expect(condition: bool, part: str) -> None:
    if not condition:
        raise UnknownStructureError(part)


def _part(module: nn.Module, name: str) -> nn.Module:
    part = getattr(module, name, None)
    _expect(isinstance(part, nn.Module), name)
    return bare(cast(nn.Module, part))


def _parts(module: nn.Module, name: str) -> list[nn.Module]:
    """The modules of a list, which may be missing."""
    found = getattr(module, name, None)
    return [] if found is None else [bare(cast(nn.Module, one)) for one in found if one is not None]


def _check_conv(module: Any, side: int, stride: int) -> None:
    wanted = {
        "kernel_size": (side, side),
        "stride": (stride, stride),
        "dilation": (1, 1),
        "groups": 1,
        "padding_mode": "zeros",
        "padding": (0, 0) if stride == 2 else (side // 2, side // 2),
    }
    for name, value in wanted.items():
        _expect(getattr(module, name, None) == value, f"a convolution's {name}")


def _conv(module: nn.Module, side: int = 3) -> Conv:
    _check_conv(module, side, 1)
    return Conv(module)


def _upsampling(up: nn.Module, *around: nn.Module) -> Conv:
    conv = _part(up, "conv")
    _check_conv(conv, 3, 1)
    return Conv(conv, upsamples=True, around=(*around, up))


def _norm(module: Any) -> Norm:
    is_known = isinstance(module, nn.GroupNorm) and (casts(module) or type(module).forward is nn.GroupNorm.forward)
    _expect(is_known and not is_replaced(module), "a norm")
    return Norm(module)


def _called(block: nn.Module) -> nn.Module:
    """A block whose own forward is run in parts."""
    _expect(not is_replaced(block), "a forward that was replaced")
    return block


def _is_silu(module: object) -> bool:
    return isinstance(module, nn.SiLU)


def _resnet_of_diffusers(block: nn.Module) -> Resnet:
    named = cast(Any, block)
    _expect(type(block).__name__ == "ResnetBlock2D" and _is_silu(named.nonlinearity), "a residual layer")
    is_plain = named.output_scale_factor == 1 and named.upsample is None and named.downsample is None
    _expect(is_plain and getattr(named, "time_emb_proj", None) is None, "a residual layer's form")
    shortcut = named.conv_shortcut
    return Resnet(
        _called(block),
        _norm(named.norm1),
        _conv(named.conv1),
        _norm(named.norm2),
        _conv(named.conv2),
        None if shortcut is None else _conv(shortcut, 1),
    )


def _resnet_of_comfyui(block: nn.Module) -> Resnet:
    named = cast(Any, block)
    _expect(type(block).__name__ == "ResnetBlock" and _is_silu(named.swish), "a residual layer")
    _expect(not hasattr(block, "temb_proj") and not hasattr(block, "conv_shortcut"), "a residual layer's form")
    shortcut = getattr(named, "nin_shortcut", None)
    return Resnet(
        _called(block),
        _norm(named.norm1),
        _conv(named.conv1),
        _norm(named.norm2),
        _conv(named.conv2),
        None if shortcut is None else _conv(shortcut, 1),
    )


def _with_attentions(resnets: list[Resnet], attentions: list[nn.Module]) -> list[tuple[Resnet, Attention | None]]:
    _expect(len(attentions) in (0, len(resnets)), "a level's attentions")
    found = [attention_of(one) for one in attentions]
    return list(zip(resnets, found or [None] * len(resnets)))


def _middle_of_diffusers(block: nn.Module) -> Middle:
    resnets = [_resnet_of_diffusers(one) for one in _parts(block, "resnets")]
    attentions = _parts(block, "attentions")
    _expect(type(block).__name__ == "UNetMidBlock2D" and len(resnets) > 0, "the middle block")
    _expect(len(attentions) == 0 or len(attentions) == len(resnets) - 1, "the middle block's attentions")
    found: list[Attention | None] = [None] * len(resnets)
    for index, one in enumerate(attentions):
        found[index] = attention_of(one)
    return Middle(_called(block), list(zip(resnets, found)))


#: The blocks of levels, each of which runs a residual layer, its attention if it has one, and the next.
_LEVELS = frozenset({"UpDecoderBlock2D", "AttnUpDecoderBlock2D", "DownEncoderBlock2D", "AttnDownEncoderBlock2D"})


def _level_of_diffusers(block: nn.Module) -> Level:
    _expect(type(block).__name__ in _LEVELS, "a level")
    resnets = [_resnet_of_diffusers(one) for one in _parts(block, "resnets")]
    pairs = _with_attentions(resnets, _parts(block, "attentions"))
    ups, downs = _parts(block, "upsamplers"), _parts(block, "downsamplers")
    _expect(len(ups) + len(downs) <= 1, "a level's upsamplers or downsamplers")
    for up in ups:
        named = cast(Any, up)
        is_plain = named.use_conv and not named.use_conv_transpose and named.norm is None and named.interpolate
        _expect(type(up).__name__ == "Upsample2D" and is_plain and named.name == "conv", "an upsampler")
        return Level(_called(block), pairs, _called(up), up=_upsampling(up, block))
    for down in downs:
        named = cast(Any, down)
        _expect(type(down).__name__ == "Downsample2D" and named.use_conv and named.norm is None, "a downsampler")
        _check_conv(named.conv, 3, 2)
        return Level(_called(block), pairs, _called(down), down=Downsample(_part(down, "conv")))
    return Level(_called(block), pairs)


def _level_of_comfyui(block: nn.Module) -> Level:
    resnets = [_resnet_of_comfyui(one) for one in _parts(block, "block")]
    pairs = _with_attentions(resnets, _parts(block, "attn"))
    if hasattr(block, "upsample"):
        up = _part(block, "upsample")
        named = cast(Any, up)
        _expect(type(up).__name__ == "Upsample" and named.with_conv and named.scale_factor == 2.0, "an upsampler")
        return Level(None, pairs, _called(up), up=_upsampling(up))
    if hasattr(block, "downsample"):
        down = _part(block, "downsample")
        _expect(type(down).__name__ == "Downsample" and cast(Any, down).with_conv, "a downsampler")
        _check_conv(cast(Any, down).conv, 3, 2)
        return Level(None, pairs, _called(down), down=Downsample(_part(down, "conv")))
    return Level(None, pairs)


def _quant(module: nn.Module, name: str) -> Conv | None:
    found = getattr(module, name, None)
    return None if found is None else _conv(bare(found), 1)


def _half_of_diffusers(module: nn.Module, half: str, blocks: str, quant: str) -> Half:
    block = _part(module, half)
    _expect(_is_silu(cast(Any, block).conv_act), "an activation")
    return Half(
        _called(block),
        _quant(module, quant),
        _conv(_part(block, "conv_in")),
        _middle_of_diffusers(_part(block, "mid_block")),
        [_level_of_diffusers(one) for one in _parts(block, blocks)],
        _norm(_part(block, "conv_norm_out")),
        _conv(_part(block, "conv_out")),
        half == "decoder",
    )


def _half_of_comfyui(module: nn.Module, half: str, blocks: str, quant: str) -> Half:
    block = _part(module, half)
    _expect(type(block).__name__ == half.capitalize() and not getattr(block, "carried", False), f"the {half}")
    _expect(not getattr(block, "tanh_out", False), "a tanh at the end")
    middle = _part(block, "mid")
    first, second = (_resnet_of_comfyui(_part(middle, name)) for name in ("block_1", "block_2"))
    attention = attention_of(_part(middle, "attn_1")) if hasattr(middle, "attn_1") else None
    levels = [_level_of_comfyui(one) for one in _parts(block, blocks)]
    return Half(
        _called(block),
        _quant(module, quant),
        _conv(_part(block, "conv_in")),
        Middle(None, [(first, attention), (second, None)]),
        levels[::-1] if half == "decoder" else levels,
        _norm(_part(block, "norm_out")),
        _conv(_part(block, "conv_out")),
        half == "decoder",
    )


def half_of(module: nn.Module, dialect: str, half: str) -> Half:
    """The layers of a decoder or an encoder, in the order that they run.

    Raises:
        UnknownStructureError: a part is none of a KL autoencoder's, or is changed.
    """
    is_decoder = half == "decoder"
    quant = "post_quant_conv" if is_decoder else "quant_conv"
    if dialect == "diffusers":
        return _half_of_diffusers(module, half, "up_blocks" if is_decoder else "down_blocks", quant)
    return _half_of_comfyui(module, half, "up" if is_decoder else "down", quant)
