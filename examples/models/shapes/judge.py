"""Judges the bundled picture model as the program runs it: prompts that no training saw, read by colours and moments.

    python judge.py --program ../../../target/release/tilewright [--count 200] [--sheet sheet.png] [--arguments=--model=…]

Versions: numpy 2.4.6, pillow 13.0.0. Prints what is wrong, picture by picture, and the share that is right.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import scenes

SHEET = 40
COLUMNS = 8


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7, help="of the prompts")
    parser.add_argument("--sheet", type=Path)
    parser.add_argument("--arguments", action="append", default=[], help="further arguments of generate")
    arguments = parser.parse_args()
    right, kinds, pictures = 0, {}, []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.png"
        for index, (prompt, scene) in enumerate(scenes.held_out_prompts(arguments.count, arguments.seed)):
            command = [arguments.program, "generate", prompt, "-o", out, "--seed", str(index), "--quiet", *arguments.arguments]
            subprocess.run(command, check=True)
            picture = np.asarray(Image.open(out).convert("RGB"))
            wrong = scenes.judge(scene, picture)
            right += not wrong
            of = kinds.setdefault(scene.kind, [0, 0])
            of[0] += not wrong
            of[1] += 1
            if wrong:
                print(f"{prompt}: {', '.join(wrong)}", flush=True)
            if len(pictures) < SHEET:
                pictures.append(picture)
    print(f"{right} of {arguments.count} are right; " + ", ".join(f"{kind}: {a} of {b}" for kind, (a, b) in sorted(kinds.items())))
    if arguments.sheet:
        rows = [np.concatenate(pictures[at:at + COLUMNS], 1) for at in range(0, len(pictures) - COLUMNS + 1, COLUMNS)]
        Image.fromarray(np.concatenate(rows)).save(arguments.sheet)


if __name__ == "__main__":
    main()
