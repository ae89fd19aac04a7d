"""From a prompt to a picture with the bundled model: `tilewright generate` against diffusers, start of the process included.

    python generate.py TILEWRIGHT [--runs 10] [--threads 2]

Both run in turns with the same weights, steps, size and seed, once to warm the disk's cache and then --runs times. tilewright runs with
--as diffusers and a prompt that is new each time, by spaces at its end, so that no conditioning is kept. Prints the mean, the spread and
the ratio of whole processes, and the largest difference between two pictures of one prompt, of 255.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

MODELS = Path(__file__).parents[2] / "examples" / "models"
STEPS, SIDE, CFG = 12, 128, 2.0
PROMPT = "a red circle on a blue square"


def with_vae(folder):
    """The bundled pipeline with its VAE under diffusers' names."""
    sys.path.insert(0, str(MODELS / "shapes"))
    from train_pictures import autoencoder

    shutil.copytree(MODELS / "flux-shapes", folder, ignore=shutil.ignore_patterns("vae"))
    autoencoder().half().save_pretrained(folder / "vae")


def timed(command):
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        with_vae(place / "pipeline")
        worker = Path(__file__).with_name("generate_worker.py")
        times = {"diffusers": [], "tilewright": []}
        for run in range(arguments.runs + 1):
            prompt = PROMPT + " " * run
            theirs = [sys.executable, worker, place / "pipeline", PROMPT, place / "theirs.png",
                      *map(str, (STEPS, SIDE, arguments.threads, CFG))]
            ours = [arguments.program.resolve(), "generate", prompt, "--as", "diffusers", "-o", place / "ours.png", "--threads",
                    str(arguments.threads), "--no-history"]
            for name, command in (("diffusers", theirs), ("tilewright", ours)):
                took = timed(command)
                if run > 0:
                    times[name].append(took)
        # The same prompt for both, to the letter.
        timed([*ours[:2], PROMPT, *ours[3:]])
        pictures = [np.asarray(Image.open(place / f"{name}.png").convert("RGB")).astype(int) for name in ("theirs", "ours")]
    for name, of in times.items():
        print(f"{name}: {statistics.mean(of):.2f} s ± {statistics.stdev(of):.2f} over {len(of)} runs, least {min(of):.2f} s")
    print(f"ratio {statistics.mean(times['tilewright']) / statistics.mean(times['diffusers']):.3f}")
    print(f"largest difference of the pictures: {abs(pictures[0] - pictures[1]).max()} of 255")


if __name__ == "__main__":
    main()
