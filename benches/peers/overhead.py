"""The cost of a profile: the same decode with `--profile` and without, in turns.

    python overhead.py TILEWRIGHT --folder FOLDER [--size 512x512] [--runs 5] [--threads 2] [-- OPTION …]

Flux's decoder at its published size with generated weights, which FOLDER keeps; OPTIONs are those of `tilewright decode`. Each run is a process
of its own; the first of each kind warms up and is not counted, and each round begins with the other kind. Prints the time of the stage under the
profiler (`stage_ms`), that of the run beside it without (`unprofiled_ms`), that of a run of its own (`elapsed_ms`), with standard deviations, the
ratios of medians and of minima to the last, and how far the categories are from adding up to the stage. Needs no Python package.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

UNDER, BESIDE, WITHOUT = "under the profiler", "beside it", "without a profile"


class Program:
    def __init__(self, path, folder, options):
        self.path, self.folder, self.options = Path(path).resolve(), folder, options
        policies = self.path.parents[1] / "policies"
        self.environment = os.environ | ({"TILEWRIGHT_POLICIES": str(policies)} if policies.is_dir() else {})

    def run(self, *arguments):
        made = subprocess.run([self.path, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            sys.exit(f"{self.path.name} {arguments[0]}: {made.stderr.strip().splitlines()[-1]}")
        return made.stdout

    def make(self, name, *arguments):
        if not (self.folder / name).exists():
            self.run(*arguments, "-o", f"made-{name}")
            (self.folder / f"made-{name}").rename(self.folder / name)
        return name

    def decode(self, inputs, is_profiled):
        """Milliseconds by name, and the share of the stage that the categories miss."""
        profile = ("--profile", "trace.json") if is_profiled else ()
        options = ("-o", "out.safetensors", "--device", "cpu", "--no-history", "--json", *profile, *self.options)
        record = json.loads(self.run("decode", *inputs, *options))
        if not is_profiled:
            return {WITHOUT: record["outcome"]["elapsed_ms"]}, 0.0
        (found,) = record["profile"]
        total = sum(row["total_ms"] for row in found["categories"])
        return {UNDER: found["stage_ms"], BESIDE: found["unprofiled_ms"]}, abs(total / found["stage_ms"] - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", default="512x512")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("options", nargs="*")
    arguments = parser.parse_args()
    if arguments.runs < 2:
        parser.error("--runs is at least 2")
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    program = Program(arguments.program, folder, ["--threads", str(arguments.threads), *arguments.options])
    vae = program.make("flux.safetensors", "bench", "weights", "flux")
    latent = program.make(f"latent-{arguments.size}.safetensors", "bench", "latent", "--network", "flux", "--size", arguments.size)
    times, missed = {}, 0.0
    for run in range(arguments.runs + 1):
        for is_profiled in (run % 2 == 0, run % 2 != 0):
            found, apart = program.decode((latent, "--vae", vae), is_profiled)
            missed = max(missed, apart)
            for name, time in found.items() if run > 0 else ():
                times.setdefault(name, []).append(time)
    print("| | mean | deviation | median / without | least / without |\n|---|---|---|---|---|")
    base = times[WITHOUT]
    for name in (UNDER, BESIDE, WITHOUT):
        of = times[name]
        ratios = statistics.median(of) / statistics.median(base), min(of) / min(base)
        print(f"| {name} | {statistics.mean(of):.0f} ms | {statistics.stdev(of):.0f} ms | {ratios[0]:.3f} | {ratios[1]:.3f} |")
    print(f"\ncategories add up to the stage within {100 * missed:.2g} %, over {arguments.runs} runs")


if __name__ == "__main__":
    main()
