"""Runs natively by `python3 -m unittest`: no WebAssembly, and a stub of the host. Needs bindings/,
which `tilewright policy build` makes."""

import pathlib
import sys
import unittest
from dataclasses import replace

sys.path.insert(0, str(pathlib.Path(__file__).parent / "bindings"))

import app
from componentize_py_types import Err, Ok
from wit_world.imports import denoise, denoise_host, vae_host
from wit_world.imports.types import (
    Backend, Device, Dtype, Failure_NonFinite, Failure_OutOfMemory, Failure_OverLimit, HostMemory, Memory, Objective,
    StoredType, Value_Integer, Weights,
)
from wit_world.imports.vae import (
    Attempt, Capabilities, Cost, Direction, Layout, Model, Request, Space_Blended, Space_Exact, Space_Whole, Tile,
    Time_Carried,
)

MIB = 1 << 20


def cost(plan):
    """A host for which a pixel of a tile costs a kilobyte, in sixteen frames at once."""
    side = 1024 if isinstance(plan.space, Space_Whole) else plan.space.value.height
    frames = plan.time.value if isinstance(plan.time, Time_Carried) else 16
    memory = Memory(peak_bytes=side * side * frames << 6, weights_bytes=0)
    return Cost(memory, elapsed_ns=1000, tiles=(1024 // side) ** 2, shapes=1, rework=1.0)


def request(limit_bytes):
    """A picture of 1024×1024 with this much memory."""
    model = Model("flux", Weights(95 * MIB, [StoredType("bf16", 95 * MIB)]), 1024)
    device = Device(Backend.ROCM, "AMD Radeon 8060S", "gfx1151", 40, 65536 * MIB, 65536 * MIB, True, [])
    capabilities = Capabilities(
        dtypes=[Dtype.F32, Dtype.BF16], tile_unit=8, tile_least=64, batch_most=16, prefetch_most=2, exact=True, carried=True,
        offload=False, options=[])
    return Request(
        Direction.DECODE, model, device, HostMemory(0, 0, 0), limit_bytes, Objective.BALANCED, allows_blended=False, batch=1,
        frames=1, height=1024, width=1024, spatial_scale=8, temporal_scale=1, capabilities=capabilities, under_way=None, hints=[])


def without_bands(limit_bytes):
    """The same, on a host that can't run exact bands."""
    whole = request(limit_bytes)
    return replace(whole, capabilities=replace(whole.capabilities, exact=False))


class Decisions(unittest.TestCase):
    def setUp(self):
        vae_host.estimate = lambda plans: [Ok(cost(plan)) for plan in plans]
        app.Lifecycle().configure([("tile", Value_Integer(512))])
        self.policy = app.VaePolicy()

    def test_whole_if_it_fits_and_tiles_if_it_does_not(self):
        self.assertEqual(self.policy.decide(request(2048 * MIB), []).space, Space_Whole())
        self.assertEqual(self.policy.decide(request(300 * MIB), []).space, Space_Exact(Tile(512, 1024, 0)))
        # Tiles are the last resort, or allowed.
        self.assertEqual(self.policy.decide(without_bands(300 * MIB), []).space, Space_Blended(Tile(512, 512, 64)))
        leanest = replace(without_bands(2048 * MIB), objective=Objective.LEANEST)
        self.assertEqual(self.policy.decide(leanest, []).space, Space_Whole())
        allowed = replace(leanest, allows_blended=True)
        self.assertEqual(self.policy.decide(allowed, []).space, Space_Blended(Tile(64, 64, 8)))

    def test_the_quickest_memory_order_is_taken(self):
        def last_is_quick(plan):
            return Ok(replace(cost(plan), elapsed_ns=1 if plan.layout == Layout.CHANNELS_LAST else 2))

        vae_host.estimate = lambda plans: [last_is_quick(plan) for plan in plans]
        self.assertEqual(self.policy.decide(request(2048 * MIB), []).layout, Layout.CHANNELS_LAST)

    def test_tiles_shrink_until_there_is_nothing_smaller(self):
        plan, sides = self.policy.decide(without_bands(300 * MIB), []), []
        with self.assertRaises(Err):
            while True:
                plan = self.policy.decide(without_bands(300 * MIB), [Attempt(plan, Failure_OutOfMemory(MIB))])
                sides.append(plan.space.value.height)
        self.assertEqual(sides, [256, 128, 64])

    def test_a_clip_is_taken_in_fewer_frames_at_once(self):
        clip = replace(request(2048 * MIB), frames=81, temporal_scale=4)
        plan = self.policy.decide(clip, [])
        self.assertEqual((plan.space, plan.time), (Space_Whole(), Time_Carried(16)))
        self.assertEqual(self.policy.decide(clip, [Attempt(plan, Failure_OverLimit(4096 * MIB))]).time, Time_Carried(4))
        # Frames get fewer before anything is blended.
        tight = self.policy.decide(replace(clip, limit_bytes=MIB), [])
        self.assertEqual((tight.space, tight.time), (Space_Exact(Tile(64, 1024, 0)), Time_Carried(4)))

    def test_a_tile_out_of_range_is_refused(self):
        with self.assertRaises(Err):
            app.Lifecycle().configure([("tile", Value_Integer(100))])


def sample_cost(plan):
    """A host for which weights take a gigabyte, and work 100 MiB."""
    together = plan.guidance == denoise.Guidance.TOGETHER
    kinds = {denoise.Residency_Resident: (1000, 1000), denoise.Residency_Streamed: (100, 2000), denoise.Residency_Host: (50, 3000)}
    weights, step = kinds[type(plan.residency)]
    peak = 200 if together else 50 if plan.samples == 1 else 100
    return Ok(denoise.Cost(Memory(peak * MIB, weights * MIB), 0, step - together))


def sample(limit_bytes):
    """Two samples of 1024×1024 with guidance and this much memory."""
    model = denoise.Model("flux", Weights(24 << 30, [StoredType("bf16", 24 << 30)]), 12_000_000_000, 57, 512 * MIB, 1)
    device = Device(Backend.ROCM, "AMD Radeon 8060S", "gfx1151", 40, 65536 * MIB, 65536 * MIB, True, [Dtype.BF16])
    capabilities = denoise.Capabilities(
        dtypes=[Dtype.F32, Dtype.BF16], fp8_products=False, int8_products=False, fused_attention=True, queries_least=16,
        ahead_most=64, parts_most=64, reuse_most=0.0, options=[])
    return denoise.Request(
        model, device, HostMemory(0, 0, 0), limit_bytes, Objective.BALANCED, batch=2, frames=1, height=128, width=128,
        text_tokens=512, image_tokens=4096, steps=20, passes=2, sampler="euler", capabilities=capabilities, under_way=None,
        hints=[])


class Samples(unittest.TestCase):
    def test_weights_are_streamed_if_they_do_not_fit(self):
        denoise_host.estimate = lambda plans: [sample_cost(plan) for plan in plans]
        policy = app.DenoisePolicy()
        roomy = policy.decide(sample(2048 * MIB), [])
        self.assertEqual((roomy.residency, roomy.guidance), (denoise.Residency_Resident(), denoise.Guidance.TOGETHER))
        tight = policy.decide(sample(300 * MIB), [])
        self.assertEqual(tight.residency, denoise.Residency_Streamed(1))
        failed = denoise.Attempt(tight, Failure_OutOfMemory(MIB))
        self.assertEqual(policy.decide(sample(300 * MIB), [failed]).residency, denoise.Residency_Host())
        overflowed = denoise.Attempt(roomy, Failure_NonFinite(3))
        self.assertEqual(policy.decide(sample(2048 * MIB), [overflowed]).precision.value, Dtype.F32)

    def test_a_narrow_type_is_for_what_fits_in_no_other_way(self):
        def price(plan):
            size = 4 if plan.precision.value == Dtype.F32 else 2
            return Ok(denoise.Cost(Memory(size * MIB, 0), 0, size))

        denoise_host.estimate = lambda plans: [price(plan) for plan in plans]
        policy = app.DenoisePolicy()
        device = replace(sample(0).device, fast_dtypes=[])
        self.assertEqual(policy.decide(replace(sample(4 * MIB), device=device), []).precision.value, Dtype.F32)
        tight = replace(sample(3 * MIB), device=device)
        narrow = policy.decide(tight, [])
        self.assertEqual(narrow.precision.value, Dtype.BF16)
        with self.assertRaises(Err):
            policy.decide(tight, [denoise.Attempt(narrow, Failure_NonFinite(3))])


if __name__ == "__main__":
    unittest.main()
