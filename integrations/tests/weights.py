"""Autoencoders of pictures with random weights, of real and of small widths, in diffusers' and ComfyUI's classes."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch import nn

#: Channels of latents, widths of levels, groups of norms, 1×1 convolutions at the latent, scaling and shift of latents.
KINDS: dict[str, tuple[int, tuple[int, ...], int, bool, float, float | None]] = {
    "sd": (4, (128, 256, 512, 512), 32, True, 0.18215, None),
    "sdxl": (4, (128, 256, 512, 512), 32, True, 0.13025, None),
    "sd3": (16, (128, 256, 512, 512), 32, False, 1.5305, 0.0609),
    "flux": (16, (128, 256, 512, 512), 32, False, 0.3611, 0.1159),
    "tiny-sd": (4, (32, 64), 8, True, 0.18215, None),
    "tiny-sdxl": (4, (32, 64, 64), 8, True, 0.13025, None),
    "tiny-sd3": (16, (16, 32, 32), 8, False, 1.5305, 0.0609),
    "tiny-flux": (16, (16, 32, 32, 32), 8, False, 0.3611, 0.1159),
}

#: The kinds that are quick to run, and those of published widths.
TINY = tuple(kind for kind in KINDS if kind.startswith("tiny-"))
REAL = tuple(kind for kind in KINDS if not kind.startswith("tiny-"))


def randomized(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module with weights that keep values of order 1, norms and biases included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                values *= parameter[0].numel() ** -0.5
            elif name.endswith("weight"):
                values = 1.0 + 0.2 * values
            else:
                values *= 0.1
            parameter.copy_(values)
    return module.eval().requires_grad_(False)


def kl_diffusers(kind: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """diffusers' `AutoencoderKL` of a kind; `config` replaces parts of its configuration."""
    from diffusers import AutoencoderKL

    latent_channels, widths, groups, has_quant, scaling, shift = KINDS[kind]
    count = len(widths)
    given = {
        "block_out_channels": widths,
        "down_block_types": ("DownEncoderBlock2D",) * count,
        "up_block_types": ("UpDecoderBlock2D",) * count,
        "layers_per_block": 2 if kind in REAL else 1,
        "latent_channels": latent_channels,
        "norm_num_groups": groups,
        "scaling_factor": scaling,
        "shift_factor": shift,
        "use_quant_conv": has_quant,
        "use_post_quant_conv": has_quant,
    }
    module = randomized(AutoencoderKL(**{**given, **config}), seed)
    return module if dtype == torch.float32 else module.to(dtype)


def import_comfyui() -> None:
    """Makes ComfyUI's modules importable, on a processor alone.

    Raises:
        RuntimeError: the environment does not tell where ComfyUI is.
    """
    folder = os.environ.get("TILEWRIGHT_COMFYUI")
    if not folder:
        raise RuntimeError("TILEWRIGHT_COMFYUI is not set: name the folder that has ComfyUI's main.py in it")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    from comfy.cli_args import args  # pyright: ignore[reportMissingImports]

    args.cpu = not torch.cuda.is_available()


def kl_comfyui(kind: str, *, seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """ComfyUI's module of a kind: `AutoencoderKL` with 1×1 convolutions at the latent, or `AutoencodingEngine`. Its
    norms have 32 groups, so that small ones are 32 channels wide at least; `config` replaces parts of its
    configuration."""
    import_comfyui()
    from comfy.ldm.models.autoencoder import (  # pyright: ignore[reportMissingImports]
        AutoencoderKL,
        AutoencodingEngine,
    )

    latent_channels, widths, _, has_quant, _, _ = KINDS[kind]
    first = max(widths[0], 32)
    given = {
        "double_z": True,
        "z_channels": latent_channels,
        "resolution": 256,
        "in_channels": 3,
        "out_ch": 3,
        "ch": first,
        "ch_mult": [width // widths[0] for width in widths],
        "num_res_blocks": 2 if kind in REAL else 1,
        "attn_resolutions": [],
        "dropout": 0.0,
        **config,
    }
    if has_quant:
        return randomized(AutoencoderKL(ddconfig=given, embed_dim=latent_channels), seed).to(dtype)
    path = "comfy.ldm.modules.diffusionmodules.model"
    module = AutoencodingEngine(
        regularizer_config={"target": "comfy.ldm.models.autoencoder.DiagonalGaussianRegularizer"},
        encoder_config={"target": f"{path}.Encoder", "params": given},
        decoder_config={"target": f"{path}.Decoder", "params": given},
    )
    return randomized(module, seed).to(dtype)
