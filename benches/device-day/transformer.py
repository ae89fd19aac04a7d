"""Flux's transformer, with few of its blocks at full width: the program's plans against diffusers, by time and by error."""

import json
import statistics
import sys
from pathlib import Path

import budget
import tensors

PEERS = Path(__file__).resolve().parents[1] / "peers"
sys.path.insert(0, str(PEERS))
from process import Worker  # noqa: E402
from unfit import Unfit  # noqa: E402

WRITER = PEERS / "transformer_files.py"
# A model of WRITER's, its blocks, pixels and steps: at published width, or a trial's.
SIZES = {False: ("flux-dev-part", 3 + 6, 1024, 6), True: ("flux-dev-narrow", 1 + 2, 128, 3)}
FILES = {"bf16": "flux.safetensors", "q8_0": "flux-q8.gguf", "q4_k": "flux-q4k.gguf", "fp8": "flux-fp8.safetensors"}
# What weights are stored as, and the plan; none is adaptive's own.
PLANS = {
    "tw-adaptive": ("bf16", []),
    "tw-bf16-expanded": ("bf16", ["precision=bf16", "weights=expanded"]),
    "tw-bf16-packed": ("bf16", ["precision=bf16", "weights=packed"]),
    "tw-bf16-streamed": ("bf16", ["precision=bf16", "weights=packed", "ahead=1"]),
    "tw-mixed": ("bf16", ["precision=mixed-bf16", "weights=expanded"]),
    "tw-f32": ("bf16", ["precision=f32", "weights=expanded"]),
    "tw-q4k-adaptive": ("q4_k", []),
    "tw-q4k-expanded": ("q4_k", ["precision=bf16", "weights=expanded"]),
    "tw-q4k-packed": ("q4_k", ["precision=bf16", "weights=packed"]),
    "tw-q8-adaptive": ("q8_0", []),
    "tw-q8-expanded": ("q8_0", ["precision=bf16", "weights=expanded"]),
    "tw-q8-packed": ("q8_0", ["precision=bf16", "weights=packed"]),
    "tw-fp8-packed": ("fp8", ["precision=bf16", "weights=packed"]),
    "tw-fp8-products": ("fp8", ["precision=bf16", "weights=packed", "products=fp8"]),
    "tw-fp8-products-quick": ("fp8", ["precision=bf16", "weights=packed", "products=fp8", "options=fp8-sums=quick"]),
}
# What errors are of, the best first; if there is none of them, the first row that there is.
REFERENCES = ["diffusers-f32", "tw-f32"]
PROFILED = "diffusers-bf16"
GUIDANCE = 3.5
# Flux's VAE: what lies between a sampler's latent and the program's.
SHIFT, SCALE = 0.1159, 0.3611


class Denoiser(Worker):
    """diffusers' transformer as a process."""

    script = "denoise_worker.py"
    advice = ""
    closing_s = budget.ENDING_S


class Transformers:
    def __init__(self, program, device, work, weights, small):
        self.program, self.device, self.work, self.weights = program, device, work, weights
        self.model, self.blocks, self.pixels, self.steps = SIZES[small]
        self.conditioning, self.noise, self.inputs = (weights / f"{name}.safetensors" for name in ("conditioning", "noise", "inputs"))
        self.velocities = {}

    def output(self, name):
        return self.weights / f"{name}.safetensors"

    def write(self, stored, share):
        """A file of weights, and inputs before the first one. The same seed gives all of them the same values."""
        if not self.inputs.exists():
            given = tensors.inputs(self.pixels, seed=2)
            tensors.write({"noise": given["noise"]}, self.noise)
            tensors.write({name: value for name, value in given.items() if name != "noise"}, self.conditioning)
            tensors.write(given, self.inputs)
        budget.run([sys.executable, WRITER, self.model, stored, self.weights / FILES[stored]], share)

    def ours(self, name, row, share):
        """One step for the error, then steps for the time."""
        stored, plan = PLANS[name]
        given = ["--transformer", self.weights / FILES[stored], "--size", f"{self.pixels}x{self.pixels}", "--device", self.device, "--json"]
        sets = [word for pair in plan for word in ("--set", pair)] + (["--policy", "fixed"] if plan else [])
        one = [self.program, "sample", *given, "--conditioning", self.conditioning, "--noise", self.noise, "--guidance", GUIDANCE,
               "--sigmas", "1,0", "-o", self.output(name), *sets]
        row["plan"] = json.loads(budget.run(one, share))["plan"]
        policy = "fixed:" + ",".join(plan) if plan else "adaptive"
        row |= bench([self.program, "bench", "sample", *given, "--steps", self.steps, "--iterations", 3, "--warmup", 1, "--policy", policy], share)

    def theirs(self, name, row, share, passes=6):
        """As `ours`, by a process that is asked for one pass after another."""
        options = {"family": "flux", "weights": str(self.weights / FILES["bf16"]), "inputs": str(self.inputs), "sigma": 1.0,
                   "guidance": GUIDANCE, "threads": 16 if self.device != "cpu" else 2, "device": self.device}
        # Compiled code is kept in that folder, so not among weights, from where nothing may be run.
        worker = Denoiser(name, options, self.work, share.left())

        def ask(command):
            worker.patience_s = share.left()
            return worker.ask(command)

        try:
            worker.start()
            ask(f"output {self.output(name)}")
            ask("forward")
            row["samples_ms"] = [ask("forward")["elapsed_s"] * 1000 for _ in range(passes)]
            row["ms"] = statistics.median(row["samples_ms"])
            if name == PROFILED and self.device != "cpu":
                row["profile"] = profile(ask)
        finally:
            worker.close()

    def compare(self, rows):
        """Gives rows so far their errors. → the row that these are of."""
        for row in rows:
            if row["name"] not in self.velocities and self.output(row["name"]).exists():
                self.read(row)
        known = {name: velocity for name, velocity in self.velocities.items() if velocity}
        reference = next((name for name in [*REFERENCES, *known] if name in known), None)
        for row in rows:
            if row["name"] in known:
                row["error"] = tensors.error(known[row["name"]], known[reference])
        return reference

    def read(self, row):
        velocity = None
        try:
            velocity = self.velocity(tensors.read(self.output(row["name"])))
        except Exception as error:  # A file that was being written when its time ended; the row has its time.
            row["unread"] = f"its output can't be read: {error}"
        self.velocities[row["name"]] = velocity

    def velocity(self, output):
        """diffusers' as it is; the program's from the latent that one step of it leads to."""
        if "velocity" in output:
            return output["velocity"]
        noise = tensors.read(self.noise)["noise"]
        return [before - (latent - SHIFT) * SCALE for before, latent in zip(noise, output["latent"], strict=True)]


def bench(command, share):
    """The row of a policy's run; a run that fails has its reason in what it printed."""
    try:
        run = json.loads(budget.run(command, share))["runs"][0]
    except budget.Failed as failed:
        raise budget.Failed(printed_reason(failed.printed) or str(failed)) from None
    return {"ms": run["median_ms"], "samples_ms": run["samples_ms"], "estimate_ms": run["estimate"]["step_ms"]} | {
        name: run[name] for name in ("load_ms", "peak_bytes", "weights_bytes", "plan", "adjusted", "fallback")}


def printed_reason(printed):
    try:
        return budget.last_line(json.loads(printed)["runs"][0]["error"])
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return ""


def profile(ask):
    """Kernels' times. They need more libraries than passes do, and a row is one without them."""
    try:
        return ask("profile")["profile"]
    except Unfit as error:
        return f"none: {error}"
