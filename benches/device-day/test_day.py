"""python3 -m unittest discover benches/device-day: needs nothing but Python."""

import array
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import budget
import day
import stand_in
import summary
import tensors
import transformer
import vae

STAND_IN = Path(stand_in.__file__).resolve()


def is_alive(process):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def has_ended(process):
    """A killed process takes a moment to go."""
    until = time.monotonic() + 30
    while is_alive(process) and time.monotonic() < until:
        time.sleep(0.01)
    return not is_alive(process)


class TestBudget(unittest.TestCase):
    def test_a_step_leaves_later_ones_their_time(self):
        now = [0.0]
        whole = budget.Budget(100, clock=lambda: now[0])
        self.assertEqual(whole.share(60, 30).left(), 60)
        now[0] = 50
        self.assertEqual(whole.share(60, 30).left(), 20)
        now[0] = 90
        self.assertEqual(whole.share(60, 30).left(), 0)
        self.assertEqual(whole.share(60).left(), 10)
        now[0] = 200
        self.assertEqual(whole.left(), 0)


@contextlib.contextmanager
def printed():
    with contextlib.redirect_stdout(io.StringIO()) as text:
        yield text


class TestRun(unittest.TestCase):
    def fails(self, reason, script, allowed_s=30):
        with printed() as text, self.assertRaisesRegex(budget.Failed, reason) as failure:
            budget.run(["sh", "-c", script], budget.Budget(allowed_s))
        return text.getvalue(), failure.exception

    def test_what_has_no_time_is_not_run(self):
        self.fails("not run", "exit 1", 0)

    def test_failures_have_a_line(self):
        _, failure = self.fails("^second$", "echo table; echo first >&2; echo second >&2; exit 3")
        self.assertEqual(failure.printed, "table\n")
        self.fails("^it said nothing$", "exit 3")
        self.fails("signal 11", "kill -SEGV $$")
        with self.assertRaisesRegex(budget.Failed, "No such file"):
            budget.run(["/nowhere/at/all"], budget.Budget(30))

    def test_what_is_late_ends_with_what_it_started(self):
        said, _ = self.fails("stopped after 1 s", "sleep 60 & echo $!; sleep 60", 1)
        self.assertTrue(has_ended(int(said)))

    def test_a_process_that_outlives_a_kill_does_not_hold_the_run(self):
        begin = time.monotonic()
        said, _ = self.fails("stopped after 1 s", "setsid sh -c 'echo $$; exec sleep 60' & wait", 1)
        self.assertLess(time.monotonic() - begin, 1 + budget.ENDING_S)
        os.kill(int(said), signal.SIGKILL)

    def test_a_signal_ends_what_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "number"
            script = f"import budget; budget.end_by_signals(); budget.run(['sh', '-c', 'echo $$ > {written}; exec sleep 60'], budget.Budget(60))"
            with subprocess.Popen([sys.executable, "-c", script], cwd=STAND_IN.parent) as runner:
                while not (written.exists() and written.read_text().endswith("\n")):
                    time.sleep(0.01)
                child = int(written.read_text())
                self.assertTrue(is_alive(child))
                runner.terminate()
                self.assertEqual(runner.wait(30), 128 + signal.SIGTERM)
            self.assertTrue(has_ended(child))


class TestTensors(unittest.TestCase):
    def test_a_file_is_read_as_it_was_written(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "a.safetensors"
            given = {"a": ((2, 1), array.array("f", [1, 2])), "b": ((1,), array.array("f", [3]))}
            tensors.write(given, path)
            self.assertEqual(tensors.read(path), {name: values for name, (_, values) in given.items()})
            path.write_bytes(path.read_bytes()[:-1])
            with self.assertRaisesRegex(ValueError, "not a whole tensor"):
                tensors.read(path)

    def test_errors_are_relative(self):
        self.assertEqual(tensors.error([3.0, 4.5], [3.0, 4.0]), 0.1)


def decodes(device, is_small):
    """Names of rows."""
    return {f"vae {side} {name}" for side in vae.SIDES[is_small] for name in ("eager", vae.KINDS[device][1], "tilewright adaptive")}


class TestDay(unittest.TestCase):
    """Whole days, with stand_in.py for all that they start."""

    def day(self, faults="", most_s=30):
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            program = folder / "tilewright"
            program.write_text(f'#!/bin/sh\nexec {sys.executable} -B {STAND_IN} "$@"\n')
            program.chmod(0o755)
            order = day.order
            for patch in [
                mock.patch.object(day, "FACTS", STAND_IN), mock.patch.object(transformer, "WRITER", STAND_IN),
                mock.patch.object(transformer.Denoiser, "script", str(STAND_IN)), mock.patch.object(vae, "PROCESS", STAND_IN),
                mock.patch.object(tensors, "inputs", lambda _, seed: {"noise": stand_in.noise(seed)}),
                mock.patch.object(day, "order", lambda sides: [(kind, what, most_s) for kind, what, _ in order(sides)]),
                mock.patch.object(day, "LEAST_S", 0.1), mock.patch.dict(os.environ, STAND_IN_FAULTS=faults), printed(),
            ]:
                stack.enter_context(patch)
            args = ["--tilewright", str(program), "--work", str(folder), "--out", str(folder), "--device", "cpu", "--small"]
            is_whole = day.Day(day.arguments(args)).run()
            return is_whole, json.loads((folder / "day.json").read_text()), (folder / "summary.md").read_text()

    def test_a_day_has_all_rows(self):
        is_whole, found, text = self.day()
        self.assertTrue(is_whole, text)
        rows = {row["name"]: row for row in found["rows"]}
        self.assertLessEqual({*transformer.PLANS, *transformer.REFERENCES, transformer.PROFILED, "diffusers-bf16-compiled"}, set(rows))
        self.assertLessEqual(decodes("cpu", is_small=True), set(rows))
        self.assertTrue(all(row["ms"] == 10 for row in found["rows"]), text)
        self.assertEqual(found["reference"], "diffusers-f32")
        self.assertEqual(rows["diffusers-f32"]["error"], 0)
        self.assertGreater(rows["tw-mixed"]["error"], 0)
        self.assertIn("| Q4_K, packed against expanded | ≤ 1.15 | 1.000 | met |", text)
        self.assertIn("adjusted: products plain", text)

    def test_goals_and_estimates_are_of_rows_that_exist(self):
        known = {what for kind, what, _ in day.order(vae.SIDES[False]) if kind in ("ours", "theirs")}
        known |= decodes("cuda", is_small=False)
        self.assertLessEqual({name for _, *names, _ in summary.GOALS for name in names}, known)
        self.assertLessEqual({*summary.ESTIMATES, *summary.WHOLE_ESTIMATES}, known)

    def test_a_failure_loses_no_other_row(self):
        is_whole, found, text = self.day("diffusers-f32=fail,tw-mixed=fail,tilewright adaptive=fail,weights=fail")
        self.assertFalse(is_whole)
        rows = {row["name"]: row for row in found["rows"]}
        self.assertEqual(found["reference"], "tw-f32")
        self.assertIn("failed: Unfit: its process ended with 1: ImportError: no diffusers", text)
        # The reason from what bench printed, with the plan and the error of the step before it.
        self.assertEqual(rows["tw-mixed"]["failed"], "memory ran out")
        self.assertLessEqual({"plan", "error"}, set(rows["tw-mixed"]))
        # The peer's time came before the program's failure.
        self.assertIn(f"vae {vae.SIDES[True][0]} eager", rows)
        self.assertEqual(len(found["steps"]), len(day.order(vae.SIDES[True])))

    def test_what_hangs_is_stopped(self):
        _, found, text = self.day("diffusers-bf16-compiled=hang,eager-channels-last=hang", most_s=2)
        self.assertIn("no answer within 2 s", text)
        outcomes = {step["name"]: step["outcome"] for step in found["steps"]}
        self.assertEqual(outcomes["VAE decodes beside the goals'"], "stopped after 2 s")
        self.assertEqual(outcomes["tw-mixed"], "done")

    def test_nothing_is_run_without_a_device(self):
        is_whole, found, text = self.day("device=fail")
        self.assertFalse(is_whole)
        self.assertEqual([step["outcome"] for step in found["steps"]], ["done", "no device"])
        self.assertIn("Nothing was run after device", text)


class TestSummary(unittest.TestCase):
    def verdict(self, **times):
        rows = [{"name": name, "ms": ms} for name, ms in times.items()]
        return summary.verdict(("goal", "ours", "theirs", 0.9), rows)

    def test_goals_are_met_up_to_their_ratio(self):
        self.assertEqual(self.verdict(ours=90.0, theirs=100.0), ["goal", "≤ 0.9", "0.900", "met"])
        self.assertEqual(self.verdict(ours=90.4, theirs=100.0), ["goal", "≤ 0.9", "0.904", "missed"])
        self.assertEqual(self.verdict(ours=1.0)[-1], "not measured: theirs")

    def test_blocks_that_were_not_run_count(self):
        self.assertEqual(summary.whole(9, 9), 57)

    def test_a_failure_is_a_row(self):
        rows = [{"name": "tw-f32", "ms": None, "failed": "no | memory\nleft"}]
        lines = list(summary.markdown({"blocks": 9, "rows": rows, "steps": []}))
        self.assertIn("| tw-f32 |  |  |  |  |  | failed: no / memory left |", lines)


if __name__ == "__main__":
    unittest.main()
