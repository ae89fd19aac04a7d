"""A run against PyTorch and diffusers on a lent GPU, within a limit of time: facts, device check, transformer, VAE, summary.

    bash benches/device-day/run.sh        what `cargo xtask device-day` says; --device cpu --small tries it without a GPU

Results so far are in --out after each step. A step that fails or has no time left says so in the summary, and later ones still run.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import budget
import summary

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "peers"), str(HERE.parents[1] / "tests" / "judge")]

# The most seconds of each step, and what it leaves to later ones.
SHARES = {"facts": (60, 300), "device": (60, 300), "check": (200, 280), "weights": (90, 180), "row": (40, 110), "compiled": (90, 110), "vae": (90, 5)}


class Day:
    def __init__(self, args):
        self.args, self.budget = args, budget.Budget(args.total)
        self.found = {"small": args.small, "blocks": 0, "rows": [], "steps": []}

    def step(self, name, share, work):
        """Does `work` with the seconds that it may take. → its result, or None where it failed."""
        allowed = self.budget.share(*SHARES[share])
        begin, result = time.monotonic(), None
        print(f"== {name} (at most {allowed:.0f} of {self.budget.left():.0f} s left)", flush=True)
        try:
            if allowed < 1:
                raise budget.Failed(f"not run: {self.budget.left():.0f} s were left")
            result, outcome = work(allowed), "done"
        except Exception as error:  # Any failure is a row.
            said = budget.last_line(str(error))
            outcome = said if isinstance(error, budget.Failed) else f"{type(error).__name__}: {said}"
        self.found["steps"].append({"name": name, "outcome": outcome, "s": time.monotonic() - begin})
        print(f"   {outcome}", flush=True)
        self.write()
        return result

    def row(self, name, share, work):
        found = self.step(name, share, work)
        row = {"name": name} | (found if found is not None else {"failed": self.found["steps"][-1]["outcome"]})
        self.found["rows"].append(row)
        self.write()

    def write(self):
        (self.args.out / "day.json").write_text(json.dumps(self.found, indent=1) + "\n")
        (self.args.out / "summary.md").write_text("\n".join(summary.markdown(self.found)) + "\n")

    def run(self):
        args = self.args
        program = args.tilewright
        found = self.step("facts", "facts", lambda s: json.loads(budget.run([sys.executable, HERE / "facts.py", args.device], s)))
        self.found["facts"] = found or {}
        self.step("device", "device", lambda s: (args.out / "device.json").write_text(
            budget.run([program, "device", "--device", args.device, "--json"], s)))
        if not args.no_check:
            self.step("device check", "check", lambda s: budget.run(
                [program, "device", "check", "--device", args.device, "--quick", "--report", args.out / "check.json"], s))
        self.transformers()
        for size in (64,) if args.small else (1024, 512):
            rows = self.step(f"VAE decode at {size}", "vae",
                             lambda s, size=size: vae_rows(program, args, size, s))
            self.found["rows"] += rows or []
        self.write()

    def transformers(self):
        from transformer import PLANS, THEIRS, Transformers

        args = self.args
        flux = Transformers(args.tilewright, args.device, args.work, args.small)
        self.found["blocks"] = flux.blocks
        self.step("Flux's weights", "weights", lambda s: flux.prepare(s) or {})
        for name in THEIRS[:2]:
            self.row(name, "row", lambda s, name=name: flux.theirs(name, s))
        for plan in PLANS[:5]:
            self.row(plan[0], "row", lambda s, plan=plan: flux.ours(*plan, s))
        self.row(THEIRS[2], "compiled", lambda s: flux.theirs(THEIRS[2], s))
        for plan in PLANS[5:]:
            self.row(plan[0], "row", lambda s, plan=plan: flux.ours(*plan, s))
        flux.errors(self.found["rows"])


def vae_rows(program, args, size, allowed_s):
    from vae import decode

    return decode(program, args.device, args.work, args.out, size, allowed_s, "eager" if args.small else "eager,compiled")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--tilewright", required=True, help="the program")
    add("--work", type=Path, required=True, help="a folder for weights")
    add("--out", type=Path, required=True, help="a folder for results")
    add("--total", type=float, default=570, help="the most seconds")
    add("--device", default="cuda")
    add("--small", action="store_true", help="a trial at small width")
    add("--no-check", action="store_true", help="leave the device check out")
    day = Day(parser.parse_args())
    day.run()
    print((day.args.out / "summary.md").read_text())


if __name__ == "__main__":
    main()
