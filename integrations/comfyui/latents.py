"""ComfyUI's latents, pictures and masks as the engine's files have them, and back.

Latents are in the VAE's own space on both sides; pictures are [N, H, W, 3] in 0…1 here and [N, 3, H, W] in −1…1 there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Format:
    """Latents of a family.

    Attributes:
        channels: channels of a latent.
        spatial: pixels along a side for each of the latent's.
        temporal: frames for each frame of the latent but the first; 1 for pictures.
    """

    channels: int
    spatial: int
    temporal: int

    @property
    def is_video(self) -> bool:
        """Latents are [N, C, T, h, w]."""
        return self.temporal > 1


#: Formats by the family whose latents a transformer makes, as the engine names it.
FORMATS = {"flux": Format(16, 8, 1), "wan-2.1": Format(16, 8, 4), "wan-2.2": Format(48, 16, 4)}


def samples_of(latent: dict[str, Any]) -> Tensor:
    """The values of a latent, [N, C, h, w] or [N, C, T, h, w], in f32 on the host.

    Raises:
        TilewrightError: it holds several tensors, as latents of sound and frames do, or has another number of axes.
    """
    import torch

    from tilewright.errors import TilewrightError

    samples = latent["samples"]
    if getattr(samples, "is_nested", False):
        raise TilewrightError("latent: it holds several tensors, as of sound and frames: the engine takes one")
    if samples.ndim not in (4, 5):
        raise TilewrightError(f"latent: expected [N, C, h, w] or [N, C, T, h, w], not {list(samples.shape)}")
    return samples.detach().to(device="cpu", dtype=torch.float32).contiguous()


def fitted(latent: dict[str, Any], wanted: Format) -> Tensor:
    """The values of a latent as a transformer takes them: one of zeros, as EmptyLatentImage makes it, gets the model's
    channels and size, as in ComfyUI's own samplers.

    Raises:
        TilewrightError: a latent with values has other channels.
    """
    import comfy.utils

    from tilewright.errors import TilewrightError

    samples = samples_of(latent)
    is_empty = not samples.any()
    if samples.shape[1] != wanted.channels:
        if not is_empty:
            raise TilewrightError(
                f"latent: it has {samples.shape[1]} channels, and this model's latents have {wanted.channels}: encode "
                f"with "
                "the model's own VAE"
            )
        samples = samples.new_zeros((samples.shape[0], wanted.channels, *samples.shape[2:]))
    ratio = latent.get("downscale_ratio_spacial")
    if is_empty and ratio is not None and ratio != wanted.spatial:
        sides = [round(side * ratio / wanted.spatial) for side in samples.shape[-2:]]
        samples = samples.new_zeros((*samples.shape[:-2], *sides))
    if wanted.is_video and samples.ndim == 4:
        samples = samples.unsqueeze(2)
    ratio = latent.get("downscale_ratio_temporal")
    if is_empty and samples.ndim == 5 and ratio is not None and ratio != wanted.temporal:
        frames = max(1, round(samples.shape[2] * ratio / wanted.temporal))
        samples = comfy.utils.repeat_to_batch_size(samples, frames, dim=2)
    return samples


def mask_of(mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A mask at the resolution of a latent, [1, 1, (T,) h, w]: 1 where it is made again.

    Args:
        mask: [H, W], [N, H, W] or [N, 1, (T,) H, W] in 0…1.
        shape: the latent's.

    Raises:
        TilewrightError: the samples of a batch have different masks, which the engine can't take.
    """
    import comfy.utils
    import torch

    from tilewright.errors import TilewrightError

    values = mask.detach().to(device="cpu", dtype=torch.float32)
    if values.ndim == 2:
        values = values[None]
    if len(shape) == 4 and values.ndim == 3 and values.shape[0] > 1 and (values == values[:1]).all():
        values = values[:1]
    scaled = comfy.utils.reshape_mask(values, (max(1, shape[0]), 1, *shape[2:]))
    if scaled.shape[0] > 1 and not (scaled == scaled[:1]).all():
        raise TilewrightError("mask: each sample of the batch has another one: sample them one by one, each with its "
        "own")
    return scaled[:1].clamp(0, 1).contiguous()


def pixels_of(image: Tensor, is_video: bool) -> Tensor:
    """Pictures as the engine encodes them: [N, 3, H, W] in −1…1, or one clip [1, 3, T, H, W] for a video VAE.

    Args:
        image: [N, H, W, C] in 0…1; channels beyond three are left out.

    Raises:
        TilewrightError: it has fewer channels.
    """
    import torch

    from tilewright.errors import TilewrightError

    if image.shape[-1] < 3:
        raise TilewrightError(f"image: expected three channels, not {image.shape[-1]}")
    values = image[..., :3].detach().to(device="cpu", dtype=torch.float32) * 2.0 - 1.0
    pixels = values.movedim(-1, 1)
    return (pixels.movedim(0, 1)[None] if is_video else pixels).contiguous()


def png_of(image: Tensor) -> bytes:
    """The first of pictures [N, H, W, C] in 0…1 as a PNG, in bytes as ComfyUI's own nodes save and load them."""
    import io as streams

    from .plotting import to_picture

    file = streams.BytesIO()
    to_picture(image).save(file, "PNG", compress_level=1)
    return file.getvalue()


def cropped(image: Tensor, scale: int) -> Tensor:
    """The middle of pictures [N, H, W, C], as large as whole latent pixels of `scale` along a side."""
    for axis in (1, 2):
        side = image.shape[axis] // scale * scale
        image = image.narrow(axis, image.shape[axis] % scale // 2, side)
    return image


def read_image(path: Path) -> Tensor:
    """The pictures [N, H, W, 3] in 0…1 of a decode's result; frames of clips one after the other, as in ComfyUI.

    Values are read frame by frame, so that besides the result one frame is held.

    Raises:
        TilewrightError: the file has no pictures.
    """
    import torch
    from safetensors import safe_open

    from tilewright.errors import TilewrightError

    with safe_open(path, framework="pt") as file:
        name = next((name for name in ("sample", "samples") if name in file.keys()), None)
        if name is None:
            raise TilewrightError("the engine's result has no pictures")
        values = file.get_slice(name)
        batch, channels, *frames, height, width = values.get_shape()
        count = frames[0] if frames else 1
        image = torch.empty((batch * count, height, width, channels), dtype=torch.float32)
        for index in range(batch * count):
            sample, frame = divmod(index, count)
            # A slice of one frame alone is read from the file.
            one = values[sample : sample + 1, :, frame : frame + 1] if frames else values[sample : sample + 1]
            one = one.reshape(channels, height, width).movedim(0, -1)
            torch.clamp((one.to(torch.float32) + 1.0) / 2.0, 0.0, 1.0, out=image[index])
    return image


def read_latent(path: Path) -> Tensor:
    """The latent [N, C, h, w] or [N, C, T, h, w] of a sample's or encode's result, f32.

    Raises:
        TilewrightError: the file has no latent.
    """
    import torch
    from safetensors.torch import load_file

    from tilewright.errors import TilewrightError

    tensors = load_file(path)
    for name in ("latent", "latent_tensor", "sample"):
        if name in tensors:
            return tensors[name].to(torch.float32)
    raise TilewrightError("the engine's result has no latent")


def places_of(latent: dict[str, Any]) -> list[int] | None:
    """The places in the batch that the latent was taken from, if ComfyUI's nodes have left them: the noise of a sample
    is that of its place."""
    indices = latent.get("batch_index")
    return None if indices is None else [int(index) for index in indices]
