"""Two builds of the program in turns: time, memory and outputs of the same work on a processor.

    python versions.py BEFORE AFTER --folder FOLDER [--runs 10] [--threads 2] [--case NAME …] [--json OUT]

BEFORE and AFTER are programs in their build folders; the shipped policies of each stand in `policies` beside its profile's folder, as
`cargo xtask setup` puts them. FOLDER keeps the generated inputs, 1.6 GB. Each run is a process of its own, the first of each program warms up
and is not counted. Times are those of the program's own record, without loading weights; memory is the process's high-water mark, weights
included. `policy bench` prices one decision; its figure is the middle of its own many calls. Prints each case with the ratio of the medians and
whether both outputs hold the same bits.

Versions: torch 2.11.0, transformers 5.23.0, safetensors 0.8.0, gguf 0.19.0.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open

import text

HERE = Path(__file__).resolve().parent
LAYERS = 2
PROMPT = "a small wooden boat on a misty lake at dawn, two red foxes by an old stone bridge"


@dataclass
class Case:
    """Work that both programs do. `arguments` are the program's, without what all cases share."""

    name: str
    needs: tuple
    arguments: tuple
    output: str = "out.safetensors"


def sample(stored):
    return ("sample", "--transformer", f"flux-dev-block-{stored}", "--conditioning", "flux.safetensors", "--size", "512x512", "--steps", "1",
            "--policy", "fixed", "--set", "precision=bf16")


CASES = [
    Case("decode 512×512, whole", ("flux.vae", "picture.latent"),
         ("decode", "picture.latent", "--vae", "flux.vae", "--policy", "fixed", "--set", "space=whole")),
    Case("decode 512×512, exact", ("flux.vae", "picture.latent"),
         ("decode", "picture.latent", "--vae", "flux.vae", "--policy", "fixed", "--set", "space=exact", "--set", "tile=256")),
    Case("decode WAN 17 × 320×320", ("wan.vae", "clip.latent"), ("decode", "clip.latent", "--vae", "wan.vae", "--policy", "fixed",
         "--set", "time=carried", "--set", "chunk=4")),
    Case("Flux block, Q8_0", ("flux-dev-block-q8_0", "flux.safetensors"), sample("q8_0")),
    Case("Flux block, bf16", ("flux-dev-block-bf16", "flux.safetensors"), sample("bf16")),
    Case("T5 layers, f32", ("t5",), ("embed", PROMPT, "--text-encoder", "t5", "--as", "diffusers", "--text-tokens", "256", "--policy", "fixed",
         "--set", "precision=f32")),
    Case("policy bench fixed", (), ("policy", "bench", "fixed")),
    Case("policy bench adaptive", (), ("policy", "bench", "adaptive")),
]


class Program:
    def __init__(self, path, threads):
        self.path, self.threads = Path(path).resolve(), threads
        policies = self.path.parents[1] / "policies"
        self.environment = os.environ | ({"TILEWRIGHT_POLICIES": str(policies)} if policies.is_dir() else {})

    def run(self, arguments, folder):
        """What the program printed as JSON, and the high-water mark of its memory in bytes."""
        child = subprocess.Popen([self.path, *arguments, "--json"], cwd=folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        printed, said = child.stdout.read(), child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        if status != 0:
            sys.exit(f"{self.path} {' '.join(arguments)}: {said.decode().strip().splitlines()[-1]}")
        return json.loads(printed), usage.ru_maxrss * 1024

    def work(self, case, folder, output):
        """Times in seconds by name, and memory in bytes."""
        if case.arguments[0] == "policy":
            printed, peak = self.run(case.arguments, folder)
            return {call["function"]: call["typical_ns"] / 1e9 for call in printed["calls"]}, peak
        common = ("-o", str(output), "--threads", str(self.threads), "--device", "cpu", "--no-history")
        printed, peak = self.run((*case.arguments, *common), folder)
        records = printed.get("encoders", [printed])
        return {"": sum(record["outcome"]["elapsed_ms"] for record in records) / 1000}, peak


def make(name, folder, program):
    """Generates an input unless it is there."""
    path = folder / name
    if path.exists():
        return
    files = HERE / "transformer_files.py"
    own = {
        "flux.vae": ("bench", "weights", "flux", "-o"),
        "wan.vae": ("bench", "weights", "wan-2.1", "-o"),
        "picture.latent": ("bench", "latent", "--size", "512x512", "-o"),
        "clip.latent": ("bench", "latent", "--network", "wan-2.1", "--size", "320x320", "--frames", "17", "-o"),
    }
    if name in own:
        made = folder / f"{name}.safetensors"
        subprocess.run([program.path, *own[name], made], check=True, env=program.environment)
        made.rename(path)
    elif name == "t5":
        text.write(path, LAYERS)
    elif name == "flux.safetensors":
        subprocess.run([sys.executable, files, "conditioning", "flux", path], check=True)
    else:
        model, _, stored = name.rpartition("-")
        made = folder / f"made.{'gguf' if stored.startswith('q') else 'safetensors'}"
        subprocess.run([sys.executable, files, model, stored, made], check=True)
        made.rename(path)


def is_same(one, other):
    """True if both files hold the same tensors, bit for bit."""
    with safe_open(one, "numpy") as first, safe_open(other, "numpy") as second:
        return set(first.keys()) == set(second.keys()) and all(
            first.get_tensor(name).tobytes() == second.get_tensor(name).tobytes() for name in first.keys())


def measure(case, programs, folder, runs):
    """Rows of a case: one for each time that it has."""
    outputs = [folder / f"{index}-{case.output}" for index in range(len(programs))]
    times, peaks = [{} for _ in programs], [[] for _ in programs]
    for run in range(runs + 1):
        # Each round begins with another program.
        order = list(range(len(programs)))[:: 1 if run % 2 else -1]
        for index in order:
            found, peak = programs[index].work(case, folder, outputs[index])
            if run == 0:
                continue
            peaks[index].append(peak)
            for name, seconds in found.items():
                times[index].setdefault(name, []).append(seconds)
    same = is_same(*outputs) if all(output.exists() for output in outputs) else None
    for output in outputs:
        output.unlink(missing_ok=True)
    names = [name for name in times[0] if name in times[1]]
    return [{"case": f"{case.name} {name}".strip(), "seconds": [of[name] for of in times], "bytes": peaks, "same_bits": same} for name in names]


def line(row):
    middles = [statistics.median(of) for of in row["seconds"]]
    spreads = [statistics.stdev(of) / statistics.mean(of) for of in row["seconds"]]
    least = [min(of) for of in row["seconds"]]
    peaks = [statistics.median(of) for of in row["bytes"]]
    bits = {None: "", True: "same", False: "DIFFERENT"}[row["same_bits"]]
    return (f"| {row['case']} | {middles[0]:.4g} s ± {100 * spreads[0]:.0f} % | {middles[1]:.4g} s ± {100 * spreads[1]:.0f} % "
            f"| {middles[1] / middles[0]:.3f} | {least[1] / least[0]:.3f} | {peaks[0] / 2**20:.0f} MiB | {peaks[1] / peaks[0]:.3f} | {bits} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs=2, metavar="PROGRAM")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--case", action="append", help="the beginning of a case's name; repeatable")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.runs < 2:
        parser.error("--runs is at least 2")
    programs = [Program(path, arguments.threads) for path in arguments.programs]
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [case for case in CASES if not arguments.case or case.name.startswith(tuple(arguments.case))]
    rows = []
    print("| | before | after | ratio of medians | of minima | memory before | ratio | bits |\n|---|---|---|---|---|---|---|---|", flush=True)
    for case in chosen:
        for need in case.needs:
            make(need, folder, programs[1])
        for row in measure(case, programs, folder, arguments.runs):
            print(line(row), flush=True)
            rows.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
