"""Times `tilewright decode` against diffusers' AutoencoderKLWan: the same weights, latent and threads, in turns.

    python video.py --tilewright PATH --vae FILE --frames 1 17 --size 320x320 --policies adaptive fixed:space=whole,precision=f32

Needs what requirements.txt pins, on Linux. Every single decode is a process of its own, for Tilewright and for diffusers alike, and only one
works at a time; times are of the decode alone (Tilewright's: `outcome.elapsed_ms` of its record), never of loading. So each is a process's
first decode. Memory is the process's high-water mark, weights and libraries included. A line is printed on standard error as each
decode ends; the tables go to standard output.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from safetensors.torch import save_file

from compare import differences, read_sample
from machine import facts
from network import Unfit, check_versions, weights_file
from program import Program
from report import mib, number, ratio, table
from spread import summary
from video_network import generated_latent
from video_worker import CONTESTANTS

HERE = Path(__file__).resolve().parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--vae", type=Path, required=True, metavar="DIR|FILE",
        help="weights: diffusers' folder or file with config.json beside it, or a file in WAN's own layout")
    add("--tilewright", type=Path, metavar="PATH", help="the program; without it only the peers are timed")
    add("--policies", nargs="+", default=["adaptive", "fixed:space=whole,precision=f32"], metavar="POLICY",
        help="what Tilewright decodes with: a name, or NAME:key=value,key=value")
    add("--tilewright-args", default="", metavar="ARGS", help="further options for each run of the program, as one word")
    add("--peers", nargs="+", default=["eager"], choices=CONTESTANTS, help="eager always runs, as the reference")
    add("--frames", nargs="+", type=int, default=[1, 17], metavar="N", help="frames of the clips, latents generated from a seed")
    add("--size", nargs="+", type=size, default=["320x320"], metavar="HxW", help="height and width of the clips in pixels")
    add("--threads", type=int, default=os.cpu_count(), metavar="N", help="processor threads of every contestant")
    add("--iterations", type=int, default=3, metavar="N", help="decodes of each contestant and clip")
    add("--precision", default="f32", choices=["f32", "bf16", "f16"], help="the peers' precision; Tilewright's is said by its policies")
    add("--json", type=Path, metavar="FILE", help="keep everything, each sample included")
    add("--markdown", type=Path, metavar="FILE", help="write the tables here too")
    args = parser.parse_args()
    args.peers = list(dict.fromkeys(["eager", *args.peers]))
    args.size = [size(value) if isinstance(value, str) else value for value in args.size]
    if args.iterations < 1:
        parser.error("--iterations is below one")
    return args


def size(text):
    try:
        height, width = map(int, text.split("x"))
        return height, width
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not HEIGHTxWIDTH") from None


class Peer:
    """diffusers, a process a decode."""

    def __init__(self, name, args, latent, folder):
        self.name = name
        self.output = folder / f"{name}.safetensors"
        self.options = {"contestant": name, "vae": str(args.vae), "latent": str(latent), "threads": args.threads, "precision": args.precision}
        self.environment = os.environ | {"OMP_NUM_THREADS": str(args.threads), "MKL_NUM_THREADS": str(args.threads)}

    def decode(self):
        options = self.options | {"output": None if self.output.exists() else str(self.output)}
        done = subprocess.run([sys.executable, str(HERE / "video_worker.py"), json.dumps(options)], env=self.environment,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
            raise Unfit(f"its process ended with {done.returncode}: {lines[-1].strip()}")
        return json.loads(done.stdout)


class Policy:
    """The program under one policy, a process a decode."""

    def __init__(self, program, policy, latent, folder, number):
        self.name, self.program, self.latent = f"tilewright {policy if ':' in policy else Path(policy).name}", program, latent
        name, _, settings = policy.partition(":")
        self.policy = ["--policy", name, *(part for pair in settings.split(",") if pair for part in ("--set", pair))]
        self.output = folder / f"tilewright-{number}.safetensors"

    def decode(self):
        program = self.program
        printed, peak = program.run([program.path, "decode", str(self.latent), "--vae", program.vae, *self.policy, *program.options,
                                     "--json", "-o", str(self.output), *program.extra])
        try:
            record = json.loads(printed)
            outcome = record["outcome"]
            return {"elapsed_s": outcome["elapsed_ms"] / 1000, "load_s": (outcome.get("load_ms") or 0) / 1000, "total_bytes": peak,
                    "own_peak_bytes": outcome.get("peak_bytes"), "plan": record["plan"], "adjusted": record["adjusted"]}
        except (ValueError, KeyError, TypeError):
            raise Unfit("tilewright decode --json does not print a record with its outcome: give a program that does") from None


def one_clip(args, program, folder, frames, height, width):
    """Rows of one clip; each contestant once a round, each round begun by another one."""
    for old in folder.glob("*.safetensors"):
        old.unlink()
    latent = folder / "latent.safetensors"
    save_file({"latents": generated_latent(args.vae, frames, height, width)}, latent)
    running = [Peer(name, args, latent, folder) for name in args.peers]
    if program:
        running += [Policy(program, policy, latent, folder, number) for number, policy in enumerate(args.policies)]
    rows = {contestant.name: {"name": contestant.name, "samples": []} for contestant in running}
    for turn in range(args.iterations):
        start = turn % len(running)
        for contestant in running[start:] + running[:start]:
            row = rows[contestant.name]
            if "failed" in row:
                continue
            try:
                found = contestant.decode()
            except Unfit as error:
                row["failed"] = error.without_folders()
                print(f"{contestant.name}: failed: {error}", file=sys.stderr, flush=True)
                continue
            row["samples"].append(found)
            print(f"round {turn + 1}: {contestant.name}: {found['elapsed_s']:.4g} s, {mib(found['total_bytes'])} MiB", file=sys.stderr, flush=True)
    if "failed" in rows["eager"]:
        raise Unfit(f"the reference, diffusers' eager decode, failed: {rows['eager']['failed']}")
    reference = flat(read_sample(running[0].output))
    for contestant in running:
        row = rows[contestant.name]
        if "failed" in row:
            continue
        try:
            row["difference"] = differences(flat(read_sample(contestant.output)), reference, ([], []), 1)
        except Unfit as error:
            row["failed"] = error.without_folders()
            continue
        row |= summary([sample["elapsed_s"] for sample in row["samples"]])
        row["total_bytes"] = max(sample["total_bytes"] for sample in row["samples"])
        row["own_peak_bytes"] = max((sample.get("own_peak_bytes") or 0 for sample in row["samples"])) or None
        row["plan"] = row["samples"][-1].get("plan")
    return {"frames": frames, "height": height, "width": width, "rows": list(rows.values())}


def flat(sample):
    """[N, 3, T, H, W] as pictures."""
    return sample.transpose(1, 2).flatten(0, 1)


def markdown(kept):
    machine, run = kept["machine"], kept["run"]
    yield "# Tilewright and diffusers on video"
    yield ""
    yield from table(["", ""], [
        ["machine", f"{machine['processor']}, {machine['cores']} cores, {machine['vector']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}"],
        ["versions", f"tilewright {run['tilewright'] or 'not run'}, diffusers {machine['diffusers']}, PyTorch {machine['torch']}"],
        ["date", machine["date"]],
        ["run", f"{machine['threads']} threads, peers in {machine['precision']}; load before it {machine['load_before']}"],
        ["network", run["network"]],
        ["turns", f"{run['iterations']} rounds, in each every contestant decodes once, each time in a process of its own; each round begins with another one"],
    ])
    yield ""
    yield ("Seconds of decodes alone, each its process's first. Spread is the standard deviation. Memory is the largest resident size of the process, weights "
           "and libraries included; `own` is the peak that the program reports. Differences are from the first row, on a scale of −1…1.")
    for clip in kept["clips"]:
        rows = clip["rows"]
        eager = next(row for row in rows if row["name"] == "eager")
        yield ""
        yield f"## {clip['frames']} frames, {clip['width']} × {clip['height']}"
        yield ""
        yield from table(["", "median", "spread", "min", "n", "/ eager", "total, MiB", "own, MiB", "largest difference", "PSNR, dB"], [
            [row["name"], f"failed: {row['failed']}", *[""] * 8] if "failed" in row else
            [row["name"], f"{row['median_s']:.3f}{' (noisy)' if row['noisy'] else ''}", f"{row['std_s']:.3f}", f"{row['min_s']:.3f}", str(row["n"]),
             ratio(row, eager), mib(row["total_bytes"]), mib(row["own_peak_bytes"]), number(row["difference"]["max"], ".1e"),
             number(row["difference"]["psnr"], ".1f")]
            for row in rows])
        for row in rows:
            if row.get("plan"):
                yield f"\n- {row['name']}: {json.dumps(row['plan'])}"


def compare(args):
    check_versions()
    weights = weights_file(args.vae)
    program = Program(args.tilewright, weights, args.threads, "cpu", shlex.split(args.tilewright_args)) if args.tilewright else None
    kept = {
        "machine": facts("cpu", args.threads, args.precision),
        "run": {"tilewright": program and program.version, "network": f"{weights.stat().st_size / 1e6:.0f} MB of weights",
                "iterations": args.iterations},
        "clips": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        for height, width in args.size:
            for frames in args.frames:
                print(f"-- {frames} frames of {width} x {height}", file=sys.stderr, flush=True)
                kept["clips"].append(one_clip(args, program, Path(folder), frames, height, width))
                # After each clip: a run takes long, and what is measured should not be lost with the rest.
                if args.json:
                    args.json.write_text(json.dumps(kept, indent=1) + "\n")
                if args.markdown:
                    args.markdown.write_text("\n".join(markdown(kept)) + "\n")
    return kept


def main():
    args = arguments()
    try:
        kept = compare(args)
    except (Unfit, OSError) as error:
        sys.exit(f"video: {error}")
    except KeyboardInterrupt:
        sys.exit("video: stopped")
    print("\n".join(markdown(kept)))


if __name__ == "__main__":
    main()
