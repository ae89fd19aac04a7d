"""Autoencoders of diffusers and ComfyUI, behind one interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch

    from .running import Run

#: A tensor's type as safetensors names it, as `BF16`, and its shape.
Shapes = Mapping[str, tuple[str, tuple[int, ...]]]

Dialect = Literal["diffusers", "comfyui"]


class Autoencoder(Protocol):
    """A module that decodes latents and encodes pixels, in any way that a plan names but blended ones."""

    module: torch.nn.Module
    """The module itself; it is called, and its hooks run."""
    family: str
    """The family as `tilewright.Model` names it: `sdxl`, `wan-2.1` …"""
    dialect: Dialect
    """The library that the module is of."""
    is_video: bool
    """Latents are [N, C, T, h, w]; otherwise [N, C, h, w]."""
    latent_channels: int
    """Channels of latents as `decode` takes them."""
    spatial_scale: int
    """Pixels along a side for each of the latent's."""
    temporal_scale: int
    """Frames for each frame of the latent but the first; 1 for pictures."""

    def shapes(self) -> Shapes:
        """The state's names, types and shapes, as a file of the model has them."""
        ...

    def decode(self, latents: torch.Tensor, run: Run) -> torch.Tensor:
        """The output of the module's own decode, raw and not clamped, of latents in the module's own space, by the
        plan's `space` and `time`, of which none is blended.

        Args:
            latents: [N, C, h, w], or [N, C, T, h, w] of a video's.
            run: the attempt.

        Returns:
            [N, 3, H, W] or [N, 3, T, H, W].

        Raises:
            Cancelled: the run was cancelled.
        """
        ...

    def encode(self, pixels: torch.Tensor, run: Run) -> torch.Tensor:
        """The moments of the module's own encode, before they are split or sampled, by the plan's `space` and `time`,
        of which none is blended.

        Args:
            pixels: [N, 3, H, W], or [N, 3, T, H, W] of a video's, in -1 … 1.
            run: the attempt.

        Returns:
            [N, 2C, h, w] or [N, 2C, T, h, w].

        Raises:
            Cancelled: the run was cancelled.
        """
        ...


def find_autoencoder(module: torch.nn.Module) -> Autoencoder | None:
    """The autoencoder in a module, by its structure and the names of its classes; None if it is none that plans can be
    carried out on."""
    from .clips import CausalAutoencoder
    from .kl import KlAutoencoder

    return KlAutoencoder.find(module) or CausalAutoencoder.find(module)
