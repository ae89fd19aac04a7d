"""Compares the estimates of `tilewright sample` with measurements: time of a step and bytes held, over 48 plans of one block of each kind of
Flux.1 dev and WAN 2.1 1.3B at their published widths.

    python sample_estimates.py TILEWRIGHT FOLDER

FOLDER holds flux_bf16, flux_f32, wan_bf16 and wan_f32.safetensors, as `transformer_files.py flux-dev-block bf16 …` writes them, and the
conditionings flux_c and wan_c.safetensors (`transformer_files.py conditioning …`). Each plan runs twice with three steps, of which the
faster run counts. Prints a row per plan, and the errors at the 90th percentile.
"""

import argparse
import json
import subprocess
from pathlib import Path

SIZES = {"flux": ["256x256", "512x512"], "wan": ["256x256", "480x320"]}
PRECISIONS = ["precision=f32", "precision=bf16", "precision=mixed-bf16"]
# Of the weights in bf16: settings, and whether a negative conditioning guides.
DIVISIONS = [
    (["precision=f32", "weights=expanded"], False),
    (["precision=bf16", "feed-forward=8"], False),
    (["precision=f32", "ahead=1"], False),
    (["precision=bf16", "guidance=together"], True),
    (["precision=bf16", "guidance=in-turn"], True),
    (["precision=bf16", "attention=512"], False),
]


def plans():
    for family, sizes in SIZES.items():
        for size in sizes:
            for stored in ("bf16", "f32"):
                yield from ((family, size, stored, [precision], False) for precision in PRECISIONS)
            yield from ((family, size, "bf16", settings, guided) for settings, guided in DIVISIONS)


def run(program, folder, family, size, stored, settings, guided):
    conditioning = str(folder / f"{family}_c.safetensors")
    command = [program, "sample", "--transformer", str(folder / f"{family}_{stored}.safetensors"), "--conditioning", conditioning]
    command += ["--size", size, "--steps", "3", "--json", "-q", "-o", str(folder / "out.latent"), "--policy", "fixed"]
    command += [word for setting in settings for word in ("--set", setting)]
    command += ["--frames", "5"] * (family == "wan") + ["--negative", conditioning, "--cfg", "3"] * guided
    records = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(2)]
    return min(records, key=lambda record: record["outcome"]["step_ms"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    times, sizes = [], []
    for plan in plans():
        record = run(arguments.program, arguments.folder, *plan)
        estimate, outcome = record["estimate"], record["outcome"]
        time = estimate["step_ms"] / outcome["step_ms"]
        held = sum(estimate[key] for key in ("peak_bytes", "weights_bytes")) / sum(outcome[key] for key in ("peak_bytes", "weights_bytes"))
        times.append(abs(time - 1))
        sizes.append(abs(held - 1))
        family, size, stored, settings, _ = plan
        print(f"{family} {size} {stored} {' '.join(settings)}: {outcome['step_ms']:.0f} ms, estimated {time:.3f} of it; held {held:.3f}", flush=True)
    at = int(0.9 * len(times))
    print(f"{len(times)} plans: at the 90th percentile the time is {sorted(times)[at]:.1%} off, the bytes held {sorted(sizes)[at]:.1%}")


if __name__ == "__main__":
    main()
