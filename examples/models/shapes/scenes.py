"""Scenes of coloured shapes: their captions, their pictures, and a judge that reads a picture by colours and areas.

Versions: numpy 2.4.6, pillow 13.0.0.

A scene is one shape, a shape on a shape, or a shape beside another, before a plain background. One scene in twenty is held
out by a hash of what it holds: no training draws it, and the judge asks for nothing else.
"""

import dataclasses
import hashlib
import math
import random

import numpy as np
from PIL import Image, ImageDraw

SIZE = 128
PALETTE = {
    "red": (215, 40, 40), "orange": (245, 140, 25), "yellow": (250, 225, 50), "green": (45, 160, 70),
    "blue": (40, 80, 215), "purple": (140, 55, 170), "black": (20, 20, 20), "white": (245, 245, 245),
}
COLOURS = list(PALETTE)
FORMS = ["circle", "square", "triangle", "star"]
RADII = {"small": 14, None: 22, "large": 32}
# A place's centre, in parts of the side, and how captions name it.
PLACES = {
    "left": (0.27, 0.5), "right": (0.73, 0.5), "top": (0.5, 0.27), "bottom": (0.5, 0.73), "middle": (0.5, 0.5),
    "top left": (0.27, 0.27), "top right": (0.73, 0.27), "bottom left": (0.27, 0.73), "bottom right": (0.73, 0.73),
}
# A relation of the first shape to the second: the first's offset from the middle, the second's is its opposite.
RELATIONS = {"left of": (-1, 0), "right of": (1, 0), "above": (0, -1), "below": (0, 1)}
PAIR_OFFSET, PAIR_RADIUS = 0.24, 20
OUTER_RADIUS, INNER_RADIUS = {"circle": 46, "square": 44, "triangle": 56, "star": 58}, 15
BACKGROUND = "white"


@dataclasses.dataclass(frozen=True)
class Shape:
    colour: str
    form: str
    size: str | None = None


@dataclasses.dataclass(frozen=True)
class Scene:
    """kind: one, on or beside. detail: the place of one shape, or the relation of two."""

    kind: str
    shapes: tuple[Shape, ...]
    detail: str | None
    background: str

    def held_out(self):
        return hashlib.sha256(repr(dataclasses.astuple(self)).encode()).digest()[0] < 13


def draw_scene(rng, held_out=False):
    """A scene that is, or isn't, held out."""
    while True:
        kind = rng.choices(["one", "on", "beside"], [45, 25, 30])[0]
        background = BACKGROUND if rng.random() < 0.25 else rng.choice(COLOURS)
        first = Shape(rng.choice(COLOURS), rng.choice(FORMS), rng.choice([None, "small", "large"]) if kind == "one" else None)
        second = Shape(rng.choice(COLOURS), rng.choice(FORMS))
        if kind == "one":
            shapes, detail = (first,), rng.choice(list(PLACES))
        else:
            shapes, detail = (first, second), rng.choice(list(RELATIONS)) if kind == "beside" else None
            if first.colour == second.colour:
                continue
        scene = Scene(kind, shapes, detail, background)
        if all(shape.colour != background for shape in shapes) and scene.held_out() == held_out:
            return scene


def caption(rng, scene):
    """One of the ways to say a scene. What is usual (the middle, a white background) may be left out."""
    def said(shape):
        size = rng.choice(["small", "little"]) if shape.size == "small" else rng.choice(["large", "big"]) if shape.size else None
        return " ".join(word for word in [article, size, shape.colour, shape.form] if word)

    article = rng.choices(["a", "the", ""], [90, 5, 5])[0]
    words = [said(scene.shapes[0])]
    if scene.kind == "one":
        if scene.detail == "middle":
            words += rng.choice([[], ["in the middle"], ["in the center"], ["in the centre"]])
        elif " " in scene.detail:
            words.append(f"in the {scene.detail}" + rng.choice(["", " corner"]))
        else:
            words.append((rng.choice(["on the {}", "at the {}"])).format(scene.detail))
    elif scene.kind == "on":
        words += [rng.choice(["on", "on", "in front of"]), said(scene.shapes[1])]
    else:
        relation = scene.detail
        ways = {"left of": ["left of", "to the left of", "and"], "right of": ["right of", "to the right of"],
                "above": ["above", "over"], "below": ["below", "under"]}[relation]
        words += [rng.choice(ways), said(scene.shapes[1])]
    if scene.background != BACKGROUND or rng.random() < 0.4:
        words.append(rng.choices([f"on a {scene.background} background", f"on {scene.background}"], [85, 15])[0])
    text = " ".join(words).strip()
    return (text[0].upper() + text[1:] if rng.random() < 0.1 else text) + ("." if rng.random() < 0.1 else "")


# The classes of each attribute of a scene.
CLASSES = [3, len(COLOURS), len(FORMS), len(RADII), len(COLOURS) + 1, len(FORMS) + 1, 1 + len(PLACES) + len(RELATIONS), len(COLOURS)]


def attributes(scene):
    """What a caption says, as a class each: the targets of the text encoders' first lessons."""
    first, second = (*scene.shapes, None)[:2]
    details = [None, *PLACES, *RELATIONS]
    return [
        ["one", "on", "beside"].index(scene.kind), COLOURS.index(first.colour), FORMS.index(first.form),
        list(RADII).index(first.size), COLOURS.index(second.colour) if second else len(COLOURS),
        FORMS.index(second.form) if second else len(FORMS), details.index(scene.detail),
        COLOURS.index(scene.background),
    ]


def outline(form, x, y, radius):
    """A form's corners, or the box of a circle, its bounding box's middle at x, y."""
    if form == "circle":
        return [(x - radius, y - radius), (x + radius, y + radius)]
    if form == "square":
        half = radius * 0.9
        return [(x - half, y - half), (x + half, y - half), (x + half, y + half), (x - half, y + half)]
    corners, radii = (3, (1,)) if form == "triangle" else (10, (1, 0.42))
    points = []
    for corner in range(corners):
        angle, reach = 2 * math.pi * corner / corners, radius * radii[corner % len(radii)] * 1.1
        points.append((x + reach * math.sin(angle), y - reach * math.cos(angle)))
    heights = [point[1] for point in points]
    middle = (min(heights) + max(heights)) / 2
    return [(px, py - middle + y) for px, py in points]


def paint(draw, shape, x, y, radius, scale):
    points = [(px * scale, py * scale) for px, py in outline(shape.form, x, y, radius)]
    (draw.ellipse if shape.form == "circle" else draw.polygon)(points, fill=PALETTE[shape.colour])


def placed(rng, scene, size=SIZE):
    """The shapes from back to front, with their centre and radius in pixels: [(shape, x, y, radius)]."""
    def near(value, spread):
        return value + rng.uniform(-spread, spread)

    unit = size / SIZE
    if scene.kind == "one":
        x, y = PLACES[scene.detail]
        (shape,) = scene.shapes
        return [(shape, near(x * size, 3 * unit), near(y * size, 3 * unit), near(RADII[shape.size], 1.5) * unit)]
    first, second = scene.shapes
    if scene.kind == "on":
        x, y, low = near(size / 2, 3 * unit), near(size / 2, 3 * unit), 7 * unit if second.form == "triangle" else 0
        return [(second, x, y, near(OUTER_RADIUS[second.form], 2) * unit), (first, x, y + low, near(INNER_RADIUS, 1) * unit)]
    right, down = (part * PAIR_OFFSET * size for part in RELATIONS[scene.detail])
    x, y = near(size / 2, 3 * unit), near(size / 2, 3 * unit)
    return [(second, x - right, y - down, near(PAIR_RADIUS, 1.5) * unit), (first, x + right, y + down, near(PAIR_RADIUS, 1.5) * unit)]


def picture(background, shapes, size=SIZE):
    """The picture as an array [H, W, 3] of bytes, smoothed by drawing at three times the size."""
    canvas = Image.new("RGB", (3 * size, 3 * size), PALETTE[background])
    draw = ImageDraw.Draw(canvas)
    for shape, x, y, radius in shapes:
        paint(draw, shape, x, y, radius, 3)
    return np.asarray(canvas.resize((size, size), Image.Resampling.BOX))


# ---- the judge ---------------------------------------------------------------------------------------------------------------


def nearest_colours(pixels):
    """Each pixel's nearest colour of the palette, as its index."""
    palette = np.array(list(PALETTE.values()), np.float32)
    return np.argmin(((pixels[..., None, :].astype(np.float32) - palette) ** 2).sum(-1), axis=-1)


def components(mask):
    """The connected parts of a mask, largest first."""
    labels, found = np.zeros(mask.shape, int), []
    for start in zip(*np.nonzero(mask)):
        if labels[start]:
            continue
        stack, label, size = [start], len(found) + 1, 0
        labels[start] = label
        while stack:
            y, x = stack.pop()
            size += 1
            for ny, nx in ((y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)):
                if 0 <= ny < mask.shape[0] and 0 <= nx < mask.shape[1] and mask[ny, nx] and not labels[ny, nx]:
                    labels[ny, nx] = label
                    stack.append((ny, nx))
        found.append((size, label))
    return [labels == label for _, label in sorted(found, reverse=True)]


def fill_holes(mask):
    """The mask with what it encloses."""
    outside = components(~np.pad(mask, 1))
    return ~next(part for part in outside if part[0, 0])[1:-1, 1:-1]


def centroid(mask):
    ys, xs = np.nonzero(mask)
    return np.array([xs.mean(), ys.mean()])


def overlap(form, mask):
    """How well a form fits a mask: drawn with its area and centroid, the share of both that is of both."""
    size, wanted = mask.shape[0], centroid(mask)
    middle, radius = wanted, math.sqrt(mask.sum() / 3)
    for _ in range(3):
        drawn = picture("white", [(Shape("black", form), *middle, radius)], size)[..., 0] < 128
        radius *= math.sqrt(mask.sum() / drawn.sum())
        middle = middle + wanted - centroid(drawn)
    drawn = picture("white", [(Shape("black", form), *middle, radius)], size)[..., 0] < 128
    return (drawn & mask).sum() / (drawn | mask).sum()


def form_of(mask):
    """The form that fits best."""
    return max(FORMS, key=lambda form: overlap(form, mask))


def judge(scene, pixels):
    """What is wrong with a picture [H, W, 3] of a scene: an empty list if it is right."""
    size = pixels.shape[0]
    unit, colours, wrong = size / SIZE, nearest_colours(pixels), []
    ring = np.ones((size, size), bool)
    edge = max(2, int(3 * unit))
    ring[edge:-edge, edge:-edge] = False
    if (colours[ring] == COLOURS.index(scene.background)).mean() < 0.8:
        wrong.append("background")
    masks = []
    for shape in scene.shapes:
        parts = components(colours == COLOURS.index(shape.colour))
        if not parts or parts[0].sum() < 60 * unit**2:
            return wrong + [f"no {shape.colour}"]
        if len(parts) > 1 and parts[1].sum() > 0.35 * parts[0].sum():
            wrong.append(f"two of {shape.colour}")
        masks.append(fill_holes(parts[0]))
    for shape, mask in zip(scene.shapes, masks):
        if form_of(mask) != shape.form:
            wrong.append(f"{shape.form} reads as {form_of(mask)}")
    (x, y), side = centroid(masks[0]), math.sqrt(masks[0].sum()) / unit
    if scene.kind == "one":
        (shape,) = scene.shapes
        place = min(PLACES, key=lambda name: math.dist((x / size, y / size), PLACES[name]))
        if place != scene.detail:
            wrong.append(f"at {place}")
        # How large a form's area is for a radius, by its own drawing.
        sides = {name: math.sqrt((picture("white", [(Shape("black", shape.form), 64, 64, r)])[..., 0] < 128).sum())
                 for name, r in RADII.items()}
        read = min(sides, key=lambda name: abs(math.log(side / sides[name])))
        if read != shape.size:
            wrong.append(f"size {read}")
    else:
        (x2, y2), other = centroid(masks[1]), masks[1]
        if scene.kind == "on":
            if (other & masks[0]).sum() < 0.6 * masks[0].sum() or masks[0].sum() >= other.sum():
                wrong.append("not on it")
        else:
            across, down = x - x2, y - y2
            read = ("right of" if across > 0 else "left of") if abs(across) > abs(down) else "below" if down > 0 else "above"
            if read != scene.detail:
                wrong.append(f"{read} instead")
    # What no caption asked for.
    asked = {COLOURS.index(name) for name in [scene.background, *(shape.colour for shape in scene.shapes)]}
    for index, name in enumerate(COLOURS):
        parts = [] if index in asked else components(colours == index)
        # A smoothed edge between two colours may read as a third, but is thin.
        solid = [p for p in parts[:1] if p.sum() > 150 * unit**2 and p.sum() > 0.5 * (np.ptp(np.nonzero(p)[0]) + 1) * (np.ptp(np.nonzero(p)[1]) + 1)]
        if solid:
            wrong.append(f"{name} too")
    return wrong


def held_out_prompts(count=200, seed=7):
    """Scenes that no training draws, with a caption each."""
    rng = random.Random(seed)
    scenes = [draw_scene(rng, held_out=True) for _ in range(count)]
    return [(caption(rng, scene), scene) for scene in scenes]


def changed(rng, scene):
    """The scene with one of its attributes changed."""
    other = lambda values, value: rng.choice([one for one in values if one != value])
    at = rng.randrange(len(scene.shapes))
    shape = scene.shapes[at]
    taken = {scene.background, *(one.colour for one in scene.shapes)}
    free = [name for name in COLOURS if name not in taken]
    ways = [{"colour": rng.choice(free)}, {"form": other(FORMS, shape.form)}]
    ways += [{"size": other(RADII, shape.size)}] if scene.kind == "one" else []
    shapes = list(scene.shapes)
    shapes[at] = dataclasses.replace(shape, **rng.choice(ways))
    details = {"one": PLACES, "beside": RELATIONS}.get(scene.kind)
    whole = [{"shapes": tuple(shapes)}] * 2 + [{"background": rng.choice(free)}]
    whole += [{"detail": other(details, scene.detail)}] if details else []
    return dataclasses.replace(scene, **rng.choice(whole))


if __name__ == "__main__":
    rng = random.Random(1)
    right, told = 0, 0
    for _ in range(400):
        scene = draw_scene(rng)
        drawn = picture(scene.background, placed(rng, scene))
        wrong, other = judge(scene, drawn), changed(rng, scene)
        right += not wrong
        told += bool(judge(other, drawn))
        if wrong or not judge(other, drawn):
            print(wrong, scene, other)
    print(f"of 400 drawn scenes {right} are read rightly, and {told} told from one that differs in one attribute")
