"""KL autoencoders of pictures, of diffusers and ComfyUI: decodes and encodes as a plan says, whole or in exact
bands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..records import ExactSpace, Space
from .bands import Bands, Resnet, Track, held_pictures
from .kl_attention import Attention
from .kl_structure import Half, Level, UnknownStructureError, bare, half_of, is_of
from .kl_walk import Whole, walk
from .layers import Format, entered, without_autocast
from .own_code import check_own_code
from .running import PlanError, Run
from .shapes import dtype_name

#: Steps of progress of a decode or an encode.
STEPS = 1000

#: The families' scaling factors of latents, by the channels that these have.
SCALING = {(4, 0.18215): "sd", (4, 0.13025): "sdxl", (16, 1.5305): "sd3", (16, 0.3611): "flux"}

#: Classes of ComfyUI's.
COMFYUI = ("AutoencodingEngine", "AutoencodingEngineLegacy", "AutoencoderKL")

#: Takes the share of the work that is done.
Tell = Callable[[float], None]

#: Runs a half on values that are taken out of a list.
Forward = Callable[[Half, list[Tensor], Format, Tell], Tensor]


@dataclass(slots=True)
class KlAutoencoder:
    """A KL autoencoder of pictures: Stable Diffusion's 1 to 3, XL's and Flux's.

    Attributes:
        module: the caller's module, which is neither changed nor copied.
        family: `sd`, `sdxl`, `sd3` or `flux`. ComfyUI's modules don't tell it: `sd` or `flux` then, by the channels.
        dialect: `diffusers` or `comfyui`.
        latent_channels: channels of a latent.
        spatial_scale: pixels per latent pixel.
    """

    module: nn.Module
    family: str
    dialect: Literal["diffusers", "comfyui"]
    latent_channels: int
    spatial_scale: int
    is_video: bool = False
    temporal_scale: int = 1

    @classmethod
    def find(cls, module: nn.Module) -> KlAutoencoder | None:
        """The autoencoder that a module is; None if it is another, or is changed in a way that its parts don't tell."""
        module = bare(module)
        if is_of(module, "diffusers", "AutoencoderKL"):
            dialect = "diffusers"
        elif is_of(module, "comfy", *COMFYUI) and getattr(module, "bn", None) is None:
            dialect = "comfyui"
        else:
            return None
        try:
            decoder, encoder = (half_of(module, dialect, half) for half in ("decoder", "encoder"))
        except (UnknownStructureError, AttributeError):
            return None
        channels = _channels_into(decoder)
        scaling: object = getattr(getattr(module, "config", None), "scaling_factor", None)
        guessed = "sd" if channels == 4 else "flux"
        family = SCALING.get((channels, scaling), guessed) if isinstance(scaling, float) else guessed
        if decoder.spatial_scale != encoder.spatial_scale:
            return None
        return cls(module, family, dialect, channels, decoder.spatial_scale)

    def shapes(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Types and extents of the tensors, by the names that a file of this layout has for them: no values are
        read."""
        state = self.module.state_dict(keep_vars=True)
        return {name: (dtype_name(tensor.dtype), tuple(tensor.shape)) for name, tensor in state.items()}

    def decode(self, latents: Tensor, run: Run) -> Tensor:
        """Decodes latents [N, C, h, w] of the module's own space to pictures [N, 3, H, W] in f32, not clamped, on the
        run's device; in f64 of a module in f64, unless the plan is for 16 bits.

        Raises:
            PlanError: the latents are none of this module's, or the plan is none that runs here.
            Cancelled: the run's owner has ended it.
        """
        _check(latents, self.latent_channels, "latents", 1)
        decoder = self._half("decoder")
        return self._samples(latents, run, decoder, _decode)

    def encode(self, pixels: Tensor, run: Run) -> Tensor:
        """Encodes pictures [N, 3, H, W] to moments [N, 2 C, h, w]: means and the logarithms of variances, in the type
        that `decode` gives.

        Raises:
            PlanError: the pictures are none of this module's, or the plan is none that runs here.
            Cancelled: the run's owner has ended it.
        """
        encoder = self._half("encoder")
        _check(pixels, _channels_into(encoder), "pictures", self.spatial_scale)
        return self._samples(pixels, run, encoder, _encode)

    def _half(self, half: str) -> Half:
        try:
            found = half_of(self.module, self.dialect, half)
        except (UnknownStructureError, AttributeError) as error:
            raise PlanError(f"the module's {half} was changed since it was found: {error}: find it again") from None
        check_own_code(self.module, "decode" if found.is_decoder else "encode", found.called)
        return found

    def _samples(self, values: Tensor, run: Run, half: Half, forward: Forward) -> Tensor:
        """Runs samples, so many at once as the plan says."""
        if run.plan.space.kind == "blended":
            raise PlanError("the plan's space is blended: run its tiles one by one, each by a whole plan")
        to = Format.of(run, _is_wide(half))
        total = len(values)
        step = max(run.plan.batch, 1)
        output: Tensor | None = None
        with torch.no_grad(), without_autocast(run.device), entered(self.module):
            run.check()
            for start in range(0, total, step):
                end = min(start + step, total)

                def tell(share: float, start: int = start, end: int = end) -> None:
                    run.advance(round(STEPS * (start + share * (end - start)) / total), STEPS)

                # Nothing here holds the converted input on.
                part = forward(half, [to.ordered(values[start:end].to(to.device, to.layer))], to, tell)
                if end - start == total:
                    return part
                if output is None:
                    output = part.new_empty((total, *part.shape[1:]))
                output[start:end] = part
                del part
                if run.plan.release == "each-step" and to.device.type == "cuda":
                    torch.cuda.empty_cache()
        assert output is not None
        return output


def _check(values: Tensor, channels: int, named: str, least: int) -> None:
    shape = list(values.shape)
    if values.dim() != 4 or shape[1] != channels or not values.is_floating_point():
        kind = str(values.dtype).removeprefix("torch.")
        raise PlanError(f"{named}: expected [N, {channels}, H, W] of floats, not {shape} of {kind}")
    if shape[0] < 1 or min(shape[2:]) < least:
        raise PlanError(f"{named}: {shape} is too small: at least 1 sample of {least}x{least}")


def _channels_into(half: Half) -> int:
    first = half.conv_in if half.quant is None or half.quant.out != half.conv_in.into else half.quant
    return first.into


def _is_wide(half: Half) -> bool:
    return next(half.block.parameters()).dtype == torch.float64


def _tile_height(space: Space) -> int | None:
    if not isinstance(space, ExactSpace):
        return None
    if space.height < 1:
        raise PlanError(f"the plan's bands have {space.height} rows: at least 1")
    return space.height


def _decode(decoder: Half, held: list[Tensor], to: Format, tell: Tell) -> Tensor:
    """Latents [N, C, h, w], taken out of the list, to pictures."""
    _, _, height, width = held[0].shape
    track = Track(_works(decoder, height * width), tell)
    if decoder.quant is not None:
        held = [decoder.quant.whole(to, held)]
    return _final(_walked(decoder, held, to, track, height * decoder.spatial_scale), to)


def _encode(encoder: Half, held: list[Tensor], to: Format, tell: Tell) -> Tensor:
    """Pictures [N, 3, H, W], taken out of the list, to moments."""
    _, _, height, width = held[0].shape
    track = Track(_works(encoder, height * width), tell)
    moments = _walked(encoder, held, to, track, height)
    if encoder.quant is not None:
        moments = encoder.quant.whole(to, [moments])
    return _final(moments, to)


def _walked(half: Half, held: list[Tensor], to: Format, track: Track, height: int) -> Tensor:
    """Runs a half layer by layer, or in bands of a picture of `height` rows."""
    band = _tile_height(to.run.plan.space)
    if band is None:
        return walk(half, Whole(to, track), held, [])
    kept: list[bool] = []
    if half.is_decoder:
        levels = [(_out(level, half), len(level.resnets), level.up is not None) for level in half.levels]
        has_attention = any(attention is not None for _, attention in half.middle.resnets)
        kept = held_pictures(half.conv_in.out, levels, half.conv_out.out, has_attention)
    return walk(half, Bands(to, band, height, track), held, kept)


def _out(level: Level, half: Half) -> int:
    """Channels that a level gives."""
    if level.resnets:
        return level.resnets[-1][0].conv2.out
    return half.conv_in.out if level.up is None else level.up.out


def _final(output: Tensor, to: Format) -> Tensor:
    return output.to(to.single).contiguous()


def _works(half: Half, pixels: float) -> list[float]:
    """The work of each layer, for so many pixels of its input, in the order that they run."""
    works = [9.0 * pixels * half.conv_in.into * half.conv_in.out]

    def add(resnets: list[tuple[Resnet, Attention | None]]) -> None:
        for resnet, attention in resnets:
            out = resnet.conv1.out
            shortcut = 0.0 if resnet.shortcut is None else 1.0 * resnet.shortcut.into * out
            works.append(pixels * (9.0 * out * (resnet.conv1.into + out) + shortcut))
            if attention is not None:
                works.append(pixels * out * (4.0 * out + 2.0 * pixels))

    if half.is_decoder:
        add(half.middle.resnets)
    for level in half.levels:
        add(level.resnets)
        if level.up is not None:
            pixels *= 4.0
            works.append(9.0 * pixels * level.up.into * level.up.out)
        if level.down is not None:
            pixels /= 4.0
            works.append(9.0 * pixels * level.down.out**2)
    if not half.is_decoder:
        add(half.middle.resnets)
    works.append(9.0 * pixels * half.conv_out.into * half.conv_out.out)
    return works
