"""How much of a seam is the norms': diffusers' own tiled decode with each tile's statistics, and with those of the whole picture.

    python norms.py [--size 1024] [--tile 512] [--threads N]

On the bundled model, which is trained, and the bundled photograph, resized and encoded. Statistics are recorded from the whole decode, norm by
norm, as exact tiles have them; everything else is diffusers' (versions as in requirements.txt).
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/judge"))
from networks import read_vae, vae_config  # noqa: E402

NEAR = 8


class Norm(torch.nn.Module):
    """A group norm that records its statistics, or uses recorded ones, or does what it always does."""

    mode = "own"

    def __init__(self, norm):
        super().__init__()
        self.norm, self.recorded = norm, None

    def forward(self, value):
        norm = self.norm
        if Norm.mode == "own":
            return norm(value)
        grouped = value.reshape(value.shape[0], norm.num_groups, -1)
        if Norm.mode == "record":
            wide = grouped.double()
            self.recorded = wide.mean(2, keepdim=True).float(), wide.var(2, unbiased=False, keepdim=True).float()
        mean, variance = self.recorded
        normed = ((grouped - mean) / (variance + norm.eps).sqrt()).reshape(value.shape)
        shape = (1, -1, *[1] * (value.dim() - 2))
        return normed * norm.weight.reshape(shape) + norm.bias.reshape(shape)


def replace_norms(module):
    for name, child in module.named_children():
        if isinstance(child, torch.nn.GroupNorm):
            setattr(module, name, Norm(child))
        else:
            replace_norms(child)


def borders(size, tile):
    """Which pixels lie near where a tile begins or ends, along one axis."""
    step = tile * 3 // 4
    edges = [edge for start in range(step, size, step) for edge in (start, start + tile - step) if edge < size]
    near = np.zeros(size, bool)
    for edge in edges:
        near[max(0, edge - NEAR):edge + NEAR] = True
    return near


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, metavar="PX", help="side of the picture")
    parser.add_argument("--tile", type=int, default=512, metavar="PX", help="side of a tile; a quarter is shared")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="processor threads")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    vae = read_vae(ROOT / "examples/models/flux-tiny/ae.safetensors", vae_config("flux", (64, 64, 96, 96), 1), ldm=True)
    photograph = Image.open(ROOT / "examples/latents/astronaut.png").convert("RGB").resize((args.size, args.size), Image.LANCZOS)
    picture = torch.from_numpy(np.array(photograph, np.float32)).permute(2, 0, 1)[None] / 127.5 - 1
    latent = vae.encode(picture).latent_dist.mode()
    replace_norms(vae.decoder)
    Norm.mode = "record"
    whole = vae.decoder(latent if vae.post_quant_conv is None else vae.post_quant_conv(latent))
    vae.tile_sample_min_size, vae.tile_latent_min_size, vae.tile_overlap_factor = args.tile, args.tile // 8, 0.25
    near = borders(args.size, args.tile)
    along = near[:, None] | near[None, :]
    print("| statistics | along borders | elsewhere | largest |\n|---|---|---|---|")
    means = {}
    for mode, name in (("own", "each tile's own"), ("recorded", "the whole picture's")):
        Norm.mode = mode
        difference = (vae.tiled_decode(latent).sample - whole).abs()[0].mean(0).numpy()
        means[mode] = difference[along].mean()
        print(f"| {name} | {means[mode]:.2e} | {difference[~along].mean():.2e} | {difference.max():.2f} |")
    print(f"\nAlong borders {means['own'] / means['recorded']:.1f} times less with the whole picture's.")


if __name__ == "__main__":
    main()
