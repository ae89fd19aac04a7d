"""The way through a KL autoencoder's half, and each layer of it by itself."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

from torch import Tensor, nn

from .band_norms import Norm
from .bands import Resnet, Track
from .kl_attention import Attention
from .kl_structure import Half
from .layers import Conv, Downsample, Format, entered

State = TypeVar("State")


class Walker(Protocol[State]):
    """Runs layers one after the other. Each takes its input out of a list, so that nothing holds it longer than it is
    needed."""

    def convolve(self, conv: Conv, given: list[Tensor]) -> State: ...

    def resnet(self, resnet: Resnet, given: list[State]) -> State: ...

    def attention(self, attention: Attention, given: list[State]) -> State: ...

    def upsample(self, block: nn.Module, conv: Conv, given: list[State], *, is_kept: bool = True) -> State: ...

    def downsample(self, block: nn.Module, down: Downsample, given: list[State]) -> State: ...

    def norm_and_convolve(self, norm: Norm, conv: Conv, given: list[State]) -> Tensor: ...


def walk(half: Half, walker: Walker[State], given: list[Tensor], kept: list[bool]) -> Tensor:
    """From the first convolution's input to the last one's output.

    Args:
        half: a decoder or an encoder.
        walker: runs the layers.
        given: [N, C, H, W], which is taken out.
        kept: for each upsampling, true if its picture is held; all are if it is shorter.
    """
    with entered(half.block):
        held = [walker.convolve(half.conv_in, given)]
        if half.is_decoder:
            _resnets(walker, half.middle.block, half.middle.resnets, held)
        choice = iter(kept)
        for level in half.levels:
            with _entered(level.block):
                _resnets(walker, None, level.resnets, held)
                if level.up is not None and level.scaling is not None:
                    held.append(walker.upsample(level.scaling, level.up, held, is_kept=next(choice, True)))
                if level.down is not None and level.scaling is not None:
                    held.append(walker.downsample(level.scaling, level.down, held))
        if not half.is_decoder:
            _resnets(walker, half.middle.block, half.middle.resnets, held)
        return walker.norm_and_convolve(half.norm_out, half.conv_out, held)


def _entered(block: nn.Module | None) -> AbstractContextManager[None]:
    return nullcontext() if block is None else entered(block)


def _resnets(
    walker: Walker[State],
    block: nn.Module | None,
    resnets: list[tuple[Resnet, Attention | None]],
    held: list[State],
) -> None:
    with _entered(block):
        for resnet, attention in resnets:
            held.append(walker.resnet(resnet, held))
            if attention is not None:
                held.append(walker.attention(attention, held))


class Whole:
    """Layers of whole pictures, as the modules themselves run them, less what they hold longer than needed."""

    __slots__ = ("_to", "_track")

    def __init__(self, to: Format, track: Track) -> None:
        self._to = to
        self._track = track

    def convolve(self, conv: Conv, given: list[Tensor]) -> Tensor:
        output = conv.whole(self._to, given)
        self._track.layer()
        return output

    def resnet(self, resnet: Resnet, given: list[Tensor]) -> Tensor:
        to = self._to
        with entered(resnet.block):
            picture = given.pop()
            held = [resnet.norm1.forward_silu(to, picture)]
            held.append(resnet.conv1.whole(to, held))
            self._track.within(0.5)
            held.append(resnet.norm2.forward_silu(to, held.pop()))
            output = resnet.conv2.whole(to, held)
            if resnet.shortcut is not None:
                held.append(picture)
                del picture
                picture = resnet.shortcut.whole(to, held)
            for rows in to.strips(output):
                output[:, :, rows] += picture[:, :, rows]
        self._track.layer()
        return output

    def attention(self, attention: Attention, given: list[Tensor]) -> Tensor:
        output = attention.forward(self._to, given)
        self._track.layer()
        return output

    def upsample(self, block: nn.Module, conv: Conv, given: list[Tensor], *, is_kept: bool = True) -> Tensor:
        with entered(block):
            output = conv.whole(self._to, given)
        self._track.layer()
        return output

    def downsample(self, block: nn.Module, down: Downsample, given: list[Tensor]) -> Tensor:
        with entered(block):
            output = down.forward(self._to, given.pop(), self._track.within)
        self._track.layer()
        return output

    def norm_and_convolve(self, norm: Norm, conv: Conv, given: list[Tensor]) -> Tensor:
        held = [norm.forward_silu(self._to, given.pop())]
        output = conv.whole(self._to, held)
        self._track.layer()
        return output
