"""Clips of one coloured shape in motion or still: their captions, their frames, and a judge that reads a clip.

Versions: numpy 2.4.6, pillow 13.0.0.

The palette, the outlines and the reading of one frame are those of scenes.py. One scene in ten is held out by a hash of what it
holds: no training draws it, and the judge asks for nothing else.
"""

import dataclasses
import hashlib
import math
import random

import numpy as np

import scenes
from scenes import BACKGROUND, COLOURS, Shape

SIZE, FRAMES = 64, 17
FORMS = ["circle", "square", "triangle"]
# A motion's way from the first frame to the last, right and down, and the factor of its radius.
MOTIONS = {
    "left": (-1, 0, 1), "right": (1, 0, 1), "up": (0, -1, 1), "down": (0, 1, 1),
    "growing": (0, 0, 2), "shrinking": (0, 0, 0.5), "still": (0, 0, 1),
}
# The way's length in parts of the side, and the radius halfway in pixels of a frame of SIZE.
WAY, RADIUS = 0.42, 14


@dataclasses.dataclass(frozen=True)
class Scene:
    colour: str
    form: str
    motion: str
    background: str

    def held_out(self):
        return hashlib.sha256(repr(dataclasses.astuple(self)).encode()).digest()[0] < 26


def draw_scene(rng, held_out=False):
    """A scene that is, or isn't, held out."""
    while True:
        background = BACKGROUND if rng.random() < 0.25 else rng.choice(COLOURS)
        scene = Scene(rng.choice(COLOURS), rng.choice(FORMS), rng.choice(list(MOTIONS)), background)
        if scene.colour != background and scene.held_out() == held_out:
            return scene


def caption(rng, scene):
    """One of the ways to say a scene. What is usual (standing still, a white background) may be left out."""
    article = rng.choices(["a", "the", ""], [90, 5, 5])[0]
    shape, motion = f"{scene.colour} {scene.form}", scene.motion
    if motion == "still":
        words = rng.choice([f"still {shape}", f"{shape} is still", shape])
    elif motion in ("growing", "shrinking"):
        words = rng.choice([f"{motion} {shape}", f"{shape} {motion}", f"{shape} is {motion}"])
    else:
        way = rng.choice([motion, f"to the {motion}"]) if motion in ("left", "right") else motion
        words = f"{shape} {rng.choice(['moving', 'moving', 'is moving'])} {way}"
    words = f"{article} {words}"
    if scene.background != BACKGROUND or rng.random() < 0.4:
        words += rng.choices([f" on a {scene.background} background", f" on {scene.background}"], [85, 15])[0]
    text = words.strip()
    return (text[0].upper() + text[1:] if rng.random() < 0.1 else text) + ("." if rng.random() < 0.1 else "")


# The classes of each attribute of a scene.
CLASSES = [len(COLOURS), len(FORMS), len(MOTIONS), len(COLOURS)]


def attributes(scene):
    """What a caption says, as a class each: the targets of the text encoder's first lessons."""
    return [COLOURS.index(scene.colour), FORMS.index(scene.form), list(MOTIONS).index(scene.motion), COLOURS.index(scene.background)]


def clip(rng, scene, size=SIZE):
    """The clip as an array [T, H, W, 3] of bytes: a constant speed, or a radius that changes by the same factor every frame."""
    unit = size / SIZE
    right, down, factor = MOTIONS[scene.motion]
    x, y = (size / 2 + rng.uniform(-1.5, 1.5) * unit for _ in range(2))
    way, radius = (WAY + rng.uniform(-0.03, 0.03)) * size, (RADIUS + rng.uniform(-0.6, 0.6)) * unit
    frames = []
    for frame in range(FRAMES):
        part = frame / (FRAMES - 1) - 0.5
        placed = (Shape(scene.colour, scene.form), x + right * way * part, y + down * way * part, radius * factor**part)
        frames.append(scenes.picture(scene.background, [placed], size))
    return np.stack(frames)


# ---- the judge ---------------------------------------------------------------------------------------------------------------


def solid(mask, side):
    """The pixels about which a square of the mask lies."""
    whole = np.lib.stride_tricks.sliding_window_view(mask, (side, side)).all((2, 3))
    return np.pad(whole, side // 2)


def motion_of(path, areas, size):
    """The motion that a centroid's path [T, 2] in pixels and the areas [T] show, or what else they do."""
    time = np.linspace(-0.5, 0.5, len(areas))
    square = (time**2).sum()
    right, down = (time @ path) / square / size
    growth = math.exp((time @ np.log(areas)) / square)
    # A path that jumps or turns back is none of the motions, whatever its mean is.
    stray = np.abs(path - path.mean(0) - time[:, None] * np.array([right, down]) * size).max() / size
    far, other = max(abs(right), abs(down)), min(abs(right), abs(down))
    if stray > 0.08:
        return "astray"
    if far > 0.25 and other < 0.12 and 0.6 < growth < 1 / 0.6:
        return ("right" if right > 0 else "left") if abs(right) > abs(down) else "down" if down > 0 else "up"
    if far < 0.12 and not 0.45 < growth < 1 / 0.45:
        return "growing" if growth > 1 else "shrinking"
    if far < 0.12 and 0.6 < growth < 1 / 0.6:
        return "still"
    return f"moving {right:.2f}, {down:.2f}, growing {growth:.2f}"


def judge(scene, frames):
    """What is wrong with a clip [T, H, W, 3] of a scene: an empty list if it is right."""
    size = frames.shape[1]
    unit, colours, wrong = size / scenes.SIZE, scenes.nearest_colours(frames), []
    ring = np.ones((size, size), bool)
    edge = max(2, int(3 * unit))
    ring[edge:-edge, edge:-edge] = False
    if (colours[:, ring] == COLOURS.index(scene.background)).mean(1).min() < 0.8:
        wrong.append("background")
    own, other = (np.array(scenes.PALETTE[name], np.float32) for name in (scene.colour, scene.background))
    # Nearer to the shape's colour than to the background's: a soft edge's other colours don't count.
    nearer = (((frames - own) ** 2).sum(-1) < ((frames - other) ** 2).sum(-1))
    path, areas, shares, extra = [], [], dict.fromkeys(FORMS, 0.0), set()
    for frame, inside in zip(colours, nearer):
        parts = scenes.components(inside)
        if not parts or parts[0].sum() < 100 * unit**2:
            return wrong + [f"no {scene.colour}"]
        if len(parts) > 1 and parts[1].sum() > 0.35 * parts[0].sum():
            extra.add(f"two of {scene.colour}")
        # Holes lie inside the part's box: cut out, they're found sooner.
        mask = parts[0]
        ys, xs = np.nonzero(mask)
        box = slice(ys.min(), ys.max() + 1), slice(xs.min(), xs.max() + 1)
        mask[box] = scenes.fill_holes(mask[box])
        within = solid(mask, 3)
        if (frame[within if within.any() else mask] == COLOURS.index(scene.colour)).mean() < 0.6:
            extra.add(f"not {scene.colour}")
        path.append(scenes.centroid(mask))
        areas.append(mask.sum())
        for form in FORMS:
            shares[form] += scenes.overlap(form, mask)
        # What no caption asked for. A soft edge between two colours may read as a third, but is thin.
        for index, name in enumerate(COLOURS):
            if name not in (scene.colour, scene.background) and solid(frame == index, 5).sum() > 120 * unit**2:
                extra.add(f"{name} too")
    form = max(shares, key=shares.get)
    if form != scene.form:
        wrong.append(f"{scene.form} reads as {form}")
    motion = motion_of(np.array(path), np.array(areas, float), size)
    if motion != scene.motion:
        wrong.append(f"{scene.motion} reads as {motion}")
    return wrong + sorted(extra)


def held_out_prompts(count=100, seed=7):
    """Scenes that no training draws, with a caption each."""
    rng = random.Random(seed)
    drawn = [draw_scene(rng, held_out=True) for _ in range(count)]
    return [(caption(rng, scene), scene) for scene in drawn]


def changed(rng, scene):
    """The scene with one of its attributes changed."""
    field, values = rng.choice([("colour", COLOURS), ("form", FORMS), ("motion", list(MOTIONS)), ("background", COLOURS)])
    other = [value for value in values if value not in (getattr(scene, field), scene.colour, scene.background)]
    return dataclasses.replace(scene, **{field: rng.choice(other)})


if __name__ == "__main__":
    rng = random.Random(1)
    right, told = 0, 0
    for _ in range(200):
        scene = draw_scene(rng)
        drawn = clip(rng, scene)
        wrong, other = judge(scene, drawn), changed(rng, scene)
        right += not wrong
        told += bool(judge(other, drawn))
        if wrong or not judge(other, drawn):
            print(wrong, scene, other)
    print(f"of 200 drawn clips {right} are read rightly, and {told} told from one that differs in one attribute")
