"""Plans carried out on an input: samples in turn, and tiles and chunks that run alone and are cross-faded.

Tiles lie as the Rust engine lays them: all of one shape, the last of a row or column moved inward, their weights linear
over the overlap and adding up to one everywhere. So do chunks of a clip along its frames: the last begins earlier and
is no shorter, and each frame has one place, so that none is doubled or left out where a chunk begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..records import BlendedSpace, BlendedTime, WholeSpace, WholeTime
from .autoencoders import Autoencoder
from .failures import check_finite
from .running import Run

#: Parts of a piece that progress is told in.
_PARTS = 100

Stage = Literal["decode", "encode"]


@dataclass(frozen=True, slots=True)
class Axis:
    """Tiles along one axis, in whatever unit the caller counts.

    Attributes:
        extent: extent of the whole.
        tile: extent of each tile.
        overlap: nominal overlap of neighbours.
        starts: the first place of each tile, ascending.
    """

    extent: int
    tile: int
    overlap: int
    starts: tuple[int, ...]

    @classmethod
    def of(cls, extent: int, tile: int, overlap: int) -> Axis:
        """Lays tiles over an extent. A tile larger than the extent becomes the extent."""
        if tile <= 0 or tile >= extent:
            return cls(extent, extent, 0, (0,))
        step = tile - min(max(overlap, 0), tile - 1)
        return cls(extent, tile, overlap, (*range(0, extent - tile, step), extent - tile))

    def weights(self) -> list[Tensor]:
        """For each tile the weight of each of its places, in f32. At every place of the axis the weights of the tiles
        there add up to 1.

        Towards a neighbour a tile's weight falls linearly over the overlap, (j + ½) / overlap at the j-th place from
        its end; if tiles overlap more than nominally, because the last one moved inward, the sum is divided out.
        """
        places = torch.arange(self.tile, dtype=torch.float64)
        ramp = ((places + 0.5) / self.overlap).clamp(max=1.0) if self.overlap > 0 else torch.ones_like(places)
        raw: list[Tensor] = []
        total = torch.zeros(self.extent, dtype=torch.float64)
        for index, start in enumerate(self.starts):
            before = ramp if index > 0 else torch.ones_like(ramp)
            after = ramp.flip(0) if index + 1 < len(self.starts) else torch.ones_like(ramp)
            raw.append(torch.minimum(before, after))
            total[start : start + self.tile] += raw[-1]
        return [
            (own / total[start : start + self.tile]).to(torch.float32)
            for own, start in zip(raw, self.starts, strict=True)
        ]


def carry_out(autoencoder: Autoencoder, stage: Stage, values: Tensor, run: Run) -> Tensor:
    """The output of a decode or an encode by the attempt's plan.

    Args:
        autoencoder: what computes.
        stage: the direction.
        values: latents [N, C, h, w] or pixels [N, 3, H, W], with an axis of frames after the channels of a video's.
        run: the attempt; its plan is one for as many samples, frames and pixels.

    Raises:
        NonFiniteValues: some values of the output are not finite; it is seen tile by tile.
        Cancelled: the run was cancelled.
        PlanError: the plan can't be carried out.
    """
    return _Work(autoencoder, stage, run).samples(values)


class _Work:
    """One direction of an autoencoder, by one plan."""

    def __init__(self, autoencoder: Autoencoder, stage: Stage, run: Run) -> None:
        self.stage = stage
        self.run = run
        self._call: Callable[[Tensor, Run], Tensor] = getattr(autoencoder, stage)
        self._temporal = autoencoder.temporal_scale
        self._is_video = autoencoder.is_video
        self._spatial = autoencoder.spatial_scale

    def samples(self, values: Tensor) -> Tensor:
        """Samples in turn, as many at once as the plan has it; of a clip's, one."""
        space, time = self.run.plan.space, self.run.plan.time
        if isinstance(space, BlendedSpace) and not self._is_video:
            # Tiles of several samples run together.
            return self._tiles(values, space)
        count = values.shape[0]
        batch = 1 if self._is_video else max(self.run.plan.batch, 1)
        output: Tensor | None = None
        for first, run in zip(range(0, count, batch), self._pieces(-(-count // batch)), strict=True):
            part = values[first : first + batch]
            if isinstance(time, BlendedTime) and self._is_video:
                made = self._chunks(part, time, run)
            else:
                made = self._area(part, run)
            if count <= batch:
                return made
            if output is None:
                output = torch.empty((count, *made.shape[1:]), dtype=made.dtype, device=made.device)
            output[first : first + batch] = made
            del made
        assert output is not None
        return output

    def _chunks(self, clip: Tensor, time: BlendedTime, run: Run) -> Tensor:
        """Chunks of frames that run alone, cross-faded. A chunk's first latent frame is one frame, that with which the
        group of frames ends that it stands for in the whole clip: so chunks begin and end where both are counted
        alike."""
        scale, is_decode = self._temporal, self.stage == "decode"
        latent_frames = clip.shape[2] if is_decode else 1 + (clip.shape[2] - 1) // scale
        # A chunk of one latent frame alone would know nothing of what moves.
        tile = max(time.frames // scale, 2)
        latent = Axis.of(latent_frames, tile, min(max(time.overlap // scale, 1), tile - 1))
        frames = Axis(
            1 + (latent.extent - 1) * scale,
            1 + (latent.tile - 1) * scale,
            1 + (latent.overlap - 1) * scale if latent.overlap > 0 else 0,
            tuple(start * scale for start in latent.starts),
        )
        into, out = (latent, frames) if is_decode else (frames, latent)
        output: Tensor | None = None
        dtype: torch.dtype | None = None
        places = zip(into.starts, out.starts, out.weights(), self._pieces(len(into.starts), run), strict=True)
        for first, start, weights, piece in places:
            plan = replace(piece.plan, time=WholeTime())
            made = self._area(clip[:, :, first : first + into.tile], replace(piece, plan=plan))
            if output is None:
                dtype = made.dtype
                shape = (*made.shape[:2], out.extent, *made.shape[3:])
                output = torch.zeros(shape, dtype=_sums(made.dtype), device=made.device)
            faded = made.to(output.dtype) * weights.to(made.device).view(1, 1, -1, 1, 1)
            output[:, :, start : start + out.tile] += faded
            del made, faded
        assert output is not None
        return output.to(dtype)

    def _area(self, values: Tensor, run: Run) -> Tensor:
        """All frames of some samples, whose area is divided as the plan has it."""
        if isinstance(run.plan.space, BlendedSpace):
            return self._tiles(values, run.plan.space, run)
        return self._made(values, run)

    def _made(self, values: Tensor, run: Run) -> Tensor:
        """The output of an undivided area, which is finite. The frames of a clip leave a GPU as they are made: all of
        them there are more than the plan counts."""
        if not (self._is_video and self.stage == "decode" and leaves_device(run.device)):
            return check_finite(self._call(values, run))
        count = 1 + (values.shape[2] - 1) * self._temporal
        output: Tensor | None = None

        def keep(frames: Tensor, first: int) -> None:
            nonlocal output
            check_finite(frames)
            if output is None:
                output = torch.empty((*frames.shape[:2], count, *frames.shape[3:]), dtype=frames.dtype)
            output[:, :, first : first + frames.shape[2]] = frames
            if run.on_frames is not None:
                run.on_frames(frames, first)

        made = self._call(values, replace(run, on_frames=keep))
        return check_finite(made) if output is None else output

    def _tiles(self, values: Tensor, space: BlendedSpace, run: Run | None = None) -> Tensor:
        """Tiles that run alone, cross-faded; as many of them at once as the plan has it."""
        run = run or self.run
        scale = self._spatial
        into, out = (1, scale) if self.stage == "decode" else (scale, 1)
        # Tiles are counted in pixels of the frames' side, and lie on whole pixels of the latent.
        tile = [side // scale for side in (space.height, space.width)]
        axes = [
            Axis.of(extent // into, side, space.overlap // scale)
            for extent, side in zip(values.shape[-2:], tile, strict=True)
        ]
        scaled = [
            Axis(axis.extent * out, axis.tile * out, axis.overlap * out, tuple(start * out for start in axis.starts))
            for axis in axes
        ]
        rows, columns = (axis.weights() for axis in scaled)
        places = [
            (sample, row, column)
            for sample in range(values.shape[0])
            for row in range(len(rows))
            for column in range(len(columns))
        ]
        batch = 1 if self._is_video else max(run.plan.batch, 1)
        whole = replace(run.plan, space=WholeSpace())
        output: Tensor | None = None
        dtype: torch.dtype | None = None
        pieces = self._pieces(-(-len(places) // batch), run)
        for first, piece in zip(range(0, len(places), batch), pieces, strict=True):
            at_once = places[first : first + batch]
            crops = torch.cat([_crop(values, place, axes, into) for place in at_once])
            made = self._made(crops, replace(piece, plan=whole))
            del crops
            if output is None:
                dtype = made.dtype
                shape = (values.shape[0], *made.shape[1:-2], scaled[0].extent, scaled[1].extent)
                output = torch.zeros(shape, dtype=_sums(made.dtype), device=made.device)
            for index, (sample, row, column) in enumerate(at_once):
                down = rows[row].to(made.device).view(-1, 1)
                across = columns[column].to(made.device).view(1, -1)
                top, left = scaled[0].starts[row], scaled[1].starts[column]
                part = output[sample, ..., top : top + scaled[0].tile, left : left + scaled[1].tile]
                faded = made[index].to(output.dtype) * down
                part += faded.mul_(across)
                del faded
            del made
        assert output is not None
        return output.to(dtype)

    def _pieces(self, count: int, run: Run | None = None) -> Iterator[Run]:
        """A run for each piece of one, that tells its own progress as a part of the whole's. Between two, it may
        end."""
        run = run or self.run
        run.check()
        if count == 1:
            yield run
            return
        for index in range(count):
            # Frames of a piece are not the first frames of the whole.
            yield replace(run, on_progress=_part_of(run, index, count), on_frames=None)
            run.advance((index + 1) * _PARTS, count * _PARTS)


def leaves_device(device: torch.device) -> bool:
    """True if frames go from a device to the host as they are made."""
    return device.type != "cpu"


def _part_of(run: Run, index: int, count: int) -> Callable[[int, int], None] | None:
    tell = run.on_progress
    if tell is None:
        return None
    return lambda done, total: tell(index * _PARTS + done * _PARTS // max(total, 1), count * _PARTS)


def _crop(values: Tensor, place: tuple[int, int, int], axes: list[Axis], scale: int) -> Tensor:
    """A tile's part of an input of `scale` pixels for each place of the axes: [1, C, …, h, w]."""
    sample, row, column = place
    top, left = axes[0].starts[row] * scale, axes[1].starts[column] * scale
    height, width = axes[0].tile * scale, axes[1].tile * scale
    return values[sample : sample + 1, ..., top : top + height, left : left + width]


def _sums(dtype: torch.dtype) -> torch.dtype:
    """The type that tiles are added up in."""
    return torch.float64 if dtype == torch.float64 else torch.float32
