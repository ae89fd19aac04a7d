"""Flux's transformer, with few of its blocks at full width: the program's plans against diffusers, by time and by error."""

import json
import sys
from pathlib import Path

import budget

PEERS = Path(__file__).resolve().parents[1] / "peers"

# The model of transformer_files.py, pixels and steps: at published width, or a trial's.
SIZES = {False: ("flux-dev-part", 1024, 6), True: ("flux-dev-narrow", 128, 3)}
FILES = {"bf16": "flux.safetensors", "q8_0": "flux-q8.gguf", "q4_k": "flux-q4k.gguf", "fp8": "flux-fp8.safetensors"}
# Rows in the order of their worth, as time may run out: name, what weights are stored as, the plan; none is adaptive's own.
PLANS = [
    ("tw-adaptive", "bf16", []),
    ("tw-bf16-expanded", "bf16", ["precision=bf16", "weights=expanded"]),
    ("tw-bf16-packed", "bf16", ["precision=bf16", "weights=packed"]),
    ("tw-q4k-expanded", "q4_k", ["precision=bf16", "weights=expanded"]),
    ("tw-q4k-packed", "q4_k", ["precision=bf16", "weights=packed"]),
    ("tw-q4k-adaptive", "q4_k", []),
    ("tw-q8-adaptive", "q8_0", []),
    ("tw-q8-expanded", "q8_0", ["precision=bf16", "weights=expanded"]),
    ("tw-q8-packed", "q8_0", ["precision=bf16", "weights=packed"]),
    ("tw-fp8-packed", "fp8", ["precision=bf16", "weights=packed"]),
    ("tw-fp8-products", "fp8", ["precision=bf16", "weights=packed", "products=fp8"]),
    ("tw-fp8-products-quick", "fp8", ["precision=bf16", "weights=packed", "products=fp8", "options=fp8-sums=quick"]),
    ("tw-bf16-streamed", "bf16", ["precision=bf16", "weights=packed", "ahead=1"]),
    ("tw-mixed", "bf16", ["precision=mixed-bf16", "weights=expanded"]),
    ("tw-f32", "bf16", ["precision=f32", "weights=expanded"]),
]
# The reference of errors comes first.
THEIRS = ["diffusers-f32", "diffusers-bf16", "diffusers-bf16-compiled"]
GUIDANCE = 3.5


class Transformers:
    def __init__(self, program, device, work, small):
        self.program, self.device, self.work = program, device, work
        self.model, self.pixels, self.steps = SIZES[small]
        self.conditioning, self.noise, self.inputs = (work / f"{name}.safetensors" for name in ("conditioning", "noise", "inputs"))
        self.velocities = {}

    @property
    def blocks(self):
        from transformer_files import MODELS

        return MODELS[self.model]["double"] + MODELS[self.model]["single"]

    def prepare(self, allowed_s):
        """Inputs, and the files of weights: in memory, where `work` is. The same seed gives all of them the same values."""
        import torch
        from safetensors.torch import save_file

        generator = torch.Generator().manual_seed(2)
        side = self.pixels // 8
        given = {name: torch.randn(*shape, generator=generator) for name, shape in
                 [("prompt_embeds", (1, 512, 4096)), ("pooled_prompt_embeds", (1, 768)), ("noise", (1, 16, side, side))]}
        save_file(given, self.inputs)
        save_file({"noise": given.pop("noise")}, self.noise)
        save_file(given, self.conditioning)
        share = budget.Budget(allowed_s)
        for stored, file in FILES.items():
            budget.run([sys.executable, PEERS / "transformer_files.py", self.model, stored, self.work / file], share.left())

    def ours(self, name, stored, plan, allowed_s):
        share = budget.Budget(allowed_s)
        file, output = self.work / FILES[stored], self.work / f"{name}.safetensors"
        common = ["--transformer", file, "--size", f"{self.pixels}x{self.pixels}", "--device", self.device, "--json"]
        sets = [word for pair in plan for word in ("--set", pair)]
        sets += ["--policy", "fixed"] if plan else []
        one = [self.program, "sample", *common, "--conditioning", self.conditioning, "--noise", self.noise, "--guidance", GUIDANCE,
               "--sigmas", "1,0", "-o", output, *sets]
        record = json.loads(budget.run(one, share.left()))
        policy = "fixed:" + ",".join(plan) if plan else "adaptive"
        timed = [self.program, "bench", "sample", *common, "--steps", self.steps, "--iterations", 1, "--warmup", 1, "--policy", policy]
        run = json.loads(budget.run(timed, share.left()))["runs"][0]
        self.velocities[name] = self.velocity_of(output)
        return {"ms": run["median_ms"], "estimate_ms": run["estimate"]["step_ms"], "load_ms": run["load_ms"],
                "peak_bytes": run["peak_bytes"], "plan": record["plan"]}

    def velocity_of(self, output):
        from networks import FAMILIES
        from safetensors.torch import load_file

        flux = FAMILIES["flux"]
        latent = load_file(output)["latent"].float()
        return load_file(self.noise)["noise"] - (latent - flux["shift_factor"]) * flux["scaling_factor"]

    def theirs(self, name, allowed_s, passes=6):
        from safetensors.torch import load_file
        from turns import Worker

        share = budget.Budget(allowed_s)
        options = {"family": "flux", "weights": str(self.work / FILES["bf16"]), "inputs": str(self.inputs), "sigma": 1.0,
                   "guidance": GUIDANCE, "threads": 16 if self.device != "cpu" else 2, "device": self.device}
        worker = Worker(name, options, self.work, share.left())
        worker.script = "denoise_worker.py"
        output = self.work / f"{name}.safetensors"
        try:
            worker.start()
            worker.patience_s = share.left()
            worker.ask(f"output {output}")
            times = []
            for _ in range(1 + passes):
                worker.patience_s = share.left()
                times.append(worker.ask("forward")["elapsed_s"] * 1000)
            row = {"ms": sorted(times[1:])[passes // 2]}
            if name == "diffusers-bf16" and self.device != "cpu":
                worker.patience_s = share.left()
                row["profile"] = worker.ask("profile")["profile"]
        finally:
            worker.close()
        self.velocities[name] = load_file(output)["velocity"]
        return row

    def errors(self, rows):
        """From diffusers in f32 with the bf16 file: those of quantised files have the quantisation's in them."""
        reference = self.velocities.get(THEIRS[0])
        for row in rows:
            found = self.velocities.get(row["name"])
            if reference is not None and found is not None:
                row["error"] = ((found - reference).norm() / reference.norm()).item()
