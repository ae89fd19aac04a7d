"""The convolution of a causal layer, over a frame and those before it, on the caller's module."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .causal_structure import CAUSAL, is_named
from .layers import Format, casts, entered, is_replaced
from .own_code import has_hooks, has_library_forward

#: The fewest channels of a convolution that is computed in parts of its channels.
LEAST_CHANNELS = 64

#: A convolution of frames [t, C, h, W], those that each of its taps meets, the latest last; so many of their rows,
#: above and below, are neighbours' alone. Fewer frames than taps stand for zeros before them.
Product = Callable[[list[Tensor], int, int], Tensor]


class CausalConv:
    """A convolution over a frame and those before it, or over the frame alone.

    It is computed as a two-dimensional one of frames that are laid side by side as channels: PyTorch's
    three-dimensional one is slower, on a CPU and on AMD's GPUs, and lays small inputs out once per tap.
    """

    __slots__ = ("_padding", "into", "module", "out", "stride", "taps", "work")

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        named = cast(Any, module)
        self.out: int = named.out_channels
        self.into: int = named.in_channels
        self.taps: int = named.kernel_size[0]
        #: Frames that it goes on by.
        self.stride: int = named.stride[0]
        rows, columns = named.kernel_size[1:]
        self._padding: tuple[int, int] = (rows // 2, columns // 2)
        #: Products of a pixel.
        self.work: int = self.out * self.into * self.taps * rows * columns

    @property
    def before(self) -> int:
        """Frames before that it looks at."""
        return self.taps - 1

    @property
    def is_leaner_in_sums(self) -> bool:
        """True if what a frame adds to itself and to the next two is less to keep than the frame."""
        return self.taps == 3 and 2 * self.out <= self.into and self._is_plain()

    @contextmanager
    def opened(self, to: Format, *, scatters: bool = False) -> Generator[Product, None, None]:
        """The convolution of frames. Within, its weights are at hand.

        If it `scatters`, it takes one frame [1, C, h, W] to what that adds to the frame after the next, to the next and
        to itself, [1, 3 · out, h, W].
        """
        if not self._is_plain():
            # It runs its hooks itself.
            yield self._called(to)
            return
        with entered(self.module):
            if self._is_cast():
                yield self._casting(to, scatters)
                return
            module = cast(Any, self.module)
            weight = module.weight.detach().to(device=to.device, dtype=to.compute)
            bias = None if module.bias is None else module.bias.detach().to(device=to.device, dtype=to.compute)
            laid_out: dict[int, tuple[Tensor, Tensor | None]] = {}

            def product(parts: list[Tensor], above: int, below: int) -> Tensor:
                taps = len(parts)
                if not scatters and weight.numel() > 2 * taps * parts[0].numel() and self.out >= LEAST_CHANNELS:
                    return self._in_parts(to, stacked(parts), weight, bias, taps, above, below)
                if taps not in laid_out:
                    # Those of the clip's first frames are not needed again.
                    laid_out.clear()
                    laid_out[taps] = self._laid_out(to, weight, bias, taps, scatters)
                return self._product(to, stacked(parts), *laid_out[taps], above, below)

            yield product

    def _in_parts(
        self, to: Format, frames: Tensor, weight: Tensor, bias: Tensor | None, taps: int, above: int, below: int
    ) -> Tensor:
        """The convolution to some channels after the other: of small frames most that is held are weights, and a plan's
        price does not count them twice."""
        step = self.out // 4
        output: list[Tensor] = []
        for start in range(0, self.out, step):
            to.run.check()
            some = slice(start, start + step)
            laid_out = self._laid_out(to, weight[some], None if bias is None else bias[some], taps, False)
            output.append(self._product(to, frames, *laid_out, above, below))
        return torch.cat(output, 1)

    def _laid_out(
        self, to: Format, weight: Tensor, bias: Tensor | None, taps: int, scatters: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Weights [out, C, T, h, w] of the last taps as [out, T · C, h, w], or of all as [T · out, C, h, w]; and the
        bias."""
        if scatters:
            apart = weight.movedim(2, 0)
            none = None if bias is None else torch.cat([bias.new_zeros(2 * self.out), bias])
            return to.ordered(apart.reshape(-1, *apart.shape[2:])), none
        latest = weight[:, :, self.taps - taps :].transpose(1, 2)
        return to.ordered(latest.reshape(latest.shape[0], -1, *latest.shape[3:])), bias

    def _product(
        self, to: Format, frames: Tensor, weight: Tensor, bias: Tensor | None, above: int, below: int
    ) -> Tensor:
        rows, columns = self._padding
        if rows == columns == 0 and not to.channels_last:
            return _pointwise(frames, weight, bias)
        frames = to.ordered(frames)
        if above == below == rows:
            # The neighbours' rows are there in place of zeros.
            return F.conv2d(frames, weight, bias, padding=(0, columns))
        return _cropped(F.conv2d(frames, weight, bias, padding=(rows, columns)), above, below)

    def _is_plain(self) -> bool:
        """True of a convolution whose class pads frames before it, and does nothing else."""
        module = cast(Any, self.module)
        own = getattr(nn.Conv3d, "_conv_forward", None)
        convolves = casts(module) or getattr(type(self.module), "_conv_forward", None) is own
        is_changed = is_replaced(module) or has_hooks(module) or not has_library_forward(module)
        return convolves and is_named(module, CAUSAL) and not is_changed and "_conv_forward" not in module.__dict__

    def _is_cast(self) -> bool:
        """True of a layer of ComfyUI's whose weights are elsewhere, in a form of their own or changed on the way."""
        module = cast(Any, self.module)
        if not casts(module):
            return False
        changes = ("weight_function", "bias_function", "weight_lowvram_function", "bias_lowvram_function", "_v")
        return any(getattr(module, name, None) for name in changes) or type(module.weight) is not nn.Parameter

    def _casting(self, to: Format, scatters: bool) -> Product:
        """A layer that brings its weights as ComfyUI does, in each call."""
        module = cast(Any, self.module)

        def product(parts: list[Tensor], above: int, below: int) -> Tensor:
            def convolve(frames: Tensor, weight: Tensor, bias: Tensor | None, **_: Any) -> Tensor:
                laid_out = self._laid_out(to, weight, bias, len(parts), scatters)
                return self._product(to, frames, *laid_out, above, below)

            # The layer's own forward casts weights, calls this with them, and gives their memory back.
            module.__dict__["_conv_forward"] = convolve
            try:
                return cast(Tensor, module.forward_comfy_cast_weights(stacked(parts)))
            finally:
                module.__dict__.pop("_conv_forward", None)

        return product

    def _called(self, to: Format) -> Product:
        """A layer that somebody has changed: called in its own type, with the frames before as a cache."""
        module = cast(Any, self.module)
        own = next((one.dtype for one in self.module.parameters() if one.is_floating_point()), to.compute)
        padding: Any = module._padding
        pads = (cast(int, padding[4]) if isinstance(padding, tuple) else padding) > 0

        def convolve(frames: Tensor) -> Tensor:
            clip = frames.transpose(0, 1).unsqueeze(0)
            before = clip[:, :, :-1] if clip.shape[2] > 1 else None
            output = module(clip[:, :, -1:], before) if pads else module(clip)
            return output[0].transpose(0, 1)

        def product(parts: list[Tensor], above: int, below: int) -> Tensor:
            each_frame = [
                convolve(torch.cat([part[index : index + 1] for part in parts]).to(own))
                for index in range(parts[0].shape[0])
            ]
            return _cropped(torch.cat(each_frame).to(to.compute), above, below)

        return product


def stacked(parts: list[Tensor]) -> Tensor:
    """Frames of each tap, [t, C, h, W], side by side as channels."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _cropped(frames: Tensor, above: int, below: int) -> Tensor:
    return frames[:, :, above : frames.shape[2] - below] if above or below else frames


def _pointwise(frames: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution of single pixels as the matrix product that it is: oneDNN's would reorder input and output."""
    (count, into, height, width), out = frames.shape, weight.shape[0]
    values = frames.reshape(count, into, height * width)
    matrix = weight.reshape(1, out, into).expand(count, out, into)
    product = torch.bmm(matrix, values) if bias is None else torch.baddbmm(bias.reshape(1, out, 1), matrix, values)
    return product.reshape(count, out, height, width)
