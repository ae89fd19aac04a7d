"""An encode of a clip: its first frame alone, and then as many frames at once as become one latent frame. A layer holds
the frames before that it looks at, and nothing else is held between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from .causal_convolution import CausalConv
from .causal_hooks import Blocks
from .causal_layers import Bands, Past, attend, convolve, convolved, pointwise
from .causal_steps import half_modules
from .causal_structure import Attention, HalfStructure, Layer, Resample, Residual, Shortcut, Structure
from .layers import Downsample, Format

#: Parts of the work that progress is told in.
PARTS = 1000


def patched(frames: Tensor, side: int) -> Tensor:
    """Squares of pixels as channels, column after column: [T, C, H, W] → [T, C · p · p, H / p, W / p]."""
    if side == 1:
        return frames
    count, channels, height, width = frames.shape
    squares = frames.reshape(count, channels, height // side, side, width // side, side).permute(0, 1, 5, 3, 2, 4)
    return squares.reshape(count, channels * side * side, height // side, width // side)


@dataclass(slots=True)
class ClipEncode:
    """The encode of one sample: the causal state of each layer, in the order in which they run."""

    half: HalfStructure
    to: Format
    blocks: Blocks
    bands: Bands
    pasts: list[Past] = field(default_factory=list[Past])
    _next: Iterator[Past] = field(default_factory=lambda: iter(()))

    def push(self, frames: Tensor) -> Tensor:
        """The next frames [T, C, H, W] to moments [t, 2z, h, w]."""
        self._next = self._each_past()
        given = [frames]
        del frames
        self.blocks.enter(half_modules(self.half.first))
        given = [convolved(self.to, self.half.first, next(self._next), given.pop(), self.bands)]
        for layer in self.half.layers:
            self._run(layer, given)
        self.blocks.enter(half_modules(self.half.last))
        moments = convolved(self.to, self.half.last, next(self._next), given.pop(), self.bands)
        self.blocks.enter([self.half.pointwise])
        return pointwise(self.to, self.half.pointwise, moments)

    def _each_past(self) -> Iterator[Past]:
        index = 0
        while True:
            if index == len(self.pasts):
                self.pasts.append(Past())
            yield self.pasts[index]
            index += 1

    def _run(self, layer: Layer, given: list[Tensor]) -> None:
        """Frames through a layer, taken out of the list and put into it."""
        self.to.run.check()
        if isinstance(layer, Residual):
            given.append(self._residual(layer, given.pop()))
        elif isinstance(layer, Attention):
            given.append(self._attended(layer, given.pop()))
        elif isinstance(layer, Resample):
            given.append(self._halved(layer, given.pop()))
        else:
            self._run_shortcut(layer, given)

    def _run_shortcut(self, layer: Shortcut, given: list[Tensor]) -> None:
        # Averages hold no weights: they are called in the type between layers.
        averages = cast(Tensor, layer.module(given[0].transpose(0, 1).unsqueeze(0)))
        # The layers write sums onto their input, which nobody needs after that.
        for inner in layer.layers:
            self._run(inner, given)
        given[0] += averages[0].transpose(0, 1)

    def _residual(self, layer: Residual, frames: Tensor) -> Tensor:
        self.blocks.enter(half_modules(layer.first) + half_modules(layer.last))
        hidden = convolved(self.to, layer.first, next(self._next), frames, self.bands)
        if layer.shortcut is not None:
            frames = pointwise(self.to, layer.shortcut, frames)

        def add(part: Tensor, lap: slice, rows: slice) -> None:
            frames[lap, :, rows] += part

        convolve(self.to, layer.last, next(self._next), hidden, add, self.bands)
        return frames

    def _attended(self, layer: Attention, frames: Tensor) -> Tensor:
        self.blocks.enter([layer.norm, layer.query_key_value, layer.output])
        count, channels, height, width = frames.shape
        output = self.to.empty(count, channels, height, width)
        for index in range(count):
            output[index : index + 1] = attend(self.to, layer, frames[index : index + 1])
        return output

    def _halved(self, layer: Resample, frames: Tensor) -> Tensor:
        """Half the height and width, and half the frames but the clip's first: each is made of three, the last one of
        those before among them."""
        self.blocks.enter([layer.space])
        smaller = Downsample(layer.space).forward(self.to, frames, lambda _: self.to.run.check())
        del frames
        if layer.time is None:
            return smaller
        past = next(self._next)
        if not past.begun:
            past.keep([smaller[-1:].to(self.to.compute, copy=True)], 1)
            return smaller
        conv, values = CausalConv(layer.time), smaller.to(self.to.compute)
        window = torch.cat([*past.frames, values])
        past.keep([values[-1:].clone()], 1)
        del smaller, values
        count = (window.shape[0] - conv.taps) // conv.stride + 1
        output = self.to.empty(count, conv.out, window.shape[2], window.shape[3])
        with conv.opened(self.to) as product:
            for index in range(count):
                first = index * conv.stride
                output[index] = product([window[tap : tap + 1] for tap in range(first, first + conv.taps)], 0, 0)[0]
        return output


def latent_frames(frames: int, temporal: int) -> int:
    """Latent frames of a clip's frames; those that make no whole one are left out."""
    return 1 + (frames - 1) // temporal


def encode(
    structure: Structure, pixels: Tensor, to: Format, blocks: Blocks, emit: Callable[[int, int, Tensor], None]
) -> None:
    """Encodes clips [N, C, T, H, W], one after the other.

    Args:
        structure: the autoencoder.
        pixels: in −1 … 1.
        to: the plan's types, and the attempt.
        blocks: the module's blocks.
        emit: called with the sample, the index of a latent frame, and its moments [1, 2z, h, w].

    Raises:
        Cancelled: the run was cancelled.
    """
    assert structure.encoder is not None, "looked at before"
    samples, _, count, height, _ = pixels.shape
    temporal = structure.temporal_scale
    all_latents = latent_frames(count, temporal)
    for sample in range(samples):
        clip = ClipEncode(structure.encoder, to, blocks, Bands(None, height))
        for latent in range(all_latents):
            frames = slice(0, 1) if latent == 0 else slice(1 + (latent - 1) * temporal, 1 + latent * temporal)
            # [1, C, T, H, W] → [T, C, H, W]
            part = pixels[sample, :, frames].transpose(0, 1).to(to.device, to.layer)
            emit(sample, latent, clip.push(to.ordered(patched(part, structure.patch))))
            to.run.advance(PARTS * (sample * all_latents + latent + 1) // (samples * all_latents), PARTS)
