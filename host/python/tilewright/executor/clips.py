"""Autoencoders of clips that carry a causal state: WAN 2.1, WAN 2.2 and Qwen-Image, of diffusers and of ComfyUI."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ..records import BlendedSpace, BlendedTime, ExactSpace
from .autoencoders import Shapes
from .causal_decoding import decode
from .causal_encoding import encode, latent_frames
from .causal_hooks import Blocks
from .causal_structure import Structure, find_structure
from .layers import Format, without_autocast
from .own_code import check_own_code
from .running import PlanError, Run
from .shapes import dtype_name


class CausalAutoencoder:
    """An autoencoder of clips whose plans are carried out on its own modules.

    Its causal state is in the attempt, and none in the module: the module is left as it was, however an attempt ends.
    """

    is_video = True

    def __init__(self, module: nn.Module, structure: Structure) -> None:
        self.module = module
        self._structure = structure
        self.family: str = structure.family
        self.dialect: Literal["diffusers", "comfyui"] = structure.dialect
        self.latent_channels = structure.latent_channels
        self.spatial_scale = structure.spatial_scale
        self.temporal_scale = structure.temporal_scale

    @classmethod
    def find(cls, module: nn.Module) -> CausalAutoencoder | None:
        """The autoencoder in diffusers' `AutoencoderKLWan` or `AutoencoderKLQwenImage`, or in ComfyUI's `WanVAE` of
        either version; None of any other module, and of one of a release whose layers are not known."""
        try:
            structure = find_structure(module)
        except PlanError:
            return None
        return None if structure is None else cls(module, structure)

    def shapes(self) -> Shapes:
        """The names, types and shapes of the weights, as a file of the model has them."""
        state = cast("dict[str, Tensor]", self.module.state_dict(keep_vars=True))
        return {name: (dtype_name(value.dtype), tuple(value.shape)) for name, value in state.items()}

    def decode(self, latents: Tensor, run: Run) -> Tensor:
        """The module's own decode.

        Args:
            latents: [N, C, T, h, w], in the module's own space.
            run: the attempt. With `on_frames` each sample's frames [1, 3, t, H, W] are given away as they come, those
            of one
                sample before those of the next, whose first is 0 again.

        Returns:
            [N, 3, T, H, W] in f32 on the run's device, kept within −1 … 1 if the module does so; with `on_frames` of
            no frames.
            In f64 of a module in f64, unless the plan is for 16 bits.

        Raises:
            Cancelled: the run was cancelled.
            PlanError: the plan or the latents are none of this module's.
        """
        self._check(latents, self.latent_channels, "latents", "decoded")
        self._check_plan(run)
        to, structure = self._format(run), self._current()
        check_own_code(self.module, "decode", structure.decoder.called(calls_shortcuts=False))
        samples, _, count, height, width = latents.shape
        frames = 1 + (count - 1) * structure.temporal_scale
        scale = structure.spatial_scale
        output: Tensor | None = None

        def emit(sample: int, first: int, values: Tensor) -> None:
            nonlocal output
            if structure.clamps:
                values = values.clamp(-1.0, 1.0)
            clip = values.transpose(0, 1).unsqueeze(0)
            if run.on_frames is not None:
                run.on_frames(clip.to(to.single), first)
                return
            if output is None:
                shape = (samples, values.shape[1], frames, height * scale, width * scale)
                output = torch.empty(shape, dtype=to.single, device=run.device)
            output[sample : sample + 1, :, first : first + values.shape[0]] = clip

        with torch.no_grad(), without_autocast(run.device), Blocks.of(self.module) as blocks:
            decode(structure, latents, to, blocks, emit)
        if output is None:
            return torch.empty((samples, 3, 0, height * scale, width * scale), dtype=to.single)
        return output

    def encode(self, pixels: Tensor, run: Run) -> Tensor:
        """The module's own encode.

        Args:
            pixels: [N, 3, T, H, W] in −1 … 1. Frames that make no whole latent frame are left out.
            run: the attempt.

        Returns:
            means and logarithms of variances [N, 2C, t, h, w] in the type that `decode` gives. ComfyUI's modules give
            the means alone, [N, C, t, h, w].

        Raises:
            Cancelled: the run was cancelled.
            PlanError: the plan or the pixels are none of this module's.
        """
        structure = self._current()
        if structure.encoder is None:
            raise PlanError(f"{type(self.module).__name__}: it has no encoder")
        channels = cast(int, cast(Any, structure.encoder.first.convolution).in_channels) // structure.patch**2
        self._check(pixels, channels, "pixels", "encoded")
        self._check_plan(run)
        samples, _, frames, height, width = pixels.shape
        scale = structure.spatial_scale
        if height % scale or width % scale:
            raise PlanError(f"pixels: {width}×{height}: width and height must be multiples of {scale}")
        if isinstance(run.plan.space, ExactSpace):
            raise PlanError("space: exact tiles can only be decoded, not encoded: leave it whole")
        check_own_code(self.module, "encode", structure.encoder.called(calls_shortcuts=True))
        to = self._format(run)
        output: Tensor | None = None

        def emit(sample: int, latent: int, moments: Tensor) -> None:
            nonlocal output
            if structure.dialect == "comfyui":
                moments = moments.chunk(2, 1)[0]
            if output is None:
                count = latent_frames(frames, structure.temporal_scale)
                shape = (samples, moments.shape[1], count, *moments.shape[2:])
                output = torch.empty(shape, dtype=to.single, device=run.device)
            output[sample, :, latent] = moments[0]

        with torch.no_grad(), without_autocast(run.device), Blocks.of(self.module) as blocks:
            encode(structure, pixels, to, blocks, emit)
        assert output is not None, "a clip has a frame at least"
        return output

    def _current(self) -> Structure:
        """The structure as it is now: a user may have put other layers in since it was found."""
        found, known = find_structure(self.module), self._structure
        scales = (known.latent_channels, known.patch, known.spatial_scale, known.temporal_scale)
        if found is None or scales != (found.latent_channels, found.patch, found.spatial_scale, found.temporal_scale):
            raise PlanError(f"{type(self.module).__name__}: it was changed since it was found: find it again")
        return found

    def _format(self, run: Run) -> Format:
        first = next(self.module.parameters(), None)
        return Format.of(run, first is not None and first.dtype == torch.float64)

    def _check(self, tensor: Tensor, channels: int, name: str, done: str) -> None:
        shape = tuple(tensor.shape)
        if len(shape) != 5 or shape[1] != channels or min(shape) < 1:
            name_of = type(self.module).__name__
            raise PlanError(f"{name}: of shape {list(shape)}: {name_of} wants [N, {channels}, T, h, w] to be {done}")

    @staticmethod
    def _check_plan(run: Run) -> None:
        if isinstance(run.plan.space, BlendedSpace) or isinstance(run.plan.time, BlendedTime):
            raise PlanError("space and time: blended tiles are for the tiles' own executor: leave them whole here")
