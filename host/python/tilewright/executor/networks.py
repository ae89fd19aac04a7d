"""Facts of networks: what is in their weights, and what a forward computes, as far as their shapes tell."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from .. import records
from ..errors import ModelError
from ..model import Model
from .parts import Parts, bytes_of, main_dtype
from .shapes import dtype_name, model_of

#: Names of types as files have them.
_STORED = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float8_e4m3fn: "f8_e4m3",
    torch.float8_e5m2: "f8_e5m2",
    torch.int8: "i8",
    torch.uint8: "u8",
}

#: Families by the class of a denoiser; of all others the class is the family.
_FAMILIES = {
    "FluxTransformer2DModel": "flux",
    "WanTransformer3DModel": "wan-2.1",
    "SD3Transformer2DModel": "sd3",
    "QwenImageTransformer2DModel": "qwen-image",
    "ChromaTransformer2DModel": "chroma",
    "UNet2DConditionModel": "sdxl",
}

#: Denoisers that the package has prices for, by their class.
_PRICED = ("FluxTransformer2DModel", "WanTransformer3DModel")


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a network.

    Attributes:
        dtype: the type that most of them are in.
        parameters: their number.
        stored_bytes: their bytes, buffers included.
        stored_types: the types that they are in, the most common first.
        blocks: blocks that they can be moved by.
        largest_block_bytes: bytes of the largest block.
        rest_bytes: bytes of what is in no block.
    """

    dtype: torch.dtype
    parameters: int
    stored_bytes: int
    stored_types: tuple[records.StoredType, ...]
    blocks: int
    largest_block_bytes: int
    rest_bytes: int

    @classmethod
    def of(cls, network: nn.Module) -> Weights:
        """The weights of a network as it is now."""
        parts = Parts.of(network)
        by_type: dict[str, int] = {}
        for _, tensor in parts.tensors():
            name = _STORED.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
            by_type[name] = by_type.get(name, 0) + bytes_of(tensor)
        ordered = sorted(by_type.items(), key=lambda pair: -pair[1])
        return cls(
            dtype=main_dtype(network) or torch.float32,
            parameters=sum(parameter.numel() for parameter in network.parameters()),
            stored_bytes=parts.bytes,
            stored_types=tuple(records.StoredType(name=name, bytes=size) for name, size in ordered),
            blocks=max(len(parts.blocks), 1),
            largest_block_bytes=max((block.bytes for block in parts.blocks), default=parts.bytes),
            rest_bytes=parts.rest.bytes,
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """The memory and time that forwards took.

    Attributes:
        peak_bytes: the most bytes of values beside weights that were held at once.
        dtype: the type that they were in.
        seconds: the time of a forward.
    """

    peak_bytes: int
    dtype: torch.dtype
    seconds: float

    def in_type(self, dtype: torch.dtype) -> int:
        """The most bytes at once, in another type."""
        return self.peak_bytes * dtype.itemsize // self.dtype.itemsize


def family_of(network: nn.Module) -> str:
    """The family of a denoiser: the one whose latents it makes, where that is known, else the name of its class."""
    name = type(network).__name__
    if name == "UNet2DConditionModel":
        return "sdxl" if _config(network).get("addition_embed_type") == "text_time" else "sd"
    return _FAMILIES.get(name, name)


def encoder_kind(network: nn.Module) -> str:
    """The kind of a text encoder, with its width: `clip-768`, `t5-4096` …; of published ones their name."""
    name, width = type(network).__name__, encoder_width(network)
    if name.startswith("CLIPText"):
        return {768: "clip-l", 1280: "openclip-bigg"}.get(width, f"clip-{width}")
    if name.startswith("UMT5"):
        return "umt5-xxl" if width == 4096 else f"umt5-{width}"
    if name.startswith("T5"):
        return "t5-xxl" if width == 4096 else f"t5-{width}"
    return f"{name.lower()}-{width}"


def encoder_width(network: nn.Module) -> int:
    """The width of a token in a text encoder; 1 if its configuration does not tell."""
    config = _config(network)
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        config = {**config, **cast("Mapping[str, Any]", nested)}
    return max(int(config.get("hidden_size") or config.get("d_model") or 1), 1)


def encoder_heads(network: nn.Module) -> int:
    """The heads of attention in a text encoder; 1 if its configuration does not tell."""
    config = _config(network)
    nested = config.get("text_config")
    if isinstance(nested, Mapping):
        config = {**config, **cast("Mapping[str, Any]", nested)}
    return max(int(config.get("num_attention_heads") or config.get("num_heads") or 1), 1)


def _config(network: nn.Module) -> Mapping[str, Any]:
    config = getattr(network, "config", None)
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return cast("Mapping[str, Any]", config)
    return cast("Mapping[str, Any]", config.to_dict()) if hasattr(config, "to_dict") else {}


#: Models of denoisers, with what they were made from; None for those that there are no prices for.
_models: weakref.WeakKeyDictionary[nn.Module, tuple[Any, Model | None]] = weakref.WeakKeyDictionary()


def priced_model(network: nn.Module) -> Model | None:
    """The model of a denoiser that the package has prices for; None of others."""
    if type(network).__name__ not in _PRICED:
        return None
    state = {name: (dtype_name(value.dtype), tuple(value.shape)) for name, value in network.state_dict().items()}
    key = tuple(state.items())
    known = _models.get(network)
    if known is not None and known[0] == key:
        return known[1]
    config = {"_class_name": type(network).__name__, **_config(network)}
    try:
        found = model_of(state, part="transformer", config=config)
    except ModelError:
        # One with adapters in it, or of other widths than the published ones.
        found = None
    _models[network] = key, found
    return found


def assumed_operations(network: nn.Module, tokens: int, width: int, side_tokens: int = 0) -> int:
    """Operations of a forward, by the weights and the tokens that go through them.

    Args:
        network: the network.
        tokens: tokens, or latent pixels of a UNet, over the batch.
        width: the width of a token.
        side_tokens: tokens of one sample, of which each attends to all.
    """
    blocks = Parts.of(network).blocks
    levels = sum(1 for block in blocks if block.name.startswith("down_blocks."))
    total = 0
    for block in blocks:
        weights = sum(one.numel() for one in block.tensors.values() if one.dim() > 1)
        total += 2 * weights * (tokens >> 2 * _level(block.name, levels))
    if levels == 0:
        total += 4 * tokens * side_tokens * width * len(blocks)
    return total


def _level(name: str, levels: int) -> int:
    """The level of a UNet's block: each has half the side of the one before."""
    first, _, second = name.partition(".")
    index = int(second) if second.isdigit() else 0
    if first == "down_blocks":
        return index
    if first == "up_blocks":
        return max(levels - 1 - index, 0)
    return max(levels - 1, 0) if first == "mid_block" else 0
