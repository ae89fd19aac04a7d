"""A run against PyTorch and diffusers on a lent GPU, within a limit of time: facts, transformer, VAE, device check, summary.

    bash benches/device-day/run.sh        what `cargo xtask device-day` says; --device cpu --small tries it without a GPU

Results so far are in --out after each step. A step that fails or has no time left says so in the summary, and later ones still run.
Ends with 1 unless all are done.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import budget
import summary
from transformer import Transformers
from vae import SIDES, Decodes

FACTS = Path(__file__).resolve().with_name("facts.py")
# Seconds without which no step begins: what a process takes to start and to read its weights.
LEAST_S = 12
# Seconds that are left at the end, for processes to close in.
CLOSING_S = 15
# Steps by the method that does them: how they are named, and those without which no other works.
NAMES = {"facts": "facts", "device": "device", "check": "device check", "weights": "weights in {}", "theirs": "{}", "ours": "{}",
         "goal_decodes": "VAE decode at {}", "other_decodes": "VAE decodes beside the goals'"}
NEEDED = {"device"}


def order(sides):
    """Steps: the method, what it is of, and the most seconds. They come in the order of their worth, so that none has to spare time for others."""
    return [
        ("facts", None, 60), ("device", None, 60),
        # The reference is the first to import diffusers, and converts its weights.
        ("weights", "bf16", 60), ("theirs", "diffusers-f32", 80), ("theirs", "diffusers-bf16", 50), ("ours", "tw-adaptive", 40),
        ("goal_decodes", sides[0], 90), ("goal_decodes", sides[1], 70),
        ("weights", "q4_k", 40), ("ours", "tw-q4k-expanded", 40), ("ours", "tw-q4k-packed", 40),
        ("check", None, 150),
        ("theirs", "diffusers-bf16-compiled", 90), ("ours", "tw-f32", 40),
        ("ours", "tw-bf16-expanded", 40), ("ours", "tw-bf16-packed", 40), ("ours", "tw-q4k-adaptive", 40),
        ("weights", "q8_0", 40), ("ours", "tw-q8-expanded", 40), ("ours", "tw-q8-packed", 40), ("ours", "tw-q8-adaptive", 40),
        ("other_decodes", sides, 180),
        ("weights", "fp8", 40), ("ours", "tw-fp8-packed", 40), ("ours", "tw-fp8-products", 40), ("ours", "tw-fp8-products-quick", 40),
        ("ours", "tw-bf16-streamed", 40), ("ours", "tw-mixed", 40),
    ]


class Day:
    def __init__(self, args):
        self.args, self.budget = args, budget.Budget(args.total)
        weights = args.weights or args.work
        self.flux = Transformers(args.tilewright, args.device, args.work, weights, args.small)
        self.vae = Decodes(args.tilewright, args.device, weights, args.out)
        self.found = {"small": args.small, "blocks": self.flux.blocks, "facts": {}, "rows": [], "steps": []}

    def run(self):
        """→ whether all is done."""
        for kind, what, most_s in order(SIDES[self.args.small]):
            if kind == "check" and self.args.no_check:
                continue
            if not self.step(kind, what, most_s) and kind in NEEDED:
                self.found["ended"] = f"Nothing was run after {NAMES[kind]}, without which nothing works."
                break
        self.write()
        return all(step["outcome"] == "done" for step in self.found["steps"]) and not any("failed" in row for row in self.found["rows"])

    def step(self, kind, what, most_s):
        """→ whether it is done."""
        name, share, begin = NAMES[kind].format(what), self.budget.share(most_s, CLOSING_S), time.monotonic()
        print(f"== {name} (at most {share.left():.0f} of {self.budget.left():.0f} s left)", flush=True)
        outcome = "interrupted"
        try:
            if share.left() < LEAST_S:
                raise budget.Failed(f"not run: {share.left():.0f} s were left")
            getattr(self, kind)(what, share)
            outcome = "done"
        except Exception as error:  # Any failure is a line of the summary.
            outcome = reason(error)
        finally:
            self.found["steps"].append({"name": name, "outcome": outcome, "s": time.monotonic() - begin})
            print(f"   {outcome}", flush=True)
            self.write()
        return outcome == "done"

    def facts(self, _, share):
        self.found["facts"] = json.loads(budget.run([sys.executable, FACTS, self.args.device], share))

    def device(self, _, share):
        printed = budget.run([self.args.tilewright, "device", "--device", self.args.device, "--json"], share)
        (self.args.out / "device.json").write_text(printed)

    def check(self, _, share):
        report = self.args.out / "check.json"
        budget.run([self.args.tilewright, "device", "check", "--device", self.args.device, "--quick", "--report", report], share)

    def weights(self, stored, share):
        self.flux.write(stored, share)

    def ours(self, name, share):
        self.row(name, share, self.flux.ours)

    def theirs(self, name, share):
        self.row(name, share, self.flux.theirs)

    def row(self, name, share, measure):
        """A row has what was found until it failed."""
        row = {"name": name}
        self.found["rows"].append(row)
        try:
            measure(name, row, share)
        except Exception as error:
            row["failed"] = reason(error)
            raise
        finally:
            self.found["reference"] = self.flux.compare(self.found["rows"])

    def goal_decodes(self, side, share):
        self.keep(self.vae.goal(side, share))

    def other_decodes(self, sides, share):
        self.keep(self.vae.others(sides, share))

    def keep(self, rows):
        # One by one: what comes before a failure stays.
        for row in rows:
            self.found["rows"].append(row)

    def write(self):
        replace(self.args.out / "day.json", json.dumps(self.found, indent=1))
        try:
            text = "\n".join(summary.markdown(self.found))
        except Exception as error:  # The figures are in day.json.
            text = f"No summary: {reason(error)}"
        replace(self.args.out / "summary.md", text)


def reason(error):
    said = budget.last_line(str(error))
    return said if isinstance(error, budget.Failed) else f"{type(error).__name__}: {said}"


def replace(path, text):
    """The run may be stopped at any moment, so that a file has another name until it is whole."""
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(text + "\n")
    partial.rename(path)


def arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--tilewright", required=True, help="the program")
    add("--work", type=Path, required=True, help="a folder for files in between")
    add("--weights", type=Path, help="a folder for weights and outputs, else that of --work")
    add("--out", type=Path, required=True, help="a folder for results")
    add("--total", type=float, default=570, help="the most seconds")
    add("--device", default="cuda")
    add("--small", action="store_true", help="a trial at small width")
    add("--no-check", action="store_true", help="leave the device check out")
    return parser.parse_args(given)


def main():
    budget.end_by_signals()
    day = Day(arguments())
    is_whole = day.run()
    print((day.args.out / "summary.md").read_text())
    sys.exit(0 if is_whole else 1)


if __name__ == "__main__":
    main()
