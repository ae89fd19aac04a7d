"""Tilewright's side: `tilewright bench` for times, `tilewright decode` for outputs and memory."""

import json
import math
import os
import subprocess
from pathlib import Path

import torch
from safetensors.torch import save_file

from memory import watch
from network import Unfit, read_latent


class Program:
    """The program with the options that every run of it gets."""

    def __init__(self, path, vae, threads, device, extra, patience_s=math.inf):
        self.path, self.vae, self.extra, self.patience_s = str(path), str(vae), list(extra), patience_s
        self.options = ["--threads", str(threads), "--device", device]
        self.environment = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self.version = self.run([self.path, "--version"])[0].split()[-1]

    def run(self, command):
        """What the command printed, and its high-water mark in bytes."""
        try:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment)
        except OSError as error:
            raise Unfit(f"{Path(command[0]).name} does not start: {error.strerror}") from None
        # Both fit a pipe's buffer: one line of JSON a run, and errors.
        try:
            peak = watch(child, self.patience_s)
        except subprocess.TimeoutExpired:
            raise Unfit(f"{self.words(command)} did not end within {self.patience_s:.0f} s: allow more with --patience") from None
        printed, said = child.communicate()
        if child.returncode != 0:
            lines = [line for line in said.splitlines() if line.strip()] or ["it said nothing"]
            raise Unfit(f"{self.words(command)} exited with {child.returncode}: {lines[-1].strip()}")
        return printed, peak

    @staticmethod
    def words(command):
        return " ".join([Path(command[0]).name, *command[1:2]])

    def decode(self, latent, policy, output):
        """Decodes once into `output`; the record of the decision, and the process's high-water mark in bytes."""
        name, _, settings = policy.partition(":")
        settings = [part for pair in settings.split(",") if pair for part in ("--set", pair)]
        printed, peak = self.run([self.path, "decode", str(latent), "--vae", self.vae, "--policy", name, *settings, *self.options,
                                  "--json", "-o", str(output), *self.extra])
        try:
            record = json.loads(printed)
            return {"plan": record["plan"], "adjusted": record["adjusted"]}, peak
        except (ValueError, KeyError, TypeError):
            raise Unfit("tilewright decode --json does not print a record with its plan: give a program that does") from None

    def bench(self, latent, policy, warmup, iterations):
        """One block of `tilewright bench`: its entry for the policy."""
        printed, _ = self.run([self.path, "bench", str(latent), "--vae", self.vae, "--policy", policy, "--warmup", str(warmup),
                               "--iterations", str(iterations), "--json", *self.options, *self.extra])
        try:
            entry = json.loads(printed)["runs"][0]
            samples = entry["samples_ms"]
        except (ValueError, KeyError, IndexError, TypeError):
            raise Unfit("tilewright bench --json does not print runs[0].samples_ms: give a program that does") from None
        if len(samples) != iterations:
            raise Unfit(f"tilewright bench measured {len(samples)} decodes, not the {iterations} that it was asked for")
        return entry


class Policy:
    """A contestant: the program under one policy."""

    def __init__(self, program, policy, latent, folder, number):
        # A module's folder stays out of what is published.
        self.name, self.policy = f"tilewright {policy if ':' in policy else Path(policy).name}", policy
        self.program, self.latent, self.folder, self.number = program, latent, folder, number
        self.plan = None

    def prepare(self):
        """Decodes for the comparison and for memory; what decoding a picture of 8 × 8 latents takes counts as there before."""
        output = self.folder / f"tilewright-{self.number}.safetensors"
        record, total = self.program.decode(self.latent, self.policy, output)
        small = self.folder / "small.safetensors"
        save_file({"latents": torch.ones_like(read_latent(self.latent)[:1, :, :8, :8]).contiguous()}, small)
        _, before = self.program.decode(small, "fixed:space=whole", self.folder / "small-sample.safetensors")
        entry = self.program.bench(self.latent, self.policy, 0, 1)
        self.plan = record["plan"]
        return {"first_s": entry.get("first_ms", entry["samples_ms"][0]) / 1000, "estimate_s": entry["samples_ms"][0] / 1000,
                "decode_bytes": max(total - before, 0), "total_bytes": total, "own_peak_bytes": entry.get("peak_bytes"),
                **record, "output": output}

    def block(self, warmup, iterations):
        return [sample / 1000 for sample in self.program.bench(self.latent, self.policy, warmup, iterations)["samples_ms"]]

    def lines(self, extent):
        """Where this plan's tiles begin and end, for rows and for columns; as laid by host/engine's grid."""
        return plan_lines(self.plan, extent)

    def close(self):
        pass


def plan_lines(plan, extent):
    space = plan["space"] if plan else {}
    if "height" not in space:
        return [], []
    return tuple(tile_lines(size, space[side], space["overlap"]) for size, side in zip(extent, ("height", "width"), strict=True))


def tile_lines(extent, tile, overlap):
    if tile >= extent:
        return []
    starts = [*range(0, extent - tile, max(tile - overlap, 1)), extent - tile]
    return sorted({edge for start in starts for edge in (start, start + tile) if 0 < edge < extent})
