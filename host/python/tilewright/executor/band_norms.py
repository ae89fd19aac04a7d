"""Group norms of whole pictures, and of pictures that come in parts: by sums that are taken as they are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import Format, casts, entered

#: Values of a picture that sums take at once: on a CPU a piece stays in a core's cache.
CPU_PIECE = 1 << 17
GPU_PIECE = 1 << 24


class Norm:
    """A group norm."""

    __slots__ = ("module", "groups", "epsilon")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        named = cast(Any, module)
        self.groups: int = named.num_groups
        self.epsilon: float = named.eps

    def parameters(self, to: Format, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """Factor and term of each channel [C]; none of a norm without them."""
        module = cast(Any, self.module)
        if casts(module):
            return self._probed(to, dtype)
        with entered(module):
            moved: Callable[[Tensor | None], Tensor | None]
            moved = lambda one: None if one is None else one.detach().to(device=to.device, dtype=dtype)  # noqa: E731
            return moved(module.weight), moved(module.bias)

    def _probed(self, to: Format, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The output of a norm of ComfyUI's for values whose normed ones are known: patches, types and places of its
        weights are its own affair then."""
        module = cast(Any, self.module)
        probe = torch.ones((1, module.num_channels, 2), dtype=to.sums, device=to.device)
        probe[:, :, 1] = -1.0
        above, below = module.forward_comfy_cast_weights(probe)[0].unbind(-1)
        factor = (above - below) / 2 * (1.0 + self.epsilon) ** 0.5
        return factor.to(dtype), ((above + below) / 2).to(dtype)

    def forward(self, to: Format, picture: Tensor) -> Tensor:
        """The norm of a picture [N, C, H, W], in its type and order."""
        strips = list(to.strips(picture))
        if picture.is_contiguous() and len(strips) == 1:
            weight, bias = self.parameters(to, picture.dtype)
            return F.group_norm(picture, self.groups, weight, bias, self.epsilon)
        # PyTorch adds up squares of channels-last values one by one, and its norm on a GPU comes out channels-first.
        sums = Sums(to, picture.shape[0], picture.shape[1])
        sums.add(picture)
        affine, output = self.affine(to, sums), torch.empty_like(picture)
        for rows in to.strips(picture):
            torch.addcmul(affine.shift, picture[:, :, rows], affine.scale, out=output[:, :, rows])
        return output

    def forward_silu(self, to: Format, picture: Tensor) -> Tensor:
        """The norm and then SiLU."""
        output = self.forward(to, picture)
        for rows in to.strips(output):
            F.silu(output[:, :, rows], inplace=True)
        return output

    def affine(self, to: Format, sums: Sums) -> Affine:
        """The norm of a picture whose sums are known."""
        weight, bias = self.parameters(to, to.sums)
        batch, channels = sums.values.shape[1:]
        of_group = sums.values.reshape(2, batch, self.groups, -1).mean(3, keepdim=True) / sums.pixels
        mean, variance = of_group[0], (of_group[1] - of_group[0].square()).clamp_min_(0.0)
        scale = (variance + self.epsilon).rsqrt_().expand(batch, self.groups, channels // self.groups)
        if weight is not None:
            scale = scale * weight.reshape(1, self.groups, -1)
        shift = -mean * scale if bias is None else bias.reshape(1, self.groups, -1) - mean * scale
        shape = (batch, channels, 1, 1)
        return Affine(scale.reshape(shape).to(to.single), shift.reshape(shape).to(to.single))


class Sums:
    """Sums over the pixels of a picture, and sums of their squares, for each sample and channel.

    Attributes:
        values: [2, N, C].
        pixels: pixels in the sums, of each sample.
    """

    __slots__ = ("_to", "pixels", "values")

    def __init__(self, to: Format, batch: int, channels: int) -> None:
        self._to = to
        self.values = torch.zeros((2, batch, channels), dtype=to.sums, device=to.device)
        self.pixels = 0

    def add(self, picture: Tensor) -> None:
        """Adds the pixels of [N, C, h, W]. Squares are of values less their piece's mean, or else a large mean would
        cost their bits."""
        batch, channels, height, width = picture.shape
        most = CPU_PIECE if self._to.device.type == "cpu" else GPU_PIECE
        step = max(min(most // max(batch * channels * width, 1), height), 1)
        for start in range(0, height, step):
            self._to.run.check()
            part = picture[:, :, start : start + step].to(self._to.single)
            mean = part.mean((2, 3), keepdim=True)
            squares = part.sub(mean).square_().sum((2, 3)).to(self.values.dtype)
            count = part.shape[2] * width
            mean = mean.reshape(batch, channels).to(self.values.dtype)
            self.values[0] += mean * count
            self.values[1] += squares + mean.square() * count
            self.pixels += count


@dataclass(frozen=True, slots=True)
class Affine:
    """A norm as a factor and a term for each sample and channel, [N, C, 1, 1]."""

    scale: Tensor
    shift: Tensor

    def silu(self, picture: Tensor) -> Tensor:
        """The norm of [N, C, h, W], and SiLU, in f32 or wider."""
        return F.silu(torch.addcmul(self.shift, picture.to(self.shift.dtype), self.scale), inplace=True)
