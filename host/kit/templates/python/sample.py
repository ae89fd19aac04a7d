"""Samples: everything on the device if that fits into memory, streamed and divided if it doesn't."""

from dataclasses import replace

from componentize_py_types import Err, Ok
from wit_world.imports import denoise_host
from wit_world.imports.denoise import (
    Attention_Fused, Guidance, Plan, Products, Residency_Host, Residency_Resident, Residency_Streamed, Reuse_Off,
)
from wit_world.imports.types import Backend, Dtype, Failure_NonFinite, Objective, Precision_Uniform, Release, WeightForm


class DenoisePolicy:
    def decide(self, request, attempts):
        """A plan for a sample after its attempts failed, the latest last; at first there are none."""
        # The device: half the bytes if a probe found bf16 no slower. Elsewhere a narrow type is for what fits in no other
        # way, since it alone changes the result.
        is_narrow = request.device.backend != Backend.CPU and Dtype.BF16 in request.device.fast_dtypes
        dtypes, budget = [Dtype.BF16] if is_narrow else [Dtype.F32, Dtype.BF16], request.limit_bytes
        for attempt in attempts:
            if isinstance(attempt.failure, Failure_NonFinite):
                # NaN or infinity: a type with a wider range.
                if attempt.plan.precision == Precision_Uniform(Dtype.F32):
                    raise Err("not finite in f32")
                dtypes = [Dtype.F32]
            else:
                # Too much memory: the next plan has to be expected to hold less.
                [cost] = price([attempt.plan])
                budget = min(budget, held(cost) - 1) if cost is not None else budget
        for dtype in dtypes:
            plan = best(request, dtype, budget)
            if plan is not None:
                return replace(plan, reason="the best that fits")
        # An error is an honest answer: the host then uses its own plan.
        raise Err("nothing smaller is left" if attempts else "nothing is expected to fit")

    def learn(self, request, plan, outcome):
        """Called with the outcome of a plan."""


def best(request, dtype, budget):
    """The plan in a dtype that serves the user's objective best, of those within the budget, in bytes; None if none is."""
    plans = candidates(request, dtype)
    fitting = [(plan, cost) for plan, cost in zip(plans, price(plans)) if cost is not None and held(cost) <= budget]
    figure = held if request.objective == Objective.LEANEST else lambda cost: cost.step_ns
    return min(fitting, key=lambda each: figure(each[1]), default=(None, None))[0]


def held(cost):
    """Bytes that are held at once, which the limit is compared with."""
    return cost.memory.peak_bytes + cost.memory.weights_bytes


def candidates(request, dtype):
    """Plans that each hold less than the one before."""
    plain = Plan(
        precision=Precision_Uniform(dtype), products=Products.PRECISION, weights=WeightForm.PACKED,
        residency=Residency_Resident(), attention=Attention_Fused(), guidance=Guidance.IN_TURN, samples=None, feed_forward=1,
        reuse=Reuse_Off(), release=Release.KEEP, options=[], reason="")
    return [
        # The passes of guidance together, where there are two.
        replace(plain, guidance=Guidance.TOGETHER if request.passes > 1 else Guidance.IN_TURN),
        plain,
        # Blocks of weights come while the one before computes.
        replace(plain, residency=Residency_Streamed(1)),
        # Each block comes when its turn does, and samples go one by one.
        replace(plain, residency=Residency_Host(), samples=1 if request.batch > 1 else None, feed_forward=8),
    ]


def price(plans):
    """The expected costs of plans, in their order; None for one that it can't run."""
    return [cost.value if isinstance(cost, Ok) else None for cost in denoise_host.estimate(plans)]
