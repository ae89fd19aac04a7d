"""VAEs of the published sizes, with seeded random weights: diffusers' decodes of them, and Tilewright's against those. Run by hand.

    python real_size.py --out DIR [--threads N]                      makes what is missing: weights, latents, references
    python real_size.py --out DIR --tilewright PATH [--threads N]    also decodes with Tilewright and compares

Needs the versions that networks.py pins, 1 GB of disk and about 4 GB of memory. Decoders alone, in f16, each in LDM's and in
diffusers' layout. References are f32 on the CPU. Times are of the decode alone for diffusers, of the whole program for Tilewright;
peaks are each process's own, weights and libraries included.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file

from networks import (VERSIONS, check_versions, decode, plain_f32, random_latent, random_weights, read_vae, save, to_ldm, vae_config)

TOLERANCE = 1e-4
NETWORKS = {family: vae_config(family, (128, 256, 512, 512), layers=2, sample_size=1024) for family in ("flux", "sdxl")}
LATENTS = {"17x23": (17, 23), "64x64": (64, 64)}
LAYOUTS = {"ldm": "{family}/ae.safetensors", "diffusers": "{family}/diffusers/diffusion_pytorch_model.safetensors"}

# A small process between this one and the program: a child's peak starts from the size of the process that forked it.
LAUNCHER = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
elapsed = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
print(json.dumps({"exit": code, "elapsed_s": elapsed, "peak_mib": peak}))
"""


def vae_path(out, family, layout):
    return out / LAYOUTS[layout].format(family=family)


def make_weights(out, family, config):
    """Both layouts of one network; config.json beside diffusers' own."""
    if all(vae_path(out, family, layout).exists() for layout in LAYOUTS):
        return
    weights = random_weights(config, f"real-size-{family}", "f16", encoder=False)
    save(to_ldm(weights, config), vae_path(out, family, "ldm"), {"format": "pt"})
    with torch.device("meta"):
        AutoencoderKL(**config).save_config(vae_path(out, family, "diffusers").parent)
    save(weights, vae_path(out, family, "diffusers"), {"format": "pt"})


def make_reference(out, family, size, threads):
    """In a process of its own, so that its peak is of this decode."""
    plain_f32(threads)
    vae = read_vae(vae_path(out, family, "ldm"), NETWORKS[family], ldm=True)
    latent = load_file(out / family / f"latent-{size}.safetensors")["latents"]
    start = time.perf_counter()
    sample = decode(vae, latent)
    elapsed = time.perf_counter() - start
    save({"sample": sample}, out / family / f"reference-{size}.safetensors")
    return {
        "elapsed_s": round(elapsed, 3), "threads": threads, "peak_mib": peak_mib(),
        "sample_shape": list(sample.shape), "sample_std": round(sample.std().item(), 4), "sample_max": round(sample.abs().max().item(), 4),
    }


def peak_mib():
    """The largest resident size of this process. Its ru_maxrss would start from that of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def alone(function, *args):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def generate(out, threads):
    """Makes what is missing, and returns the facts of each reference."""
    facts_path = out / "references.json"
    facts = json.loads(facts_path.read_text()) if facts_path.exists() else {"versions": VERSIONS}
    for family, config in NETWORKS.items():
        make_weights(out, family, config)
        for size, (height, width) in LATENTS.items():
            name = f"{family}-{size}"
            if name in facts and (out / family / f"reference-{size}.safetensors").exists():
                continue
            save({"latents": random_latent(f"real-size-{name}", (1, config["latent_channels"], height, width))},
                 out / family / f"latent-{size}.safetensors")
            facts[name] = alone(make_reference, out, family, size, threads)
            facts_path.write_text(json.dumps(facts, indent=1) + "\n")
            print(f"diffusers   {name:12} {facts[name]['elapsed_s']:8.2f} s {facts[name]['peak_mib']:6} MiB"
                  f"  std {facts[name]['sample_std']:.3f} max {facts[name]['sample_max']:.2f}", flush=True)
    return facts


def run_tilewright(program, out, family, layout, size, threads):
    """Decodes through the program; returns the share of the tolerance that the worst pixel takes, or None where it failed."""
    result = out / family / f"tilewright-{layout}-{size}.safetensors"
    result.unlink(missing_ok=True)
    command = [program, "decode", out / family / f"latent-{size}.safetensors", "--vae", vae_path(out, family, layout), "-o", result,
               "--policy", "fixed", "--set", "space=whole", "--set", "precision=f32", "--device", "cpu", "--threads", str(threads)]
    measured = subprocess.run([sys.executable, "-S", "-c", LAUNCHER, *map(str, command)], stdout=subprocess.PIPE, check=True)
    run = json.loads(measured.stdout)
    name = f"{family}-{size}"
    if run["exit"] != 0 or not result.exists():
        print(f"tilewright  {name:12} {layout:10} exit {run['exit']}")
        return None
    sample = load_file(result)["sample"]
    reference = load_file(out / family / f"reference-{size}.safetensors")["sample"]
    if sample.shape != reference.shape:
        print(f"tilewright  {name:12} {layout:10} shape {list(sample.shape)}, not {list(reference.shape)}")
        return None
    difference = (sample - reference).abs().max().item()
    share = difference / (TOLERANCE * max(1.0, reference.abs().max().item()))
    print(f"tilewright  {name:12} {layout:10} {run['elapsed_s']:8.2f} s {run['peak_mib']:6} MiB"
          f"  max difference {difference:.2e}, {share:.3f} of the tolerance", flush=True)
    # NaN compares false, and so fails.
    return share


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for weights, latents and references; reused where they stand")
    parser.add_argument("--tilewright", type=Path, help="the program to compare")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    check_versions()
    generate(args.out, args.threads)
    if args.tilewright:
        shares = [run_tilewright(args.tilewright, args.out, family, layout, size, args.threads)
                  for family in NETWORKS for layout in LAYOUTS for size in LATENTS]
        if not all(share is not None and share <= 1 for share in shares):
            sys.exit("not within the tolerance everywhere")


if __name__ == "__main__":
    main()
