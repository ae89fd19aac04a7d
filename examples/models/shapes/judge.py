"""Judges the bundled models as the program runs them: prompts that no training saw, read by colours, areas and motion.

    python judge.py --program ../../../target/release/tilewright [--clips] [--count 200] [--sheet sheet.png] [--arguments=--explain]

Versions: numpy 2.4.6, pillow 13.0.0. Prints what is wrong, prompt by prompt, and the share that is right. The sheet has 40 pictures, or
every fourth frame of 10 clips, a row each.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import clips
import scenes

SHEET, COLUMNS = {False: 40, True: 10}, 8


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--clips", action="store_true", help="clips by wan-shapes, instead of pictures by flux-shapes")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7, help="of the prompts")
    parser.add_argument("--sheet", type=Path)
    parser.add_argument("--arguments", action="append", default=[], help="further arguments of generate")
    arguments = parser.parse_args()
    source, model = (clips, "wan-shapes") if arguments.clips else (scenes, "flux-shapes")
    right, kinds, made = 0, {}, []
    with tempfile.TemporaryDirectory() as folder:
        for index, (prompt, scene) in enumerate(source.held_out_prompts(arguments.count, arguments.seed)):
            out = Path(folder) / (f"{index}/" if arguments.clips else "out.png")
            command = [arguments.program, "generate", prompt, "--model", model, "-o", f"{out}/" if arguments.clips else out]
            subprocess.run([*command, "--seed", str(index), "--quiet", *arguments.arguments], check=True)
            files = sorted(out.glob("*.png")) if arguments.clips else [out]
            pictures = [np.asarray(Image.open(file).convert("RGB")) for file in files]
            wrong = source.judge(scene, np.stack(pictures) if arguments.clips else pictures[0])
            right += not wrong
            of = kinds.setdefault(scene.motion if arguments.clips else scene.kind, [0, 0])
            of[0] += not wrong
            of[1] += 1
            if wrong:
                print(f"{prompt}: {', '.join(wrong)}", flush=True)
            if len(made) < SHEET[arguments.clips]:
                made.append(np.concatenate(pictures[::4], 1))
    print(f"{right} of {arguments.count} are right; " + ", ".join(f"{kind}: {a} of {b}" for kind, (a, b) in sorted(kinds.items())))
    if arguments.sheet:
        columns = 1 if arguments.clips else COLUMNS
        rows = [np.concatenate(made[at:at + columns], 1) for at in range(0, len(made) - columns + 1, columns)]
        Image.fromarray(np.concatenate(rows)).save(arguments.sheet)


if __name__ == "__main__":
    main()
