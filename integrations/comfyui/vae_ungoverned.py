"""Decodes and encodes of VAEs that no plan can be carried out on: whole, or in ComfyUI's own tiles, by ComfyUI's own
estimate of the memory."""

from __future__ import annotations

import logging
from typing import Any

import torch
from comfy import model_management

from . import comfy_memory, interruption
from .settings import Choice

log = logging.getLogger("tilewright")

#: Arguments of ComfyUI's tiled methods, as a caller gave them.
Tiles = tuple[tuple[Any, ...], dict[str, Any]]

#: Sides of tiles in pixels, the largest first, and the share of a side that neighbours share.
SIDES = (1024, 768, 512, 384, 256)
OVERLAP = 4


def decode(
    vae: Any, choice: Choice, latents: torch.Tensor, options: dict[str, Any], tiles: Tiles | None
) -> torch.Tensor:
    """Latents to pixels by the VAE's own methods.

    Args:
        vae: the governed VAE.
        choice: the memory's limit.
        latents: latents.
        options: options of the VAE's own decode.
        tiles: tiles that the caller names; otherwise the estimate decides.
    """
    own = _own(vae)

    def run(_: interruption.Interruption) -> torch.Tensor:
        if tiles is not None:
            return own.decode_tiled(vae, latents, *tiles[0], **tiles[1])
        side = None if options else _side(vae, choice, latents, "decode")
        if side is None:
            return own.decode(vae, latents, **({"vae_options": options} if options else {}))
        latent_side = side // vae.spacial_compression_decode()
        return own.decode_tiled(
            vae, latents, tile_x=latent_side, tile_y=latent_side, overlap=latent_side // OVERLAP
        )

    return interruption.call(run, vae.first_stage_model, vae.device)


def encode(vae: Any, choice: Choice, pixels: torch.Tensor, tiles: Tiles | None) -> torch.Tensor:
    """Pixels to latents by the VAE's own methods.

    Args:
        vae: the governed VAE.
        choice: the memory's limit.
        pixels: pixels, channels last.
        tiles: tiles that the caller names; otherwise the estimate decides.
    """
    own = _own(vae)

    def run(_: interruption.Interruption) -> torch.Tensor:
        if tiles is not None:
            return own.encode_tiled(vae, pixels, *tiles[0], **tiles[1])
        first = pixels.movedim(-1, 1)
        if vae.latent_dim == 3 and first.ndim < 5:
            first = first.unsqueeze(2) if vae.not_video else first.movedim(1, 0).unsqueeze(0)
        side = _side(vae, choice, first, "encode")
        if side is None:
            return own.encode(vae, pixels)
        return own.encode_tiled(vae, pixels, tile_x=side, tile_y=side, overlap=side // OVERLAP)

    return interruption.call(run, vae.first_stage_model, vae.device)


def _own(vae: Any) -> Any:
    """The VAE's class without what governs it."""
    return type(vae).__mro__[2]


def _side(vae: Any, choice: Choice, values: torch.Tensor, stage: str) -> int | None:
    """The side of the largest tiles that fit the limit, in pixels; None if the whole does, or if it is no picture."""
    scale = vae.spacial_compression_decode() if stage == "decode" else 1
    kind = type(vae.first_stage_model).__name__
    if values.ndim < 4 or vae.extra_1d_channel is not None or not isinstance(scale, int):
        log.info("%s: %s is none that a policy can decide for: ComfyUI's own way", stage, kind)
        return None
    needs = vae.memory_used_decode if stage == "decode" else vae.memory_used_encode
    limit = comfy_memory.limit_of(choice.memory_limit, vae.device, vae.patcher)
    # Samples run one after the other where they don't fit together.
    shape = (1, *values.shape[1:])
    whole = float(needs(shape, vae.vae_dtype))
    side = None
    if whole > limit:
        longest = max(shape[-2:]) * scale
        fitting = (one for one in SIDES if one < longest and _of_tile(needs, vae, shape, one // scale) <= limit)
        side = next(fitting, SIDES[-1] if longest > SIDES[-1] else None)
    how = "whole" if side is None else f"in blended tiles of {side} pixels"
    log.info(
        "%s: no policy can decide for %s: %s by ComfyUI's estimate of %.2f GiB and a limit of %.2f GiB",
        stage, kind, how, whole / 2**30, limit / 2**30,
    )  # fmt: skip
    if side is not None:
        model_management.soft_empty_cache()
    return side


def _of_tile(needs: Any, vae: Any, shape: tuple[int, ...], side: int) -> float:
    return float(needs((*shape[:-2], min(side, shape[-2]), min(side, shape[-1])), vae.vae_dtype))
