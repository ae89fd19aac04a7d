"""A network in bands of rows: each convolution takes its input through norm and SiLU on the way, so that no normed
picture is ever held, and a norm's sums are taken as its picture is made. The result is the whole picture's for every
height of the bands.

An upsampled picture is the largest that there is. Where that holds less, it is not kept: its sums are taken in a
first pass over its bands, and the residual layer after it computes it again, band by band.

The order of passes is that of Tilewright's engine, whose meter tells the memory that a plan takes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from torch import Tensor, nn

from .band_norms import Norm, Sums
from .kl_attention import Attention
from .layers import Conv, Downsample, Format, Product, Rows, entered, unchanged

#: The fewest rows of a band: below this most of it would be its neighbours' rows.
LEAST_ROWS = 8


@dataclass(frozen=True, slots=True)
class Resnet:
    """Norm, SiLU and convolution, twice, added to the input, which goes through a 1×1 convolution if channels
    change."""

    block: nn.Module
    norm1: Norm
    conv1: Conv
    norm2: Norm
    conv2: Conv
    shortcut: Conv | None


class Track:
    """The way through a network, layer by layer, in thousandths of its work."""

    __slots__ = ("_done", "_index", "_shares", "_tell")

    def __init__(self, works: list[float], tell: Callable[[float], None]) -> None:
        total = sum(works) or 1.0
        self._shares = [work / total for work in works]
        self._tell = tell
        self._index = 0
        self._done = 0.0

    def within(self, share: float) -> None:
        """A share of the current layer is done.

        Raises:
            Cancelled: the work is to end.
        """
        current = self._shares[self._index] if self._index < len(self._shares) else 0.0
        self._tell(min(self._done + share * current, 1.0))

    def layer(self) -> None:
        """The current layer is done; see `within`."""
        if self._index < len(self._shares):
            self._done += self._shares[self._index]
            self._index += 1
        self._tell(min(self._done, 1.0))


@dataclass(slots=True)
class Picture:
    """A picture between two layers, with its sums.

    Attributes:
        tensor: [N, C, H, W], or [N, C, H / 2, W / 2] of one that `by` makes when a layer needs it.
        sums: those of the picture.
        by: the convolution after an upsampling, of a picture that is not held.
    """

    tensor: Tensor
    sums: Sums
    by: Conv | None = None

    @property
    def extents(self) -> tuple[int, int, int, int]:
        """[N, C, H, W]"""
        batch, channels, height, width = self.tensor.shape
        return (batch, channels, height, width) if self.by is None else (batch, self.by.out, 2 * height, 2 * width)


class Bands:
    """One pass in bands.

    Args:
        to: types and order.
        band: rows of the picture in a band.
        height: rows of the picture.
    """

    __slots__ = ("_band", "_height", "_to", "_track")

    def __init__(self, to: Format, band: int, height: int, track: Track) -> None:
        self._to = to
        self._band = band
        self._height = max(height, 1)
        self._track = track

    def _bands(self, height: int) -> list[tuple[int, int]]:
        """The bands of a picture of this height."""
        rows = max(min(max(self._band * height // self._height, LEAST_ROWS), height), 1)
        return [(start, min(start + rows, height)) for start in range(0, height, rows)]

    def convolve(self, conv: Conv, given: list[Tensor]) -> Picture:
        """A convolution of a picture that nothing is known of, and which is taken out of the list."""
        tensor = given.pop()
        batch, _, height, width = tensor.shape
        output = self._to.empty(batch, conv.out, height, width)
        sums = Sums(self._to, batch, conv.out)
        with conv.opened(self._to) as product:
            for start, end in self._bands(height):
                output[:, :, start:end] = conv.rows(self._to, product, tensor, unchanged, Rows(start, end, height))
                sums.add(output[:, :, start:end])
                self._track.within(end / height)
        self._track.layer()
        return Picture(output, sums)

    def upsample(self, block: nn.Module, conv: Conv, given: list[Picture], *, is_kept: bool = True) -> Picture:
        """Twice the size. The picture is held if `is_kept`, and computed again by the layers that need it if not."""
        with entered(block):
            source = self._tensor(given.pop())
            batch, _, height, width = source.shape
            height, width = 2 * height, 2 * width
            sums = Sums(self._to, batch, conv.out)
            kept = self._to.empty(batch, conv.out, height, width) if is_kept else None
            with conv.opened(self._to) as product:
                for start, end in self._bands(height):
                    part = conv.rows(self._to, product, source, unchanged, Rows(start, end, height)).to(self._to.layer)
                    if kept is not None:
                        kept[:, :, start:end] = part
                    sums.add(part)
                    del part
                    self._track.within(end / height)
        self._track.layer()
        return Picture(source, sums, conv) if kept is None else Picture(kept, sums)

    def _tensor(self, picture: Picture) -> Tensor:
        """A picture as a tensor, computed if it is not held."""
        if picture.by is None:
            return picture.tensor
        with picture.by.opened_again(self._to):
            return picture.by.whole(self._to, [picture.tensor])

    def _needed(self, again: Product | None, picture: Picture, start: int, end: int) -> tuple[Tensor, int]:
        """Rows that hold those which a 3×3 convolution needs for some of its output, and the first one's place."""
        if picture.by is None or again is None:
            return picture.tensor, 0
        height = picture.extents[2]
        first, last = max(start - 1, 0), min(end + 1, height)
        rows = Rows(first, last, height)
        return picture.by.rows(self._to, again, picture.tensor, unchanged, rows).to(self._to.layer), first

    def resnet(self, resnet: Resnet, given: list[Picture]) -> Picture:
        """A residual layer. The picture is taken out of the list."""
        with entered(resnet.block):
            picture = given.pop()
            hidden, sums, output = self._first_half(resnet, picture)
            if output is None:
                # The sum takes the place of the input, which nothing else needs now.
                output = self._tensor(picture)
            del picture
            before = resnet.norm2.affine(self._to, sums)
            batch, _, height, _ = output.shape
            sums = Sums(self._to, batch, resnet.conv2.out)
            with resnet.conv2.opened(self._to) as product:
                for start, end in self._bands(height):
                    onto = output[:, :, start:end]
                    onto += resnet.conv2.rows(self._to, product, hidden, before.silu, Rows(start, end, height))
                    sums.add(onto)
                    self._track.within(0.5 + end / height / 2)
            self._track.layer()
            return Picture(output, sums)

    def _first_half(self, resnet: Resnet, picture: Picture) -> tuple[Tensor, Sums, Tensor | None]:
        """Up to the first convolution's output, with its sums; and the input where it is not the picture itself."""
        to, conv1 = self._to, resnet.conv1
        batch, _, height, width = picture.extents
        before = resnet.norm1.affine(to, picture.sums)
        hidden, sums = to.empty(batch, conv1.out, height, width), Sums(to, batch, conv1.out)
        is_held, output = picture.by is None, None
        bands = self._bands(height)
        with ExitStack() as stack:
            again = None if picture.by is None else stack.enter_context(picture.by.opened_again(to))
            product = stack.enter_context(conv1.opened(to))
            carry = None if resnet.shortcut is None else stack.enter_context(resnet.shortcut.opened(to))
            for start, end in bands:
                part, first = self._needed(again, picture, start, end)
                rows = Rows(start, end, height, first)
                hidden[:, :, start:end] = conv1.rows(to, product, part, before.silu, rows)
                sums.add(hidden[:, :, start:end])
                if carry is not None or not is_held:
                    only = part[:, :, start - first : end - first]
                    # Rows of one sample lie together; those of several would be copied.
                    for sample in range(batch) if len(bands) > 1 else [slice(None)]:
                        chosen = slice(sample, sample + 1) if isinstance(sample, int) else sample
                        carried = only[chosen] if carry is None else carry(only[chosen].to(to.compute), 0, 0)
                        if len(bands) == 1 and carry is not None and carried.dtype == to.layer:
                            output = to.ordered(carried)
                            continue
                        if output is None:
                            output = to.empty(batch, conv1.out, height, width)
                        output[chosen, :, start:end] = carried
                        del carried
                    del only
                del part
                self._track.within(end / height / 2)
        return hidden, sums, output

    def downsample(self, block: nn.Module, down: Downsample, given: list[Picture]) -> Picture:
        """Half the size."""
        with entered(block):
            tensor = down.forward(self._to, self._tensor(given.pop()), self._track.within)
        self._track.layer()
        return self._counted(tensor)

    def attention(self, attention: Attention, given: list[Picture]) -> Picture:
        """Attention in the middle of the network."""
        held = [self._tensor(given.pop())]
        tensor = attention.forward(self._to, held)
        self._track.layer()
        return self._counted(tensor)

    def _counted(self, tensor: Tensor) -> Picture:
        sums = Sums(self._to, tensor.shape[0], tensor.shape[1])
        sums.add(tensor)
        return Picture(tensor, sums)

    def norm_and_convolve(self, norm: Norm, conv: Conv, given: list[Picture]) -> Tensor:
        """A norm, SiLU and a convolution, after which no norm comes."""
        picture = given.pop()
        batch, _, height, width = picture.extents
        before = norm.affine(self._to, picture.sums)
        output = self._to.empty(batch, conv.out, height, width)
        with ExitStack() as stack:
            again = None if picture.by is None else stack.enter_context(picture.by.opened_again(self._to))
            product = stack.enter_context(conv.opened(self._to))
            for start, end in self._bands(height):
                part, first = self._needed(again, picture, start, end)
                rows = Rows(start, end, height, first)
                output[:, :, start:end] = conv.rows(self._to, product, part, before.silu, rows)
                del part
                self._track.within(end / height)
        self._track.layer()
        return output


def held_pictures(
    middle: int, levels: list[tuple[int, int, bool]], image_channels: int, has_attention: bool
) -> list[bool]:
    """For each upsampling of a decoder, true if bands hold the picture that comes out. They do unless the most that
    is held at once would be less without: a picture that is not held is computed twice.

    Args:
        middle: channels of the middle block.
        levels: channels, residual layers, and true for an upsampling after them, of each level.
        image_channels: channels of the output.
        has_attention: true if the middle block has attention.
    """
    places = [index for index, level in enumerate(levels) if level[2]]
    kept = [True] * len(places)

    def peak(kept: list[bool]) -> float:
        pixels, into, is_held = 1.0, float(middle), True
        # Input, tokens, queries, keys and values; a residual layer holds less.
        most = middle * (5.0 if has_attention else 2.0)
        choice = iter(kept)
        for channels, layers, upsamples in levels:
            for _ in range(layers):
                has_another = not is_held or into != channels
                before = into * pixels if is_held else into * pixels / 4
                most = max(most, before + channels * pixels * (2 if has_another else 1))
                into, is_held = channels, True
            if upsamples:
                pixels *= 4
                is_held = next(choice)
                if is_held:
                    most = max(most, into * pixels * 1.25)
        held = into * pixels if is_held else into * pixels / 4
        return max(most, held + image_channels * pixels)

    least = peak(kept)
    for place in reversed(range(len(places))):
        index = places[place] + 1
        # A picture is computed again by the residual layer that follows.
        if index >= len(levels) or levels[index][1] == 0:
            continue
        kept[place] = False
        without = peak(kept)
        kept[place] = without >= least
        least = min(least, without)
    return kept


