"""A decode of a clip, latent frame by latent frame: only the causal state is held between them.

Few frames go all the way through the layers before the next ones follow, as the Rust engine has it: what is held beside
the state depends on the plan's chunk and not on the clip. A plan that leaves time whole takes one latent frame at once,
as diffusers does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from ..records import CarriedTime, ExactSpace, Plan
from .causal_hooks import Blocks
from .causal_layers import Bands, Past
from .causal_steps import Piece, Placed, decoder_steps
from .causal_structure import Structure
from .layers import Format

#: Parts of the work that progress is told in.
PARTS = 1000


@dataclass(frozen=True, slots=True)
class Chunks:
    """The division of a clip into a plan's chunks.

    Attributes:
        pushed: latent frames that go in at once.
        frames: output frames that run through the last layers at once.
    """

    pushed: int
    frames: int

    @classmethod
    def of(cls, plan: Plan, temporal: int, latent_frames: int) -> Chunks:
        """The division by a plan."""
        frames = plan.time.frames if isinstance(plan.time, CarriedTime) else temporal
        return cls(min(max(frames // max(temporal, 1), 1), max(latent_frames, 1)), max(frames, 1))


def unpatched(frames: Tensor, side: int) -> Tensor:
    """Channels as squares of pixels, column after column: [T, C · p · p, h, w] → [T, C, h · p, w · p]."""
    if side == 1:
        return frames
    count, channels, height, width = frames.shape
    image = channels // (side * side)
    squares = frames.reshape(count, image, side, side, height, width).permute(0, 1, 4, 3, 5, 2)
    return squares.reshape(count, image, height * side, width * side)


@dataclass(slots=True)
class ClipDecode:
    """The decode of one sample: the causal state of each layer, and frames that are under way."""

    structure: Structure
    steps: list[Placed]
    to: Format
    blocks: Blocks
    bands: Bands
    chunks: Chunks
    #: Told the share of the clip that is done.
    tell: Callable[[float], None]
    pasts: list[Past] = field(default_factory=list[Past])
    pieces: list[Piece] = field(default_factory=list[Piece])

    def run(self, latents: Tensor, emit: Callable[[Tensor], None]) -> None:
        """Decodes latents [1, C, T, h, w]; `emit` gets frames [T, C, H, W] in their order, in the type of layers."""
        self.pasts = [Past() for _ in self.steps]
        count = latents.shape[2]
        scale = self.structure.temporal_scale
        reached = [1 + (count - 1) * placed.frames for placed in self.steps]
        each = [placed.work for placed in self.steps]
        whole = max(sum(one * frames for one, frames in zip(each, reached)), 1)
        done = 0
        for first in range(0, count, self.chunks.pushed):
            # [1, C, T, h, w] → [T, C, h, w]
            frames = latents[0, :, first : first + self.chunks.pushed].transpose(0, 1)
            frames = self.to.ordered(frames.to(self.to.device, self.to.layer))
            self.pieces.append(Piece(0, first, frames))
            del frames
            while self.pieces:
                piece = self.pieces[-1]
                if piece.step == len(self.steps):
                    self.pieces.pop()
                    emit(unpatched(piece.frames, self.structure.patch))
                    continue
                placed = self.steps[piece.step]
                most = max(self.chunks.frames * placed.frames // scale, 1)
                passing = piece.frames.shape[0]
                if passing > most:
                    self.pieces.insert(-1, piece.split(most))
                    continue
                self.to.run.check()
                past = self.pasts[piece.step]
                past.begun |= piece.first > 0
                if placed.step.modules:
                    self.blocks.enter(placed.step.modules)
                placed.step.run(self.to, piece, past, self.bands)
                done += each[piece.step] * passing
                piece.step += 1
                self.tell(min(done / whole, 1.0))


def decode(
    structure: Structure, latents: Tensor, to: Format, blocks: Blocks, emit: Callable[[int, int, Tensor], None]
) -> None:
    """Decodes clips [N, C, T, h, w], one after the other.

    Args:
        structure: the autoencoder.
        latents: in its own space.
        to: the plan's types, and the attempt.
        blocks: the module's blocks.
        emit: called with the sample, the index of the first frame, and frames [T, 3, H, W] in the type of layers.

    Raises:
        Cancelled: the run was cancelled.
    """
    samples, _, count, height, _ = latents.shape
    space = to.run.plan.space
    bands = Bands(space.height if isinstance(space, ExactSpace) else None, height * structure.spatial_scale)
    steps, chunks = decoder_steps(structure.decoder), Chunks.of(to.run.plan, structure.temporal_scale, count)
    for sample in range(samples):
        delivered = 0

        def tell(share: float, sample: int = sample) -> None:
            to.run.advance(int(PARTS * (sample + share) / samples), PARTS)

        def deliver(frames: Tensor, sample: int = sample) -> None:
            nonlocal delivered
            emit(sample, delivered, frames)
            delivered += frames.shape[0]

        ClipDecode(structure, steps, to, blocks, bands, chunks, tell).run(latents[sample : sample + 1], deliver)
