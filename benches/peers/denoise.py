"""Times one forward pass of a transformer, `tilewright sample`'s against others': the same weights, inputs and threads, in turns.

    python transformer_files.py flux-dev q8_0 flux.gguf && python transformer_files.py conditioning flux flux_conditioning.safetensors
    python denoise.py --weights flux.gguf --conditioning flux_conditioning.safetensors --size 256x256 \\
        --tilewright PATH --sdcpp PATH --peers sdcpp sdcpp-flash diffusers-bf16 diffusers-f32

Needs what requirements.txt pins, on Linux; for .gguf also gguf, for `compiled` a C++ compiler, for sdcpp what sdcpp/CMakeLists.txt builds.
Every peer is a process that reads its weights once, does one pass unmeasured, and then one at a time on command; only one works at a time.
If what they hold does not fit into --memory together, each is started anew on every visit, alone. Tilewright is such a process too: a run
with more steps than are measured, suspended between its turns.
A line is printed on standard error as each measurement ends; the tables go to standard output.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from machine import facts
from memory import mark, reset_mark
from network import Unfit, check_versions  # also puts tests/judge on the path
from process import Worker
from program import Program
from report import mib, number, ratio, table
from sampling import MOST_PASSES, Sampling
from spread import summary
from transformer_networks import to_vae

GIB = 1024 ** 3
PEERS = ["sdcpp", "sdcpp-flash", "sdcpp-f16-flash", "sdcpp-f32-flash", "diffusers-f32", "diffusers-bf16", "diffusers-f32-compiled",
         "diffusers-bf16-compiled", "openvino-f32", "openvino-bf16"]
REFERENCE = "diffusers-f32"
# What each pass is done at; Tilewright's go down from here.
SIGMA = 1.0
# Libraries, and what a pass holds beside weights.
WORKING = 1.5 * GIB
FLUX_GUIDANCE = 3.5


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--weights", type=Path, required=True, metavar="FILE", help="the transformer, in BFL's or WAN's own names: .gguf or .safetensors")
    add("--conditioning", type=Path, required=True, metavar="FILE", help="prompt_embeds, for Flux also pooled_prompt_embeds")
    add("--size", type=size, default="256x256", metavar="WxH", help="width and height of the output in pixels")
    add("--frames", type=int, default=17, metavar="N", help="frames, for WAN")
    add("--guidance", type=float, default=FLUX_GUIDANCE, metavar="X", help="Flux dev's guidance")
    add("--seed", type=int, default=0, metavar="N", help="the seed of the noise")
    add("--tilewright", type=Path, metavar="PATH", help="the program; without it only the peers are timed")
    add("--plans", nargs="+", default=["precision=f32"], metavar="KEY=VALUE,…", help="what Tilewright samples with, as for --set")
    add("--tilewright-args", default="", metavar="ARGS", help="further options for each run of the program, as one word")
    add("--sdcpp", type=Path, metavar="PATH", help="sdcpp_forward, built by sdcpp/CMakeLists.txt")
    add("--peers", nargs="*", default=[], choices=PEERS, metavar="NAME",
        help=f"of {', '.join(PEERS)}; {REFERENCE} is what outputs are compared with")
    add("--rounds", type=positive, default=10, metavar="N", help="measured passes of each contestant")
    add("--visits", type=positive, default=2, metavar="N", help="how often each is started, where they are not alive together")
    add("--memory", type=float, metavar="GIB", help="what all may hold together [default: 85 %% of what is free]")
    add("--threads", type=positive, default=os.cpu_count(), metavar="N", help="processor threads of every contestant")
    add("--patience", type=float, default=1800, metavar="S", help="seconds to wait for one pass, or for reading")
    add("--json", type=Path, metavar="FILE", help="keep everything, each sample included")
    add("--markdown", type=Path, metavar="FILE", help="write the tables here too")
    args = parser.parse_args()
    if args.weights.suffix == ".gguf" and any(name.startswith("openvino") for name in args.peers):
        parser.error("OpenVINO reads no .gguf")
    if args.sdcpp is None and any(name.startswith("sdcpp") for name in args.peers):
        parser.error("--peers sdcpp needs --sdcpp PATH")
    if not args.peers and args.tilewright is None:
        parser.error("nobody takes part: give --tilewright, --peers, or both")
    args.visits = min(args.visits, args.rounds)
    if args.rounds > MOST_PASSES:
        parser.error(f"--rounds {args.rounds}: {MOST_PASSES} at most")
    return args


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return value


def size(text):
    try:
        width, height = map(int, text.split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not WIDTHxHEIGHT") from None
    if width % 16 or height % 16:
        raise argparse.ArgumentTypeError(f"{text} is not in multiples of 16 pixels")
    return width, height


def say(line):
    print(line, file=sys.stderr, flush=True)


class Task:
    """One pass: the weights, and inputs as files."""

    def __init__(self, args, folder):
        self.weights, self.conditioning, self.folder, self.sigma = args.weights, args.conditioning, folder, SIGMA
        if not self.weights.is_file():
            raise Unfit(f"no weights at {self.weights}")
        try:
            given = load_file(self.conditioning)
        except (OSError, SafetensorError) as error:
            raise Unfit(f"{self.conditioning} can't be read: {error}") from None
        self.family = "flux" if "pooled_prompt_embeds" in given else "wan"
        width, height = args.size
        frames = [] if self.family == "flux" else [1 + (args.frames - 1) // 4]
        noise = torch.randn(1, 16, *frames, height // 8, width // 8, generator=torch.Generator().manual_seed(args.seed))
        self.noise, self.inputs = folder / "noise.safetensors", folder / "inputs.safetensors"
        save_file({"noise": noise}, self.noise)
        self.given = {name: value.float() for name, value in given.items()} | {"noise": noise}
        save_file(self.given, self.inputs)
        self.guidance = args.guidance if self.family == "flux" and self.has_guidance() else None
        tokens = height // 16 * (width // 16) * (frames[0] if frames else 1)
        clip = f" and {args.frames} frames" if frames else ""
        self.words = f"{width} × {height} pixels{clip}: {tokens} tokens of the picture, {given['prompt_embeds'].shape[1]} of the text"

    def has_guidance(self):
        name = "guidance_in.in_layer.weight"
        if self.weights.suffix == ".gguf":
            from gguf import GGUFReader

            return any(tensor.name == name for tensor in GGUFReader(self.weights).tensors)
        with safe_open(self.weights, "pt") as file:
            return name in file.keys()

    def options(self, args):
        """The pass in the program's words."""
        size = ["--size", "{}x{}".format(*args.size)]
        guidance = [] if self.guidance is None else ["--guidance", str(self.guidance)]
        return [*size, *guidance] if self.family == "flux" else [*size, "--frames", str(args.frames)]

    def raw(self, name, value):
        """The input as stable-diffusion.cpp's program takes it."""
        path = self.folder / f"{name}.raw"
        path.write_bytes(value.contiguous().numpy().tobytes())
        return f"{name}={path}:{','.join(str(extent) for extent in reversed(value.shape))}"

    def velocity(self, latent):
        """What has been taken from the noise on the way to the latent, which is in the VAE's own space."""
        shift = to_vae(torch.zeros_like(latent))
        return (self.given["noise"] - (latent - shift) / (to_vae(torch.ones_like(latent)) - shift)) / self.sigma


class Alive:
    """A peer: a process that holds its weights."""

    def __init__(self, worker, needs):
        self.worker, self.needs, self.name, self.about = worker, needs, worker.name, None
        self.peak, self.warm, self.alive, self.kept = 0, 0, False, worker.folder / f"{worker.name}.out"

    def start(self):
        """Reads, and does one pass that is not measured: its time."""
        self.alive = True
        self.about = self.worker.start().get("about") or self.about
        elapsed = self.worker.ask("forward" if self.kept.exists() else f"output {self.kept}")["elapsed_s"]
        self.peak = max(self.peak, reset_mark(self.worker.process))
        return elapsed

    def measure(self):
        elapsed = self.worker.ask("forward")["elapsed_s"]
        self.warm = max(self.warm, mark(self.worker.process))
        return elapsed

    def velocity(self, shape):
        if self.name.startswith("sdcpp"):
            return torch.frombuffer(bytearray(self.kept.read_bytes()), dtype=torch.float32).reshape(shape)
        return load_file(self.kept)["velocity"]

    def close(self):
        self.alive = False
        self.worker.close()


class Diffusers(Worker):
    script = "denoise_worker.py"


class Sdcpp(Worker):
    """stable-diffusion.cpp: sdcpp, perhaps with the type that weights are converted to while they are read, and -flash for its flash attention."""

    def __init__(self, path, task, *rest):
        super().__init__(*rest)
        given = task.given
        inputs = {"x": given["noise"] if task.family == "flux" else given["noise"][0], "context": given["prompt_embeds"],
                  "timesteps": torch.tensor([SIGMA * (1 if task.family == "flux" else 1000)])}
        if task.family == "flux":
            inputs |= {"y": given["pooled_prompt_embeds"]} | ({} if task.guidance is None else {"guidance": torch.tensor([task.guidance])})
        options = self.name.split("-")[1:]
        flash, stored = "flash" if "flash" in options else "plain", next((option for option in options if option != "flash"), "stored")
        self.line = [str(path), task.family, str(task.weights), str(self.options["threads"]), flash, stored,
                     *(task.raw(name, value) for name, value in inputs.items())]

    def command(self):
        return self.line


def contestants(args, task):
    stored = task.weights.stat().st_size
    program = Program(args.tilewright, args.weights, args.threads, "cpu", shlex.split(args.tilewright_args)) if args.tilewright else None
    ours = []
    for place, plan in enumerate(args.plans if program else []):
        needs = stored * (2 if "expanded" in plan else 1) + WORKING
        ours.append(Sampling(program, plan, task.options(args), task, needs, args.patience, place))
    options = {"family": task.family, "weights": str(task.weights), "inputs": str(task.inputs), "sigma": SIGMA, "guidance": task.guidance,
               "threads": args.threads}
    running = []
    for name in args.peers:
        rest = (name, options, task.folder, args.patience)
        # A .safetensors file of bf16 is taken for granted.
        wide = 2 if task.weights.suffix != ".gguf" and "f32" in name else 1
        # OpenVINO arranges weights anew, beside those that it was given in f32.
        wide = 2 + wide if name.startswith("openvino") else wide
        if name.startswith("sdcpp"):
            running.append(Alive(Sdcpp(args.sdcpp, task, *rest), stored * wide + WORKING))
        else:
            running.append(Alive(Diffusers(*rest), stored * wide + WORKING))
    return program, ours + running


def attempted(row, contestant, work):
    """What the work gave, or None with the reason in the row."""
    try:
        return work()
    except Unfit as error:
        row["failed"] = error.without_folders()
        say(f"{contestant.name}: failed: {error}")
        contestant.close()
        return None


def begin(row, contestant):
    if "failed" in row:
        return
    first = attempted(row, contestant, contestant.start)
    if first is not None:
        row["first_s"].append(first)
    if contestant.alive:
        say(f"{contestant.name}: ready{'' if first is None else f', the first pass took {first:.4g} s'}")


def turn(row, contestant, what):
    if not contestant.alive:
        return
    elapsed = attempted(row, contestant, contestant.measure)
    if elapsed is not None:
        row["samples_s"].append(elapsed)
        say(f"{what}: {contestant.name}: {elapsed:.4g} s")


def rotated(running, by):
    """Another one begins each time, so that none always follows the same neighbour's heat."""
    by %= len(running)
    return running[by:] + running[:by]


def take_turns(args, running, together):
    rows = {contestant.name: {"name": contestant.name, "first_s": [], "samples_s": []} for contestant in running}
    if together:
        for contestant in running:
            begin(rows[contestant.name], contestant)
        for place in range(args.rounds):
            for contestant in rotated(running, place):
                turn(rows[contestant.name], contestant, f"round {place + 1}")
        return rows
    for visit in range(args.visits):
        passes = args.rounds // args.visits + (visit < args.rounds % args.visits)
        for contestant in rotated(running, visit):
            row = rows[contestant.name]
            begin(row, contestant)
            for place in range(passes):
                turn(row, contestant, f"visit {visit + 1}, pass {place + 1}")
            contestant.close()
    return rows


def free_bytes():
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) * 1024


def compare(args):
    check_versions()
    with tempfile.TemporaryDirectory() as folder:
        task = Task(args, Path(folder))
        program, running = contestants(args, task)
        limit = args.memory * GIB if args.memory else 0.85 * free_bytes()
        needs = sum(contestant.needs for contestant in running)
        together = needs <= limit
        if together:
            turns = f"all alive together; {args.rounds} rounds, in each one pass of everybody, each begun by another one"
        else:
            turns = (f"one alive at a time, as all together would hold {needs / GIB:.1f} GiB of {limit / GIB:.1f}; {args.visits} visits, in each"
                     f" everybody starts, does a pass that is not measured, and then a share of {args.rounds}")
        say(turns)
        machine = facts("cpu", args.threads, "")
        try:
            rows = take_turns(args, running, together)
        finally:
            for contestant in running:
                contestant.close()
        finish(rows, running, task)
    return {
        "machine": machine,
        "run": {"tilewright": program and program.version, "turns": turns,
                "weights": f"{args.weights.name}, {args.weights.stat().st_size / 1e9:.2f} GB", "pass": task.words, "sigma": SIGMA,
                "guidance": task.guidance},
        "rows": list(rows.values()),
    }


def finish(rows, running, task):
    """Spread, memory, what ran, and differences from the reference."""
    outputs = {}
    for contestant in running:
        row = rows[contestant.name]
        row |= {"about": contestant.about, "plan": getattr(contestant, "plan", None),
                "peak_bytes": max(contestant.peak, contestant.warm) or None, "warm_bytes": contestant.warm or None}
        if not row["samples_s"]:
            row.setdefault("failed", "nothing was measured")
            continue
        row |= summary(row["samples_s"])
        outputs[contestant.name] = contestant.velocity(task.given["noise"].shape)
    reference = outputs.get(REFERENCE)
    if reference is None:
        return
    for name, output in outputs.items():
        rows[name]["difference"] = ((output - reference).norm() / reference.norm()).item()
        rows[name]["largest"] = ((output - reference).abs().max() / max(1.0, reference.abs().max().item())).item()


def markdown(kept):
    machine, run, rows = kept["machine"], kept["run"], kept["rows"]
    yield "# A transformer's forward pass, Tilewright's and its peers'"
    yield ""
    yield from table(["", ""], [
        ["machine", f"{machine['processor']}, {machine['cores']} cores, {machine['vector']}, {machine['memory_gib']} GiB, Linux {machine['kernel']}"],
        ["versions", f"tilewright {run['tilewright'] or 'not run'}, diffusers {machine['diffusers']}, PyTorch {machine['torch']}, Python {machine['python']}"],
        ["date", machine["date"]],
        ["run", f"{machine['threads']} threads; load before it {machine['load_before']}"],
        ["weights", run["weights"]],
        ["pass", run["pass"] + ("" if run["guidance"] is None else f"; guidance {run['guidance']}")],
        ["turns", run["turns"]],
    ])
    yield ""
    yield ("Seconds of one forward pass when everything is warm; `first` is the first pass of a process. Spread is the standard deviation. "
           "Tilewright's passes are steps of a run, by its bar, which is drawn every 200 ms; what it computes of the conditioning once a run is not "
           "in them. Memory is the process's high-water mark with libraries and the pages of mapped files, `warm` that of the passes after the "
           f"first. The difference is that of the first pass's result from {REFERENCE}'s, by the norm of that, and the "
           "largest of single values as a share of its largest, or of 1"
           + (" (from .gguf diffusers expands weights to f16 whatever it computes in)." if run["weights"].split(",")[0].endswith(".gguf") else "."))
    yield ""
    ours = [row for row in rows if row["name"].startswith("tilewright ") and "failed" not in row]
    yield from table(["", "mean", "spread", "median", "n", "first", "peak, MiB", "warm, MiB", "difference", "largest", *(f"{row['name']} / it" for row in ours)], [
        [row["name"], f"failed: {row['failed']}", *[""] * (8 + len(ours))] if "failed" in row else
        [row["name"], f"{row['mean_s']:.3f}{' (noisy)' if row['noisy'] else ''}", f"{row['std_s']:.3f}", f"{row['median_s']:.3f}", str(row["n"]),
         " ".join(f"{first:.2f}" for first in row["first_s"]), mib(row["peak_bytes"]), mib(row["warm_bytes"]), number(row.get("difference"), ".1e"), number(row.get("largest"), ".1e"),
         *(ratio(mine, row, "mean_s") for mine in ours)]
        for row in rows])
    yield ""
    for row in rows:
        words = [row["about"], row["plan"] and json.dumps(row["plan"])]
        if any(words):
            yield f"- {row['name']}: {'; '.join(word for word in words if word)}"


def main():
    args = arguments()
    try:
        kept = compare(args)
    except (Unfit, OSError) as error:
        sys.exit(f"denoise: {error}")
    except KeyboardInterrupt:
        sys.exit("denoise: stopped")
    lines = "\n".join(markdown(kept))
    if args.json:
        args.json.write_text(json.dumps(kept, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(lines + "\n")
    print(lines)


if __name__ == "__main__":
    main()
