"""WAN VAEs of the published sizes, with seeded random weights: diffusers' decodes of them, and Tilewright's against those. Run by hand.

    python real_size_video.py --out DIR [--threads N]                     makes what is missing: weights, latents, references
    python real_size_video.py --out DIR --compare PATH [--threads N]      also decodes with that Tilewright and compares

Needs the versions that networks.py pins; decoders in f16, each in WAN's own and in diffusers' layout: 300 MB of disk for 2.1, 2.3 GB for
2.2 (`--encoder` adds theirs), and up to 8 GB of memory. References are f32 on the CPU; the larger latents have none, and are only decoded where
`--cases` names them. Times are of the decode alone for diffusers, of the whole program for Tilewright; peaks are each process's own.
On one thread PyTorch computes these convolutions far slower than on two: it then leaves oneDNN out for batches of one.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import load_file

from networks import VERSIONS, check_versions, plain_f32, save
from real_size import LAUNCHER, TOLERANCE, alone, peak_mib
from video_networks import decode_video, random_video_latent, random_video_weights, read_video_vae, to_original, wan_config

NETWORKS = {
    "wan21": wan_config("2.1", z=16, base=96),
    "wan22": wan_config("2.2", z=48, base=160, decoder_base=256),
}
# Frames and pixels of the output; True where a reference is made.
CASES = {"1x320x320": True, "17x96x128": True, "17x320x320": False, "17x480x832": False, "81x480x832": False}
LAYOUTS = {
    "original": {"wan21": "wan21/Wan2.1_VAE.safetensors", "wan22": "wan22/Wan2.2_VAE.safetensors"},
    "diffusers": {family: f"{family}/diffusers/diffusion_pytorch_model.safetensors" for family in NETWORKS},
}


def latent_shape(config, case):
    frames, height, width = map(int, case.split("x"))
    scale, rate = config["scale_factor_spatial"], config["scale_factor_temporal"]
    assert (frames - 1) % rate == 0 and height % scale == 0 and width % scale == 0, case
    return 1, config["z_dim"], 1 + (frames - 1) // rate, height // scale, width // scale


def make_weights(out, family, config, layouts, encoder):
    """Both layouts of one network; config.json beside diffusers' own."""
    missing = [layout for layout in layouts if not (out / LAYOUTS[layout][family]).exists()]
    if not missing:
        return
    weights = random_video_weights(config, f"real-size-{family}", "f16", encoder)
    for layout in missing:
        path = out / LAYOUTS[layout][family]
        save(to_original(weights, config) if layout == "original" else weights, path, {"format": "pt"})
        if layout == "diffusers":
            with torch.device("meta"):
                AutoencoderKLWan(**config).save_config(path.parent)


def make_reference(out, family, layout, case, threads):
    """In a process of its own, so that its peak is of this decode."""
    plain_f32(threads)
    vae = read_video_vae(out / LAYOUTS[layout][family], NETWORKS[family], layout == "original")
    vae.encoder = vae.quant_conv = None
    latent = load_file(out / family / f"latent-{case}.safetensors")["latents"]
    start = time.perf_counter()
    sample = decode_video(vae, latent)
    elapsed = time.perf_counter() - start
    save({"sample": sample}, out / family / f"reference-{case}.safetensors")
    return {
        "elapsed_s": round(elapsed, 3), "threads": threads, "peak_mib": peak_mib(), "sample_shape": list(sample.shape),
        "sample_std": round(sample.std().item(), 4), "clamped_share": round((sample.abs() == 1).float().mean().item(), 5),
    }


def generate(args):
    """Makes what is missing, and returns the facts of each reference."""
    facts_path = args.out / "video-references.json"
    facts = json.loads(facts_path.read_text()) if facts_path.exists() else {"versions": VERSIONS}
    for family in args.networks:
        config = NETWORKS[family]
        make_weights(args.out, family, config, args.layouts, args.encoder)
        for case, judged in CASES.items():
            name, path = f"{family}-{case}", args.out / family / f"latent-{case}.safetensors"
            if not path.exists():
                save({"latents": random_video_latent(f"real-size-{name}", latent_shape(config, case))}, path)
            if case not in args.cases or not judged or (name in facts and (args.out / family / f"reference-{case}.safetensors").exists()):
                continue
            facts[name] = alone(make_reference, args.out, family, args.layouts[0], case, args.threads)
            facts_path.write_text(json.dumps(facts, indent=1) + "\n")
            print(f"diffusers   {name:18} {facts[name]['elapsed_s']:8.2f} s {facts[name]['peak_mib']:6} MiB"
                  f"  std {facts[name]['sample_std']:.3f} clamped {facts[name]['clamped_share']:.4f}", flush=True)
    return facts


def run_tilewright(args, family, layout, case):
    """Decodes through the program; the share of the tolerance that the worst pixel takes, 0 without a reference, None where it failed."""
    out, name = args.out, f"{family}-{case}"
    result = out / family / f"tilewright-{layout}-{case}.safetensors"
    result.unlink(missing_ok=True)
    settings = [part for setting in args.set for part in ("--set", setting)]
    command = [args.compare, "decode", out / family / f"latent-{case}.safetensors", "--vae", out / LAYOUTS[layout][family], "-o", result,
               "--policy", args.policy, *settings, "--device", "cpu", "--threads", str(args.threads)]
    measured = subprocess.run([sys.executable, "-S", "-c", LAUNCHER, *map(str, command)], stdout=subprocess.PIPE, check=True)
    run = json.loads(measured.stdout)
    if run["exit"] != 0 or not result.exists():
        print(f"tilewright  {name:18} {layout:10} exit {run['exit']}")
        return None
    figures = f"tilewright  {name:18} {layout:10} {run['elapsed_s']:8.2f} s {run['peak_mib']:6} MiB"
    if not CASES[case]:
        print(figures, flush=True)
        return 0.0
    sample = load_file(result)["sample"]
    reference = load_file(out / family / f"reference-{case}.safetensors")["sample"]
    if sample.shape != reference.shape:
        print(f"{figures}  shape {list(sample.shape)}, not {list(reference.shape)}")
        return None
    difference = (sample - reference).abs().max().item()
    share = difference / (TOLERANCE * max(1.0, reference.abs().max().item()))
    print(f"{figures}  max difference {difference:.2e}, {share:.3f} of the tolerance", flush=True)
    # NaN compares false, and so fails.
    return share


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, latents and references; reused where they stand")
    parser.add_argument("--compare", type=Path, metavar="PATH", help="the program to compare")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=LAYOUTS)
    parser.add_argument("--cases", nargs="+", default=[case for case, judged in CASES.items() if judged], choices=CASES,
                        help="frames x height x width of what is decoded; by default those with a reference")
    parser.add_argument("--encoder", action="store_true", help="store the encoders too")
    parser.add_argument("--policy", default="fixed")
    parser.add_argument("--set", nargs="*", default=["space=whole", "precision=f32"], metavar="KEY=VALUE", help="settings of the policy")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    check_versions()
    generate(args)
    if args.compare:
        shares = [run_tilewright(args, family, layout, case) for family in args.networks for layout in args.layouts for case in args.cases]
        if not all(share is not None and share <= 1 for share in shares):
            sys.exit("not within the tolerance everywhere")


if __name__ == "__main__":
    main()
