"""The steps that a decoder of clips is made of, in the order that they run: each takes a piece of the clip through
itself, and keeps what it needs of it for the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from .causal_convolution import CausalConv
from .causal_layers import Bands, Past, attend, convolve, convolved, each, laps, last_frames, pointwise, taps_of
from .causal_structure import Attention, Half, HalfStructure, Layer, Resample, Residual, Shortcut, channels_of
from .layers import Conv, Format
from .running import PlanError


@dataclass(slots=True)
class Origin:
    """One frame of a block's input, and which of the frames made of it is meant."""

    frame: Tensor
    phase: int


@dataclass(slots=True)
class Piece:
    """Frames somewhere in the network.

    Attributes:
        step: the step that comes next.
        first: which of the clip's frames comes first here.
        frames: [T, C, H, W]
        hidden: within a residual layer, the hidden frames beside those that they will be added to.
        origins: within a block whose input is added to its output, the input that each frame came from.
    """

    step: int
    first: int
    frames: Tensor
    hidden: Tensor | None = None
    origins: list[Origin] = field(default_factory=list[Origin])

    def split(self, count: int) -> Piece:
        """Takes the frames after the first `count` off."""
        hidden = None if self.hidden is None else self.hidden[count:]
        rest = Piece(self.step, self.first + count, self.frames[count:], hidden, self.origins[count:])
        self.frames, self.origins = self.frames[:count], self.origins[:count]
        self.hidden = None if self.hidden is None else self.hidden[:count]
        return rest

    def double(self) -> None:
        """Each frame but the clip's first has become two."""
        doubled: list[Origin] = []
        for index, origin in enumerate(self.origins):
            if self.first + index > 0:
                doubled.append(Origin(origin.frame, 0))
            doubled.append(Origin(origin.frame, 1))
        self.first, self.origins = max(2 * self.first - 1, 0), doubled


class Step(Protocol):
    """A step of the network."""

    def run(self, to: Format, piece: Piece, past: Past, bands: Bands) -> None:
        """Takes a piece through."""
        ...

    @property
    def modules(self) -> list[nn.Module]:
        """The modules that run."""
        ...


@dataclass(slots=True)
class Pointwise:
    """A convolution of the latents' single pixels."""

    convolution: nn.Module

    @property
    def modules(self) -> list[nn.Module]:
        return [self.convolution]

    def run(self, to: Format, piece: Piece, past: Past, bands: Bands) -> None:
        piece.frames = pointwise(to, self.convolution, piece.frames)


@dataclass(slots=True)
class Alone:
    """A causal convolution, whose output takes its input's place."""

    half: Half

    @property
    def modules(self) -> list[nn.Module]:
        return half_modules(self.half)

    def run(self, to: Format, piece: Piece, past: Past, bands: Bands) -> None:
        piece.frames = convolved(to, self.half, past, piece.frames, bands, may_scatter=True)


@dataclass(slots=True)
class ResidualFirst:
    """The first half of a residual layer: its output is hidden beside the input, which goes through its shortcut."""

    half: Half
    shortcut: nn.Module | None

    @property
    def modules(self) -> list[nn.Module]:
        return half_modules(self.half) + ([] if self.shortcut is None else [self.shortcut])

    def run(self, to: Format, piece: Piece, past: Past, bands: Bands) -> None:
        piece.hidden = convolved(to, self.half, past, piece.frames, bands, may_scatter=True)
        if self.shortcut is not None:
            piece.frames = pointwise(to, self.shortcut, piece.frames)


@dataclass(slots=True)
class ResidualLast:
    """The second half: the hidden frames go in, and the output is added to the input."""

    half: Half

    @property
    def modules(self) -> list[nn.Module]:
        return half_modules(self.half)

    def run(self, to: Format, piece: Piece, past: Past, bands: Bands) -> None:
        hidden, piece.hidden = piece.hidden, None
        assert hidden is not None, "the first half ran before"
        frames = piece.frames

        def add(part: Tensor, lap: slice, rows: slice) -> None:
            frames[lap, :, rows] += part

        convolve(to, self.half, past, hidden, add, bands)


@dataclass(slots=True)
class Attend:
    """Attention over the pixels of each frame."""

    attention: Attention

    @property
    def modules(self) -> list[nn.Module]:
        return [self.attention.norm, self.attention.query_key_value, self.attention.output]

    def run(self, to: Format, piece: Piece, past: Past, bands: Bands) -> None:
        count, channels, height, width = piece.frames.shape
        output = to.empty(count, channels, height, width)
        for index in range(piece.frames.shape[0]):
            to.run.check()
            output[index : index + 1] = attend(to, self.attention, piece.frames[index : index + 1])
        piece.frames = output


@dataclass(slots=True)
class Double:
    """Makes two frames of each but the clip's first, which stays alone: the frame and the two before become twice the
    channels, and these two frames. The past of the second frame is zeros, not the first."""

    convolution: nn.Module

    @property
    def modules(self) -> list[nn.Module]:
        return [self.convolution]

    def run(self, to: Format, piece: Piece, past: Past, bands: Bands) -> None:
        rest, first = piece.frames, 0
        if not past.begun:
            rest, first = rest[1:], 1
        count, channels, height, width = rest.shape
        if count > 0:
            output = to.empty(first + 2 * count, channels, height, width)
            output[:first] = piece.frames[:first]
            conv = CausalConv(self.convolution)
            with conv.opened(to) as product:
                for lap in laps(to, count):
                    values = rest[lap].to(to.compute)
                    both = product(taps_of(past, values, slice(0, height), conv), 0, 0)
                    for half in range(2):
                        places = output[first + 2 * lap.start + half : first + 2 * lap.stop : 2]
                        places.copy_(both[:, half * channels : (half + 1) * channels])
                    past.keep(last_frames(values, conv.before, is_own=False), conv.before)
            piece.frames = output
        past.begun = True
        piece.double()


@dataclass(slots=True)
class Enlarge:
    """Twice the height and width."""

    space: nn.Module

    @property
    def modules(self) -> list[nn.Module]:
        return [self.space]

    def run(self, to: Format, piece: Piece, past: Past, bands: Bands) -> None:
        conv = Conv(self.space, upsamples=True)
        piece.frames = each(to, piece.frames, lambda frames: conv.whole(to, [frames]))


@dataclass(slots=True)
class Begin:
    """A block begins whose input is added to its output."""

    @property
    def modules(self) -> list[nn.Module]:
        return []

    def run(self, to: Format, piece: Piece, past: Past, bands: Bands) -> None:
        frames = piece.frames
        piece.origins = [Origin(frames[index : index + 1], 1) for index in range(frames.shape[0])]
        # The block's sums are written onto its input.
        piece.frames = frames.clone()


@dataclass(slots=True)
class End:
    """The block's input is added to its output, its channels repeated and laid out in time and space.

    Attributes:
        sources: for each phase, the input channel of each of the 4 · out channels before they are laid out in squares.
        scale: side of the squares.
    """

    sources: list[list[int]]
    scale: int

    @classmethod
    def of(cls, shortcut: nn.Module, out: int) -> End:
        """The end of a block with a shortcut without weights, to `out` channels."""
        phases, scale, repeats = (int(getattr(shortcut, name)) for name in ("factor_t", "factor_s", "repeats"))
        square = scale * scale
        sources = [
            [((to * phases + phase) * square + place) // repeats for to in range(out) for place in range(square)]
            for phase in range(phases)
        ]
        return cls(sources, scale)

    @property
    def modules(self) -> list[nn.Module]:
        return []

    def run(self, to: Format, piece: Piece, past: Past, bands: Bands) -> None:
        device = piece.frames.device
        sources = [torch.tensor(source, device=device) for source in self.sources]
        for index, origin in enumerate(piece.origins):
            source = sources[min(origin.phase, len(sources) - 1)]
            squares = origin.frame.index_select(1, source)
            piece.frames[index : index + 1] += functional.pixel_shuffle(squares, self.scale)
        piece.origins = []


@dataclass(slots=True)
class Placed:
    """A step at its place: the frames of its input per latent frame, and the pixels per latent pixel."""

    step: Step
    frames: int
    pixels: int

    @property
    def work(self) -> int:
        """Products of a frame of its input, per latent pixel."""
        enlarged = 4 if isinstance(self.step, Enlarge) else 1
        return enlarged * self.pixels * sum(values_of(module) for module in self.step.modules)


def decoder_steps(half: HalfStructure) -> list[Placed]:
    """The steps of a decoder, in the order that they run."""
    line = _Line()
    line.add(Pointwise(half.pointwise))
    line.add(Alone(half.first))
    for layer in half.layers:
        line.add_layer(layer)
    line.add(Alone(half.last))
    return line.steps


@dataclass(slots=True)
class _Line:
    """Steps as they are added."""

    steps: list[Placed] = field(default_factory=list[Placed])
    frames: int = 1
    pixels: int = 1

    def add(self, step: Step) -> None:
        self.steps.append(Placed(step, self.frames, self.pixels))

    def add_layer(self, layer: Layer) -> None:
        if isinstance(layer, Residual):
            self.add(ResidualFirst(layer.first, layer.shortcut))
            self.add(ResidualLast(layer.last))
        elif isinstance(layer, Attention):
            self.add(Attend(layer))
        elif isinstance(layer, Resample):
            self._add_resample(layer)
        else:
            self._add_shortcut(layer)

    def _add_resample(self, layer: Resample) -> None:
        if not layer.enlarges:
            raise PlanError("the decoder has a layer that halves its frames: this release of its library is not known")
        if layer.time is not None:
            self.add(Double(layer.time))
            self.frames *= 2
        self.add(Enlarge(layer.space))
        self.pixels *= 4

    def _add_shortcut(self, layer: Shortcut) -> None:
        self.add(Begin())
        for inner in layer.layers:
            self.add_layer(inner)
        self.add(End.of(layer.module, _output_channels(layer)))


def _output_channels(layer: Shortcut) -> int:
    last = layer.layers[-1]
    if isinstance(last, Resample):
        return channels_of(last.space, "out_channels")
    if isinstance(last, Residual):
        return channels_of(last.last.convolution, "out_channels")
    raise PlanError("a block that ends in no known layer: this release of its library is newer")


def half_modules(half: Half) -> list[nn.Module]:
    """The modules that run in a half of a residual layer."""
    return [module for module in (half.norm, half.activation, half.convolution) if module is not None]


def values_of(module: nn.Module) -> int:
    """Values of a module's weights, by their shapes."""
    return sum(parameter.numel() for parameter in module.parameters())
