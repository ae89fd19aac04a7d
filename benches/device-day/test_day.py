"""python3 -m unittest discover benches/device-day: needs nothing but Python."""

import unittest

import budget
import summary


class TestBudget(unittest.TestCase):
    def test_a_step_leaves_later_ones_their_time(self):
        now = [0.0]
        time = budget.Budget(100, clock=lambda: now[0])
        self.assertEqual(time.share(60, 30), 60)
        now[0] = 50
        self.assertEqual(time.share(60, 30), 20)
        now[0] = 90
        self.assertEqual(time.share(60, 30), 0)
        self.assertEqual(time.share(60), 10)
        now[0] = 200
        self.assertEqual(time.left(), 0)

    def test_what_has_no_time_is_not_run(self):
        with self.assertRaisesRegex(budget.Failed, "not run"):
            budget.run(["false"], 0)

    def test_failures_have_a_line(self):
        with self.assertRaisesRegex(budget.Failed, "^second$"):
            budget.run(["sh", "-c", "echo first >&2; echo second >&2; exit 3"], 30)
        with self.assertRaisesRegex(budget.Failed, "stopped after 1 s"):
            budget.run(["sh", "-c", "sleep 60 & sleep 60"], 1)


class TestSummary(unittest.TestCase):
    def verdict(self, **times):
        rows = [{"name": name, "ms": ms} for name, ms in times.items()]
        return summary.verdict(("goal", "ours", "theirs", 0.9), rows)

    def test_goals_are_met_up_to_their_ratio(self):
        self.assertEqual(self.verdict(ours=90.0, theirs=100.0), ["goal", "≤ 0.9", "0.90", "met"])
        self.assertEqual(self.verdict(ours=91.0, theirs=100.0), ["goal", "≤ 0.9", "0.91", "missed"])
        self.assertEqual(self.verdict(ours=1.0)[-1], "not measured: theirs")

    def test_blocks_that_were_not_run_count(self):
        self.assertEqual(summary.whole(9, 9), 57)

    def test_a_failure_is_a_row(self):
        rows = [{"name": "tw-f32", "failed": "no | memory\nleft"}]
        lines = list(summary.markdown({"blocks": 9, "rows": rows, "steps": []}))
        self.assertIn("| tw-f32 | failed: no / memory left |  |  |  |  |", lines)

    def test_goals_are_of_rows_that_exist(self):
        from transformer import PLANS, THEIRS

        known = {name for name, *_ in PLANS} | set(THEIRS)
        for _, *names, _ in summary.GOALS:
            for name in names:
                self.assertTrue(name.startswith("vae ") or name in known, name)
        self.assertLessEqual(set(summary.WHOLE_ESTIMATES), known)


if __name__ == "__main__":
    unittest.main()
