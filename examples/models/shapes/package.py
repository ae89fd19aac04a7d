"""Lays out a bundled model from a trained state, with flux-tiny or wan-tiny as its VAE.

    python package.py STATE ../flux-shapes
    python package.py --clips STATE ../wan-shapes

Versions: those of train_pictures.py. The VAE is a link to the other model's file, under its original names.
"""

import argparse
import json
from pathlib import Path

import torch

import clips
import scenes
import train_clips
import train_pictures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("state", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--clips", action="store_true", help="the video model")
    arguments = parser.parse_args()
    training = train_clips if arguments.clips else train_pictures
    model = training.Model()
    kept = torch.load(arguments.state, weights_only=False)
    for name, module in model.modules().items():
        module.load_state_dict(kept[name])
    training.save(model, arguments.out)
    weights = arguments.out / "vae" / "diffusion_pytorch_model.safetensors"
    weights.unlink()
    weights.symlink_to(Path("../..") / training.VAE.relative_to(training.VAE.parents[1]))
    index = arguments.out / "model_index.json"
    own = {"steps": training.STEPS, "shift": training.SHIFT, "cfg": training.CFG}
    own |= {"size": [clips.SIZE] * 2, "frames": clips.FRAMES} if arguments.clips else {"size": [scenes.SIZE] * 2}
    index.write_text(json.dumps(json.loads(index.read_text()) | {"tilewright": own}, indent=2) + "\n")
    for path in sorted(arguments.out.rglob("*")):
        if path.is_file() and not path.is_symlink():
            print(f"{path.stat().st_size:>10,} {path.relative_to(arguments.out)}")


if __name__ == "__main__":
    main()
