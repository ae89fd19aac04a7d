"""Differences along tile borders: diffusers' tiles and Tilewright's, of the same size, against diffusers' decode of the whole picture.

    python borders.py --tilewright PATH                                the bundled network and photograph, at 1024 × 1024
    python borders.py --tilewright PATH --vae DIR --size 1024          another network, a latent generated from a seed

Prints a table, and for each of Tilewright's plans how many times smaller its difference along borders is. Times nothing.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file

from compare import differences, read_sample
from contestants import eager, tiled, tiled_lines
from network import ROOT, Unfit, check_versions, generated_latent, read_latent, read_network, scale_of, weights_file
from peers import positive, say
from program import Program, plan_lines
from report import number, table

EXAMPLES = ROOT / "examples"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--tilewright", type=Path, metavar="PATH", help="the program; without it only diffusers' tiles are compared")
    add("--vae", type=Path, default=EXAMPLES / "models" / "flux-tiny" / "ae.safetensors", metavar="DIR|FILE", help="weights")
    add("--picture", type=Path, metavar="FILE", 
        help="a picture to encode and decode, for weights with an encoder [the bundled network: its astronaut]")
    add("--latent", type=Path, metavar="FILE", help="a latent to decode as it is")
    add("--size", type=positive, default=1024, metavar="PX", help="side of the picture, where no latent is given")
    add("--tile", type=positive, default=512, metavar="PX", help="everybody's tile")
    add("--overlap", type=positive, metavar="PX", help="everybody's overlap [a quarter of the tile]")
    add("--spaces", default="blended,exact", metavar="NAMES", help="what Tilewright does with its tiles")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a further setting of Tilewright's plans, repeatable")
    add("--tilewright-args", default="", metavar="ARGS", help="further options for each run of the program, as one word")
    add("--border", type=positive, default=4, metavar="PX", help="how near to a tile border counts as along it")
    add("--threads", type=positive, default=os.cpu_count(), metavar="N", help="processor threads")
    add("--json", type=Path, metavar="FILE", help="keep the figures")
    args = parser.parse_args()
    args.overlap = args.overlap or args.tile // 4
    if args.overlap >= args.tile:
        parser.error(f"--overlap {args.overlap} is not less than --tile {args.tile}")
    return args


def encoded(path, weights, side):
    """The picture's latent, the picture scaled to `side` × `side`: what the network was trained to see, unlike a scaled latent."""
    import numpy as np
    from PIL import Image

    picture = np.asarray(Image.open(path).convert("RGB").resize((side, side), Image.Resampling.LANCZOS), np.float32)
    vae = read_network(weights, encoder=True)
    return vae.encode(torch.from_numpy(picture).permute(2, 0, 1)[None] / 127.5 - 1).latent_dist.mode()


def make_latent(args, scale):
    if args.latent:
        return read_latent(args.latent)
    bundled = args.vae.resolve().is_relative_to(EXAMPLES.resolve())
    picture = args.picture or (EXAMPLES / "latents" / "astronaut.png" if bundled else None)
    if picture is None:
        return generated_latent(args.vae, args.size)
    if args.size % scale:
        raise Unfit(f"size {args.size} does not fit this network: give a multiple of {scale}")
    return encoded(picture, args.vae, args.size)


def compare(args):
    check_versions()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    scale, _ = scale_of(args.vae)
    options = {"tile": args.tile, "overlap_factor": args.overlap / args.tile, "scale": scale}
    latent = make_latent(args, scale).contiguous()
    extent = [side * scale for side in latent.shape[2:]]
    say("diffusers: whole")
    vae = read_network(args.vae)
    reference = eager(vae, options)(latent)
    say("diffusers: tiles")
    theirs = [tiled_lines(side, options) for side in extent]
    if not any(theirs):
        raise Unfit(f"tiles of {args.tile} px leave the picture of {extent[1]} × {extent[0]} whole: "
                    "give a smaller --tile or a larger --size")
    rows = {"diffusers tiled": differences(tiled(vae, options)(latent), reference, theirs, args.border)}
    if args.tilewright:
        program = Program(args.tilewright, weights_file(args.vae), args.threads, "cpu", shlex.split(args.tilewright_args))
        with tempfile.TemporaryDirectory() as folder:
            given, output = Path(folder) / "latent.safetensors", Path(folder) / "sample.safetensors"
            save_file({"latents": latent}, given)
            for space in args.spaces.split(","):
                policy = ",".join([f"fixed:space={space}", f"tile={args.tile}", f"overlap={args.overlap}", "precision=f32",
                                   *args.set])
                say(f"tilewright {policy}")
                try:
                    rows[f"tilewright {space}"] = row = program.decode(given, policy, output)[0]
                    row |= differences(read_sample(output), reference, plan_lines(row["plan"], extent), args.border)
                    if "border" not in row:
                        raise Unfit(f"it decoded with {row['plan']['space']}, without tiles")
                except Unfit as error:
                    rows[f"tilewright {space}"] = {"failed": error.without_folders()}
                output.unlink(missing_ok=True)
    return {"width": extent[1], "height": extent[0], "tile": args.tile, "overlap": args.overlap, "border_px": args.border,
            "network": args.vae.name, "rows": rows}


def markdown(found):
    yield (f"{found['width']} × {found['height']}, {found['network']}, tiles of {found['tile']} px overlapping by {found['overlap']}, f32, "
           f"against diffusers' decode of the whole picture (−1…1). Means within and beyond {found['border_px']} px of tile borders.")
    yield ""
    theirs = found["rows"]["diffusers tiled"]["border"]
    rows = []
    for name, gap in found["rows"].items():
        if "failed" in gap:
            rows.append([name, f"failed: {gap['failed']}", *[""] * 6])
            continue
        times = theirs / gap["border"] if gap["border"] > 0 else None
        name += " (the host changed: " + "; ".join(map(str, gap["adjusted"])) + ")" if gap.get("adjusted") else ""
        share = f"{gap['border'] / gap['inside']:.2f}" if gap["inside"] else ""
        rows.append([name, number(gap["border"], ".2e"), number(gap["inside"], ".2e"), share, number(gap["max"], ".2e"),
                     number(gap["mean"], ".2e"), number(gap["psnr"], ".1f"), number(times, ".1f")])
    yield from table(["", "border", "inside", "border / inside", "max", "mean", "PSNR, dB", "border: diffusers' / this"], rows)


def main():
    args = arguments()
    try:
        found = compare(args)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n")
    except (Unfit, OSError) as error:
        sys.exit(f"borders: {error}")
    except KeyboardInterrupt:
        sys.exit("borders: stopped")
    print("\n".join(markdown(found)))


if __name__ == "__main__":
    main()
