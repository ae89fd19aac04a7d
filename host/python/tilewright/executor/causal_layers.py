"""The layers of a causal autoencoder of clips: the caller's modules, run on frames as the Rust engine runs its own.

Frames are [T, C, H, W], one clip's, in the plan's type between layers. A causal layer keeps the frames before that it
looks at in a `Past`, in the type of its convolution. On a CPU a layer takes a frame at a time, on a GPU as many as
there are; with bands, a causal convolution takes some rows at a time, with a neighbour's row on either side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .causal_convolution import CausalConv
from .causal_structure import Attention, Half
from .kl_attention import attend as attend_tokens
from .layers import Format, Linear

#: The fewest rows of a band: below this most of it would be its neighbours' rows.
LEAST_ROWS = 8


@dataclass(slots=True)
class Past:
    """The memory of a causal layer: its own input of the frames before, [1, C, H, W] each, oldest first."""

    frames: list[Tensor] = field(default_factory=list[Tensor])
    #: The clip's first frame has gone by.
    begun: bool = False

    def keep(self, frames: list[Tensor], most: int) -> None:
        """Keeps the last frames, that are nobody else's."""
        self.frames = (self.frames + frames)[-most:]
        self.begun = True


@dataclass(frozen=True, slots=True)
class Bands:
    """The rows that a causal convolution takes at once.

    Attributes:
        band: rows of the output in a band; None if the area is not divided.
        height: rows of the output.
    """

    band: int | None
    height: int

    def rows(self, height: int) -> int:
        """Rows of a band in a layer of this height."""
        return height if self.band is None else min(max(self.band * height // self.height, LEAST_ROWS), height)


#: The area is not divided.
UNDIVIDED = Bands(None, 1)


def laps(to: Format, count: int) -> Iterator[slice]:
    """The frames that go through a layer at once."""
    step = 1 if to.device.type == "cpu" else max(count, 1)
    for start in range(0, count, step):
        to.run.check()
        yield slice(start, min(start + step, count))


def normed(to: Format, half: Half, frames: Tensor) -> Tensor:
    """Frames after a norm, if there is one, and an activation, in the type of convolutions. Norms are always in f32: a
    sum of squares in 16 bits loses what it is for."""
    if half.norm is None:
        return frames.to(to.compute)
    # The channels are axis 1, and the norm has a factor for each: of [T, C, 1, H, W].
    values = cast(Tensor, half.norm(frames.to(to.single).unsqueeze(2)))
    if isinstance(half.activation, nn.SiLU):
        # In place: it is nobody else's.
        values = F.silu(values, inplace=True)
    elif half.activation is not None:
        values = cast(Tensor, half.activation(values))
    return values.squeeze(2).to(to.compute)


def taps_of(past: Past, values: Tensor, rows: slice, conv: CausalConv) -> list[Tensor]:
    """The frames that each tap of a convolution meets, [t, C, h, W] of some rows; fewer if zeros stand before a
    single frame."""
    frames = [frame[:, :, rows] for frame in past.frames[-conv.before :]] if conv.before else []
    values = values[:, :, rows]
    if values.shape[0] == 1:
        return [*frames, values]
    missing = conv.before - len(frames)
    if missing > 0:
        frames.insert(0, values.new_zeros((missing, *values.shape[1:])))
    window = torch.cat([*frames, values]) if frames else values
    return [window[tap : tap + values.shape[0]] for tap in range(conv.taps)]


def convolve(
    to: Format,
    half: Half,
    past: Past,
    frames: Tensor,
    write: Callable[[Tensor, slice, slice], None],
    bands: Bands = UNDIVIDED,
    *,
    may_scatter: bool = False,
) -> None:
    """Frames through norm, activation and causal convolution; `write` gets the result [t, C, h, W] with the frames and
    the rows that it is of. A layer that may keeps sums in place of frames, where these are less."""
    count, _, height, width = frames.shape
    conv = CausalConv(half.convolution)
    if may_scatter and conv.is_leaner_in_sums:
        _scatter(to, half, conv, past, frames, write)
        return
    each_lap = list(laps(to, count))
    if not past.frames and count > 1 and to.device.type != "cpu":
        # The clip's first frame has no past to convolve.
        each_lap = [slice(0, 1), slice(1, count)]
    with conv.opened(to) as product:
        for lap in each_lap:
            to.run.check()
            values = normed(to, half, frames[lap])
            operations = 2.0 * conv.work * height * width * (lap.stop - lap.start)
            step = min(bands.rows(height), to.rows_at_once(height, operations))
            for start in range(0, height, step):
                rows = slice(start, min(start + step, height))
                needed = slice(max(rows.start - 1, 0), min(rows.stop + 1, height))
                if step < height:
                    to.run.check()
                parts = taps_of(past, values, needed, conv)
                part = product(parts, rows.start - needed.start, needed.stop - rows.stop)
                write(part, lap, rows)
                del parts, part
            past.keep(last_frames(values, conv.before, is_own=half.norm is not None), conv.before)


def _scatter(
    to: Format,
    half: Half,
    conv: CausalConv,
    past: Past,
    frames: Tensor,
    write: Callable[[Tensor, slice, slice], None],
) -> None:
    """As `convolve`. The past holds what the frames before add to the next one and to the one after it, in the type
    between layers."""
    count, _, height, width = frames.shape
    step = to.rows_at_once(height, 2.0 * conv.work * height * width)
    with conv.opened(to, scatters=True) as product:
        for index in range(count):
            values = normed(to, half, frames[index : index + 1])
            if step >= height:
                to.run.check()
                parts = product([values], 0, 0).to(to.layer)
            else:
                parts = to.empty(1, 3 * conv.out, height, width)
                for start in range(0, height, step):
                    to.run.check()
                    first, last = max(start - 1, 0), min(start + step + 1, height)
                    end = min(start + step, height)
                    parts[:, :, start:end] = product([values[:, :, first:last]], start - first, last - end)
            del values
            after, following, now = parts.chunk(3, 1)
            before = past.frames
            kept = [following + before[1] if before else following.clone(), after.clone()]
            write(now + before[0] if before else now, slice(index, index + 1), slice(0, height))
            past.frames, past.begun = kept, True
            del parts, after, following, now, before, kept


def last_frames(values: Tensor, most: int, *, is_own: bool) -> list[Tensor]:
    """The last frames, as many as a past holds, as tensors of their own."""
    count = values.shape[0]
    if count == 1 and is_own:
        return [values]
    return [values[index : index + 1].clone() for index in range(max(count - most, 0), count)]


def convolved(
    to: Format, half: Half, past: Past, frames: Tensor, bands: Bands = UNDIVIDED, *, may_scatter: bool = False
) -> Tensor:
    """Frames through norm, activation and causal convolution, in memory of their own."""
    count, _, height, width = frames.shape
    output = to.empty(count, cast(Any, half.convolution).out_channels, height, width)

    def store(part: Tensor, lap: slice, rows: slice) -> None:
        output[lap, :, rows] = part

    convolve(to, half, past, frames, store, bands, may_scatter=may_scatter)
    return output


def each(to: Format, frames: Tensor, layer: Callable[[Tensor], Tensor]) -> Tensor:
    """Frames through a layer that looks at each by itself."""
    output: Tensor | None = None
    count = frames.shape[0]
    for lap in laps(to, count):
        part = layer(frames[lap])
        if part.shape[0] == count:
            return part.to(to.layer)
        if output is None:
            channels, height, width = part.shape[1:]
            output = to.empty(count, channels, height, width)
        output[lap] = part
        del part
    assert output is not None, "there is a frame at least"
    return output


def pointwise(to: Format, convolution: nn.Module, frames: Tensor) -> Tensor:
    """Frames through a convolution of single pixels."""

    def layer(part: Tensor) -> Tensor:
        return product([part.to(to.compute)], 0, 0)

    with CausalConv(convolution).opened(to) as product:
        return each(to, frames, layer)


def attend(to: Format, attention: Attention, frame: Tensor) -> Tensor:
    """A frame [1, C, H, W] after attention over its pixels, added to it; in the type between layers."""
    _, channels, height, width = frame.shape
    values = cast(Tensor, attention.norm(frame.to(to.single))).to(to.compute)
    # [1, C, H, W] → [1, HW, C]
    tokens = values.flatten(2).transpose(1, 2).contiguous()
    del values
    tokens = Linear(attention.query_key_value).forward(to, tokens)
    query, key, value = (part.contiguous() for part in tokens.chunk(3, 2))
    del tokens
    attend_tokens(to, query, key, value)
    del key, value
    added = Linear(attention.output).forward(to, query)
    del query
    return frame + added.transpose(1, 2).reshape(1, channels, height, width).to(to.layer)
