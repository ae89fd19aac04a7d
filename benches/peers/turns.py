"""Contestants take turns, so that drift of the machine falls on all alike: only one works at a time, in small blocks."""

import contextlib
import json
import math
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contestants import LINES
from network import Unfit, scale_of

HERE = Path(__file__).resolve().parent


class Worker:
    """A process that reads once and then works on command, a line for a line."""

    script = "worker.py"

    def __init__(self, name, options, folder, patience_s):
        self.name, self.options, self.folder, self.patience_s = name, options | {"contestant": name}, folder, patience_s
        threads = str(options["threads"])
        self.environment = os.environ | {
            "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads,
            # Compiled code of an earlier run would make compiling look free.
            "TORCHINDUCTOR_CACHE_DIR": str(folder / f"compiled-{name}"),
        }
        self.process = None

    def command(self):
        return [sys.executable, str(HERE / self.script), json.dumps(self.options)]

    def start(self):
        self.said = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, env=self.environment)
        return self.answer()

    def ask(self, command):
        try:
            self.process.stdin.write(f"{command}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Unfit(self.last_words()) from None
        return self.answer()

    def answer(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(self.patience_s):
                self.process.kill()
                raise Unfit(f"no answer within {self.patience_s:.0f} s: allow more with --patience")
        line = self.process.stdout.readline()
        if not line:
            raise Unfit(self.last_words())
        answer = json.loads(line)
        if "error" in answer:
            raise Unfit(answer["error"])
        return answer

    def last_words(self):
        code = self.process.wait()
        self.said.seek(0)
        lines = [line.strip() for line in self.said if line.strip()]
        return f"its process ended with {code}: {lines[-1] if lines else 'it said nothing'}"

    def close(self):
        if self.process is None:
            return
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.said.close()
        self.process = None


class Peer(Worker):
    """A contestant on diffusers' network."""

    def prepare(self, once=False):
        """The first decode (with it, compiling) unless there is to be one alone, and one that is kept for the comparison and for memory."""
        self.start()
        first = None if once else self.ask("decode")["elapsed_s"]
        output = self.folder / f"{self.name}.safetensors"
        found = self.ask(f"output {output}")
        return {"first_s": first, "estimate_s": found.pop("elapsed_s"), "output": output} | found

    def block(self, warmup, iterations):
        samples = [self.ask("decode")["elapsed_s"] for _ in range(warmup + iterations)]
        return samples[warmup:]

    def lines(self, extent):
        if self.name not in LINES:
            return [], []
        options = self.options | {"scale": scale_of(self.options["vae"])[0]}
        return tuple(LINES[self.name](size, options) for size in extent)


def planned(estimate_s, iterations, warmup, rounds, budget_s):
    """Warm-up and measured decodes of each round, within the contestant's share of time; three measured in all at least."""
    affordable = math.inf if budget_s is None else budget_s / max(estimate_s, 1e-9)
    if affordable < rounds * warmup + iterations:
        warmup = min(warmup, 1)
        iterations = max(3, min(iterations, int(affordable) - rounds * warmup))
    blocks = [iterations // rounds + (place < iterations % rounds) for place in range(rounds)]
    return warmup, blocks


def take_turns(contestants, iterations, warmup, rounds, budget_s, say, once=()):
    """Rows by contestant, each with what `prepare` found, samples_s and rounds_s, or with `failed`. Those named in `once` decode once."""
    rows = {}
    for contestant in contestants:
        say(f"{contestant.name}: reads, decodes once")
        rows[contestant.name] = row = {"name": contestant.name}
        try:
            if contestant.name in once:
                row |= contestant.prepare(once=True)
                row |= {"warmup": 0, "blocks": [0] * rounds, "samples_s": [row["estimate_s"]], "rounds_s": [row["estimate_s"]]}
                say(f"{contestant.name}: {row['estimate_s']:.4g} s, once")
                contestant.close()
                continue
            row |= contestant.prepare()
            row["warmup"], row["blocks"] = planned(row["estimate_s"], iterations, warmup, rounds, budget_s)
            row["samples_s"], row["rounds_s"] = [], []
            say(f"{contestant.name}: about {row['estimate_s']:.3g} s a decode")
        except Unfit as error:
            row["failed"] = error.without_folders()
            say(f"{contestant.name}: failed: {error}")
            contestant.close()
    for turn in range(rounds):
        # Another one begins each round, so that none always follows the same neighbour's heat.
        order = contestants[turn % len(contestants):] + contestants[:turn % len(contestants)]
        for contestant in order:
            row = rows[contestant.name]
            if "failed" in row or not row["blocks"][turn]:
                continue
            start = time.perf_counter()
            try:
                samples = contestant.block(row["warmup"], row["blocks"][turn])
            except Unfit as error:
                row["failed"] = error.without_folders()
                say(f"{contestant.name}: failed: {error}")
                contestant.close()
                continue
            row["samples_s"] += samples
            row["rounds_s"].append(statistics.median(samples))
            say(f"round {turn + 1}: {contestant.name}: median {statistics.median(samples):.4g} s of {len(samples)}"
                f" ({time.perf_counter() - start:.0f} s in all)")
    return rows
