"""Contestants take turns, so that drift of the machine falls on all alike: only one works at a time, in small blocks."""

import math
import statistics
import time

from contestants import LINES
from network import scale_of
from process import Worker
from unfit import Unfit


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


def take_turns(contestants, iterations, warmup, rounds, budget_s, say, once=(), keep=lambda rows: None):
    """Rows by contestant, each with what `prepare` found, samples_s and rounds_s, or with `failed`. Those named in `once` decode once.

    `keep` gets the rows whenever one has more.
    """
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
            else:
                row |= contestant.prepare()
                row["warmup"], row["blocks"] = planned(row["estimate_s"], iterations, warmup, rounds, budget_s)
                row["samples_s"], row["rounds_s"] = [], []
                say(f"{contestant.name}: about {row['estimate_s']:.3g} s a decode")
        except Unfit as error:
            row["failed"] = error.without_folders()
            say(f"{contestant.name}: failed: {error}")
            contestant.close()
        keep(rows)
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
            else:
                row["samples_s"] += samples
                row["rounds_s"].append(statistics.median(samples))
                say(f"round {turn + 1}: {contestant.name}: median {statistics.median(samples):.4g} s of {len(samples)}"
                    f" ({time.perf_counter() - start:.0f} s in all)")
            keep(rows)
    return rows
