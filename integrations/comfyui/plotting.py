"""Pictures for reports, drawn with Pillow: tiles on a picture, and bars with their spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont
    from torch import Tensor

#: Colours of series, which those can tell apart who see no red or green (Okabe and Ito).
COLOURS = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (204, 121, 167), (86, 180, 233), (213, 94, 0))
INK, FAINT, PAPER = (34, 34, 34), (214, 214, 214), (255, 255, 255)

#: Bars of one panel; further ones are left out at the beginning.
MOST_BARS = 48


@dataclass(frozen=True, slots=True)
class Bar:
    """A value of a plot.

    Attributes:
        label: the text below it.
        value: the height.
        series: the series that it belongs to, which names its colour.
        spread: half of the length of the line over it.
        mark: a value that is drawn across it, as an estimate.
        note: a letter above it, as of a failed attempt.
    """

    label: str
    value: float
    series: str
    spread: float = 0.0
    mark: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A plot with a title and a unit."""

    title: str
    unit: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Area:
    """A tile in pixels: its place and its extent."""

    top: int
    left: int
    height: int
    width: int


def starts(extent: int, tile: int, overlap: int, *, is_exact: bool = False) -> list[int]:
    """The first place of each tile along an axis, as the engine lays them: the last of blended ones moves inward, the
    last of exact ones is shorter."""
    if tile <= 0 or tile >= extent:
        return [0]
    if is_exact:
        return list(range(0, extent, tile))
    step = tile - min(overlap, tile - 1)
    return [*range(0, extent - tile, step), extent - tile]


def tiles_of(record: dict[str, Any]) -> list[Area]:
    """The tiles of a decode's or encode's record; one for the whole picture; none of another stage's."""
    request, plan = record.get("request", {}), record.get("plan", {})
    space = plan.get("space")
    if not isinstance(space, dict):
        return []
    height, width = int(request["height"]), int(request["width"])
    if space.get("kind") == "whole":
        return [Area(0, 0, height, width)]
    is_exact = space.get("kind") == "exact"
    tall, wide, overlap = int(space["height"]), int(space["width"]), int(space.get("overlap", 0))
    tops = starts(height, tall, overlap, is_exact=is_exact)
    lefts = starts(width, wide, overlap, is_exact=is_exact)
    tall, wide = min(tall or height, height), min(wide or width, width)
    return [Area(top, left, min(tall, height - top), min(wide, width - left)) for top in tops for left in lefts]


def draw_tiles(image: Tensor | None, record: dict[str, Any]) -> Tensor:
    """A picture with the tiles of a record on it, [1, H, W, 3] in 0…1; a plain one of the request's shape without a
    picture.

    Args:
        image: [N, H, W, 3] in 0…1, of which the first is drawn on; of another size than the request's, tiles are
        scaled.
        record: a record as in JSON.
    """
    from PIL import Image, ImageDraw

    request = record.get("request", {})
    height, width = int(request.get("height") or 256), int(request.get("width") or 256)
    if image is None:
        scale = min(1.0, 1024 / max(height, width))
        picture = Image.new("RGB", (max(64, round(width * scale)), max(64, round(height * scale))), (236, 238, 240))
    else:
        picture = to_picture(image)
    across, down = picture.width / width, picture.height / height
    tiles = tiles_of(record)
    if len(tiles) > 1:
        shade = Image.new("RGBA", picture.size, (0, 0, 0, 0))
        brush = ImageDraw.Draw(shade)
        thick = max(1, round(max(picture.size) / 400))
        for index, tile in enumerate(tiles):
            colour = COLOURS[index % len(COLOURS)]
            box = (
                round(tile.left * across),
                round(tile.top * down),
                max(round((tile.left + tile.width) * across) - 1, round(tile.left * across) + 1),
                max(round((tile.top + tile.height) * down) - 1, round(tile.top * down) + 1),
            )
            layer = Image.new("RGBA", picture.size, (0, 0, 0, 0))
            # The shades of tiles that overlap add up.
            ImageDraw.Draw(layer).rectangle(box, fill=(*colour, 22), outline=(*colour, 255), width=thick)
            shade = Image.alpha_composite(shade, layer)
        picture = Image.alpha_composite(picture.convert("RGBA"), shade).convert("RGB")
    brush = ImageDraw.Draw(picture)
    text = _caption(record, len(tiles))
    font = _font(max(11, round(min(picture.size) / 32)))
    box = brush.textbbox((0, 0), text, font=font)
    brush.rectangle((0, 0, box[2] + 10, box[3] + 8), fill=PAPER)
    brush.text((5, 3), text, fill=INK, font=font)
    return to_tensor(picture)


def plot(panels: Sequence[Panel], *, width: int = 1024, height: int = 300) -> Tensor:
    """Panels of bars, one below the other, [1, H, W, 3] in 0…1."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (width, max(1, len(panels)) * height), PAPER)
    brush = ImageDraw.Draw(picture)
    names: dict[str, tuple[int, int, int]] = {}
    # Pillow's own font has no such sign.
    panels = [
        replace(panel, bars=tuple(replace(bar, label=bar.label.replace("×", "x")) for bar in panel.bars))
        for panel in panels
    ]
    for panel in panels:
        for bar in panel.bars:
            names.setdefault(bar.series, COLOURS[len(names) % len(COLOURS)])
    for index, panel in enumerate(panels):
        _draw_panel(brush, panel, (0, index * height, width, (index + 1) * height), names)
    return to_tensor(picture)


def to_tensor(picture: Image) -> Tensor:
    """A picture as ComfyUI has it, [1, H, W, 3] in 0…1."""
    import numpy
    import torch

    return torch.from_numpy(numpy.asarray(picture.convert("RGB"), dtype=numpy.float32) / 255.0)[None]


def to_picture(image: Tensor) -> Image:
    """The first of ComfyUI's pictures."""
    import numpy
    from PIL import Image

    values = image[0, ..., :3].detach().to("cpu").float().clamp(0, 1).numpy()
    return Image.fromarray((values * 255.0).round().astype(numpy.uint8))


def _caption(record: dict[str, Any], count: int) -> str:
    space = record.get("plan", {}).get("space")
    if not isinstance(space, dict):
        return f"{record.get('stage', 'run')}: no tiles"
    if space.get("kind") == "whole" or count <= 1:
        return "whole"
    noun = "exact" if space.get("kind") == "exact" else f"blended over {space.get('overlap', 0)} px,"
    return f"{count} tiles, {noun} {space['width']}x{space['height']}"


def _font(size: int) -> FreeTypeFont | ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(size)


def _draw_panel(
    brush: ImageDraw, panel: Panel, box: tuple[int, int, int, int], colours: dict[str, tuple[int, int, int]]
) -> None:
    left, top, right, bottom = box[0] + 76, box[1] + 40, box[2] - 20, box[3] - 44
    font, small = _font(16), _font(12)
    brush.text((box[0] + 16, box[1] + 10), f"{panel.title} ({panel.unit})", fill=INK, font=font)
    bars = panel.bars[-MOST_BARS:]
    legend = right
    for name in reversed(list(dict.fromkeys(bar.series for bar in bars))):
        legend -= int(brush.textlength(name, font=small)) + 26
        brush.rectangle((legend, box[1] + 14, legend + 10, box[1] + 24), fill=colours[name])
        brush.text((legend + 15, box[1] + 11), name, fill=INK, font=small)
    if not bars:
        brush.text((left, (top + bottom) // 2), "nothing measured yet", fill=INK, font=small)
        return
    highest = max(max(bar.value + bar.spread, bar.mark or 0.0) for bar in bars) or 1.0
    step = _round_step(highest)
    scale = (bottom - top) / (highest * 1.08)
    for number in range(int(highest * 1.08 / step) + 1):
        level = bottom - number * step * scale
        brush.line((left, level, right, level), fill=FAINT)
        brush.text((left - 8, level), f"{number * step:g}", fill=INK, font=small, anchor="rm")
    pitch = (right - left) / len(bars)
    for index, bar in enumerate(bars):
        centre = left + (index + 0.5) * pitch
        half = min(28.0, pitch * 0.36)
        brush.rectangle((centre - half, bottom - bar.value * scale, centre + half, bottom), fill=colours[bar.series])
        if bar.spread > 0:
            low, high = bottom - (bar.value - bar.spread) * scale, bottom - (bar.value + bar.spread) * scale
            brush.line((centre, low, centre, high), fill=INK, width=2)
        if bar.mark is not None:
            level = bottom - bar.mark * scale
            brush.line((centre - half - 3, level, centre + half + 3, level), fill=INK, width=3)
        if bar.note:
            brush.text((centre, bottom - bar.value * scale - 4), bar.note, fill=INK, font=small, anchor="mb")
        if len(bars) <= 16:
            for row, line in enumerate(bar.label.split("\n")[:2]):
                brush.text((centre, bottom + 6 + 14 * row), line, fill=INK, font=small, anchor="mt")
    brush.line((left, bottom, right, bottom), fill=INK)


def _round_step(highest: float) -> float:
    """A step of an axis of 1, 2 or 5 times a power of ten, that gives about five lines."""
    power = 1.0
    while power * 10 <= highest:
        power *= 10
    while power > highest:
        power /= 10
    return next(power * factor for factor in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0) if highest / (power * factor) <= 6)
