"""Run natively by `python3 -m unittest`: no WebAssembly, and a stand-in for the host. Needs bindings/, which `tilewright policy build` makes."""

import pathlib
import sys
import unittest
from dataclasses import replace

sys.path.insert(0, str(pathlib.Path(__file__).parent / "bindings"))

import app
from componentize_py_types import Err
from wit_world.exports.lifecycle import Value_Integer
from wit_world.imports import decoding_host
from wit_world.imports.decoding import (
    Attempt, Cost, Failure_OutOfMemory, Failure_OverLimit, Layout, Request, Space_Blended, Space_Whole, Tile, Time_Carried,
)
from wit_world.imports.types import Backend, Device, Dtype, Model, Objective

MIB = 1 << 20


def estimate(plan):
    """A host for which a pixel of a tile costs a kilobyte."""
    side = 1024 if isinstance(plan.space, Space_Whole) else plan.space.value.height
    return Cost(peak_bytes=side * side << 10, elapsed_ns=1000, tiles=(1024 // side) ** 2, shapes=1, rework=1.0)


def request(memory_limit):
    """A picture of 1024×1024 with this much memory."""
    model = Model("flux", Dtype.BF16, False, 95 * MIB, 8, 1)
    device = Device(Backend.ROCM, "AMD Radeon 8060S", "gfx1151", 40, 65536 * MIB, 65536 * MIB, True, [])
    return Request(model, device, 1, 1, 1024, 1024, memory_limit, Objective.BALANCED, [])


class Decisions(unittest.TestCase):
    def setUp(self):
        decoding_host.estimate = estimate
        app.Lifecycle().configure([("tile", Value_Integer(512))])
        self.policy = app.DecodingPolicy()

    def test_whole_where_it_fits_and_tiles_where_it_does_not(self):
        self.assertEqual(self.policy.decide(request(2048 * MIB)).space, Space_Whole())
        self.assertEqual(self.policy.decide(request(300 * MIB)).space, Space_Blended(Tile(512, 512, 64)))
        leanest = replace(request(2048 * MIB), objective=Objective.LEANEST)
        self.assertEqual(self.policy.decide(leanest).space, Space_Blended(Tile(64, 64, 8)))

    def test_the_quickest_memory_order_is_taken(self):
        def last_is_quick(plan):
            return replace(estimate(plan), elapsed_ns=1 if plan.layout == Layout.CHANNELS_LAST else 2)

        decoding_host.estimate = last_is_quick
        self.assertEqual(self.policy.decide(request(2048 * MIB)).layout, Layout.CHANNELS_LAST)

    def test_tiles_shrink_until_there_is_nothing_smaller(self):
        plan, sides = self.policy.decide(request(300 * MIB)), []
        with self.assertRaises(Err):
            while True:
                plan = self.policy.recover(request(300 * MIB), [Attempt(plan, Failure_OutOfMemory(MIB))])
                sides.append(plan.space.value.height)
        self.assertEqual(sides, [256, 128, 64])

    def test_a_clip_is_taken_in_fewer_frames_at_once(self):
        clip = replace(request(2048 * MIB), frames=81, model=replace(request(0).model, temporal_scale=4))
        plan = self.policy.decide(clip)
        self.assertEqual((plan.space, plan.time), (Space_Whole(), Time_Carried(16)))
        self.assertEqual(self.policy.recover(clip, [Attempt(plan, Failure_OverLimit(4096 * MIB))]).time, Time_Carried(8))

    def test_a_tile_out_of_range_is_refused(self):
        with self.assertRaises(Err):
            app.Lifecycle().configure([("tile", Value_Integer(100))])


if __name__ == "__main__":
    unittest.main()
