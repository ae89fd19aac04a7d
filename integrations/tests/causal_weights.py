"""Makers of causal video autoencoders with random weights, tiny or as wide as the published ones, in the dialects of
diffusers and of ComfyUI."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

Family = Literal["wan-2.1", "wan-2.2", "qwen-image"]
Dialect = Literal["diffusers", "comfyui"]
Width = Literal["tiny", "narrow", "published"]

#: The architectures by family and width: channels of the first level of the encoder and of the decoder, and of latents.
WIDTHS: dict[tuple[Family, Width], tuple[int, int, int]] = {
    ("wan-2.1", "tiny"): (8, 8, 4),
    ("wan-2.1", "narrow"): (32, 32, 16),
    ("wan-2.1", "published"): (96, 96, 16),
    ("wan-2.2", "tiny"): (8, 16, 6),
    ("wan-2.2", "narrow"): (32, 48, 16),
    ("wan-2.2", "published"): (160, 256, 48),
    ("qwen-image", "tiny"): (8, 8, 4),
    ("qwen-image", "narrow"): (32, 32, 16),
    ("qwen-image", "published"): (96, 96, 16),
}


@lru_cache
def has_comfyui() -> bool:
    """True if ComfyUI's sources are here: their folder is in `TILEWRIGHT_COMFYUI`."""
    folder = os.environ.get("TILEWRIGHT_COMFYUI", "")
    if not folder or not Path(folder, "comfy", "ldm", "wan", "vae.py").is_file():
        return False
    if folder not in sys.path:
        sys.path.insert(0, folder)
    # ComfyUI reads its arguments as it is imported.
    given, sys.argv = sys.argv, ["main.py", "--cpu"]
    try:
        import comfy.options  # pyright: ignore

        comfy.options.enable_args_parsing()
        import comfy.ldm.wan.vae
        import comfy.ldm.wan.vae2_2  # noqa: F401
    except ImportError:
        return False
    finally:
        sys.argv = given
    return True


def causal_autoencoder(
    family: Family, dialect: Dialect, width: Width = "tiny", *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """An autoencoder with random weights of the size that trained ones have: values neither vanish nor grow on their
    way."""
    base, decoder_base, latent = WIDTHS[family, width]
    make = _diffusers if dialect == "diffusers" else _comfyui
    module = make(family, base, decoder_base, latent)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            fill(name, parameter, generator)
    # diffusers warns of any change of types, of none too.
    return module.eval() if dtype == torch.float32 else module.eval().to(dtype)


def fill(name: str, parameter: Tensor, generator: torch.Generator) -> None:
    """Random values for a weight: norms about 1, and the last convolution of a decoder so that pixels are within −1 …
    1."""
    noise = torch.randn(parameter.shape, generator=generator)
    if name.endswith("gamma"):
        parameter.copy_(1.0 + 0.1 * noise)
    elif parameter.ndim == 1:
        parameter.copy_(0.05 * noise)
    else:
        is_last = name in ("decoder.conv_out.weight", "decoder.head.2.weight")
        parameter.copy_(noise * (0.2 if is_last else 1.0) / (parameter[0].numel() ** 0.5))


def _diffusers(family: Family, base: int, decoder_base: int, latent: int) -> nn.Module:
    import diffusers  # pyright: ignore

    common: dict[str, Any] = {"base_dim": base, "z_dim": latent}
    common |= {"latents_mean": [0.1] * latent, "latents_std": [1.5] * latent}
    if family == "qwen-image":
        return diffusers.AutoencoderKLQwenImage(**common)
    if family == "wan-2.1":
        return diffusers.AutoencoderKLWan(**common)
    return diffusers.AutoencoderKLWan(
        **common,
        decoder_base_dim=decoder_base,
        temperal_downsample=[False, True, True],
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_spatial=16,
    )


def _comfyui(family: Family, base: int, decoder_base: int, latent: int) -> nn.Module:
    assert has_comfyui()
    import comfy.ldm.wan.vae  # pyright: ignore
    import comfy.ldm.wan.vae2_2

    common: dict[str, Any] = {
        "dim": base,
        "z_dim": latent,
        "dim_mult": [1, 2, 4, 4],
        "num_res_blocks": 2,
        "attn_scales": [],
        "temperal_downsample": [False, True, True],
        "dropout": 0.0,
    }
    if family == "wan-2.2":
        return comfy.ldm.wan.vae2_2.WanVAE(**common, dec_dim=decoder_base)
    return comfy.ldm.wan.vae.WanVAE(**common)


def spatial_scale(family: Family) -> int:
    """Pixels along a side of a latent pixel."""
    return 16 if family == "wan-2.2" else 8


def random_latents(
    family: Family, frames: int, height: int, width: int, *, batch: int = 1, width_of: Width = "tiny", seed: int = 1
) -> Tensor:
    """Latents [N, C, T, h, w] of a clip of so many frames and pixels."""
    scale, channels = spatial_scale(family), WIDTHS[family, width_of][2]
    shape = (batch, channels, 1 + (frames - 1) // 4, height // scale, width // scale)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def random_pixels(frames: int, height: int, width: int, *, batch: int = 1, seed: int = 2) -> Tensor:
    """Pixels [N, 3, T, H, W] in −1 … 1."""
    shape = (batch, 3, frames, height, width)
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
