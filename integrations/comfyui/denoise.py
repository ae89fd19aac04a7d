"""Samples by policy: decide, run by ComfyUI's own sampler, on failure the next plan, learn, record."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from comfy import model_management
from tilewright import records
from tilewright.errors import PolicyError
from tilewright.executor.device import device_of
from tilewright.executor.failures import failure_of, non_finite
from tilewright.executor.peak import Peak
from tilewright.policy import DenoiseDecision, Policy

from . import comfy_memory, interruption
from .sampler_request import DTYPES, Sample
from .sampler_run import SampleRun
from .settings import Choice

log = logging.getLogger("tilewright")

Result = TypeVar("Result")

#: Plans that are tried for one sample.
MOST_ATTEMPTS = 6


class Governed:
    """One sample, from its decision to its record.

    Args:
        sample: what is known of it.
        choice: the policy and its bounds.
        node: the node's id, for the record.
    """

    def __init__(self, sample: Sample, choice: Choice, node: str) -> None:
        self._sample = sample
        self._node = node
        self._policy: Policy = choice.policy_of("denoise")
        patcher = sample.patcher
        limit = comfy_memory.limit_of(choice.memory_limit, patcher.load_device, patcher)
        device = device_of(patcher.load_device).with_memory(free_bytes=comfy_memory.available(patcher.load_device))
        self._device = device.facts
        self._request = sample.request(limit, choice.objective, self._device)
        self._attempts: list[records.DenoiseFailedAttempt] = []
        self._decision: DenoiseDecision | None = None
        #: The plan at work: the decision's, or what the host made of it.
        self._plan: records.DenoisePlan | None = None
        self._is_hopeless = False

    def run(
        self, work: Callable[[Any, dict[str, Any]], Result], values_of: Callable[[Result], torch.Tensor]
    ) -> tuple[Result, str]:
        """Runs the sample.

        Args:
            work: samples with a patcher and model options of its own, as ComfyUI does.
            values_of: the latents in what `work` gives.

        Returns:
            What `work` gave, and the record as JSON.

        Raises:
            InterruptProcessingException: a user has cancelled it.
        """
        patcher = self._sample.patcher
        while True:
            plan = self._plan = self._decide(None, 0).plan
            log.info("denoise: %s: %s", _words(plan), plan.reason)
            own = self._patcher(plan)
            run = SampleRun(plan, self._follow)
            run.attach(own.model_options)
            failure: records.Failure | None = None
            result: Result | None = None
            begun = time.perf_counter()
            with Peak(patcher.load_device) as peak:
                try:
                    result = interruption.call(
                        lambda _, own=own: work(own, own.model_options),
                        patcher.model.diffusion_model,
                        patcher.load_device,
                    )
                    bad = non_finite(values_of(result))
                    if bad:
                        failure = records.NonFiniteFailure(values=bad)
                except Exception as error:
                    failure = failure_of(error)
                    if failure is None or self._is_hopeless or len(self._attempts) + 1 >= MOST_ATTEMPTS:
                        raise
            if result is not None and (failure is None or not self._can_mend(failure)):
                return result, self._note(run, peak, time.perf_counter() - begun)
            assert failure is not None
            result = None
            self._fail(failure, run.steps)
            model_management.soft_empty_cache()

    def _decide(self, running: records.DenoisePlan | None, steps: int) -> DenoiseDecision:
        """A decision on the whole sample, or on the rest of one under way."""
        # A network that runs keeps its type.
        dtypes = None if running is None else (running.precision.dtype,)
        self._decision = self._policy.decide(
            self._request,
            self._attempts,
            capabilities=self._sample.capabilities(dtypes),
            device=self._device,
            costs=lambda plans: [self._sample.price(plan) for plan in plans],
            **({} if running is None else {"running": running, "done": steps}),
        )
        return self._decision

    def _follow(self, failure: records.Failure, steps: int) -> records.DenoisePlan | None:
        """The plan to go on with after a failure in the middle of a sample."""
        if len(self._attempts) + 1 >= MOST_ATTEMPTS:
            return None
        running = self._plan
        self._fail(failure, steps)
        plan = self._decide(running, steps).plan
        if self._has_failed(plan):
            # A policy that knows no other plan: the host does.
            plan = _leaner(self._attempts[-1].plan, self._request.batch)
        self._is_hopeless = self._has_failed(plan)
        if self._is_hopeless:
            return None
        self._plan = plan
        log.info("denoise: after step %d: %s: %s", steps, _words(plan), plan.reason)
        return plan

    def _has_failed(self, plan: records.DenoisePlan) -> bool:
        return any(_is_same(plan, attempt.plan) for attempt in self._attempts)

    def _fail(self, failure: records.Failure, steps: int) -> None:
        assert self._decision is not None and self._plan is not None
        attempt = self._decision.failed(failure, step=steps)
        assert isinstance(attempt, records.DenoiseFailedAttempt)
        self._attempts.append(dataclasses.replace(attempt, plan=self._plan))

    def _can_mend(self, failure: records.Failure) -> bool:
        """True if another plan may give what this one did not: values that are none come from narrow types alone."""
        assert self._plan is not None
        if isinstance(failure, records.NonFiniteFailure):
            own = self._plan.precision.dtype
            offered = self._sample.offered_dtypes()
            is_widest = own == "f32" or "f32" not in offered
            return not is_widest and len(self._attempts) + 1 < MOST_ATTEMPTS
        return True

    def _patcher(self, plan: records.DenoisePlan) -> Any:
        """A handle of the sample's own on the model, in the plan's type."""
        own = self._sample.patcher.clone()
        own.cleanup = functools.partial(_clean_up, weakref.ref(own))
        dtype = DTYPES[plan.precision.dtype]
        if dtype != self._sample.own_dtype:
            own.set_model_compute_dtype(dtype)
        return own

    def _note(self, run: SampleRun, peak: Peak, elapsed: float) -> str:
        """Tells the policy what its plan led to, and keeps the record."""
        assert self._decision is not None
        steps = max(1, run.steps)
        outcome = records.DenoiseOutcome(
            elapsed_ms=run.seconds * 1000,
            load_ms=max(0.0, elapsed - run.seconds) * 1000,
            step_ms=run.seconds * 1000 / steps,
            peak_bytes=peak.bytes or 0,
            weights_bytes=self._sample.weights_bytes,
            moved_bytes=0,
            pool=peak.pool,
            attempts=len(self._attempts) + 1,
            reuse_deviation=run.reuse.deviation,
            reused=run.reuse.reused,
        )
        record = dataclasses.replace(
            self._decision.record, plan=run.plan, attempts=tuple(self._attempts), outcome=outcome
        )
        if not run.reuse.reused and run.steps:
            self._sample.learn_rate(outcome.step_ms, run.plan.precision.dtype)
        try:
            self._policy.learn(
                self._request, run.plan, outcome, capabilities=self._sample.capabilities(), device=self._device
            )
        except PolicyError as error:
            log.warning("denoise: %s", error)
        from . import history

        said = record.to_dict()
        history.add(said, node=self._node)
        return json.dumps(said)


def _clean_up(known: weakref.ref[Any]) -> None:
    """Does a patcher's own clean-up, unless another sample has the network by now: one that is cancelled and left
    behind in a layer may end after the next one has begun, which has the network's state for its own."""
    patcher = known()
    if patcher is not None and getattr(patcher.model, "current_patcher", None) in (None, patcher):
        type(patcher).cleanup(patcher)


def _words(plan: records.DenoisePlan) -> str:
    """A plan in a few words."""
    attention = "fused" if isinstance(plan.attention, records.FusedAttention) else f"{plan.attention.queries} queries"
    samples = "all samples" if plan.samples is None else f"{plan.samples} samples at once"
    return f"{plan.precision.dtype}, conditionings {plan.guidance}, {samples}, attention {attention}"


def _is_same(one: records.DenoisePlan, other: records.DenoisePlan) -> bool:
    return dataclasses.replace(one, reason="") == dataclasses.replace(other, reason="")


def _leaner(plan: records.DenoisePlan, batch: int) -> records.DenoisePlan:
    """The host's own plan after a failure: what holds less than this one."""
    samples = plan.samples or batch
    if plan.guidance == "together":
        plan = dataclasses.replace(plan, guidance="in-turn")
    elif samples > 1:
        plan = dataclasses.replace(plan, samples=max(1, samples // 2))
    elif isinstance(plan.attention, records.FusedAttention):
        plan = dataclasses.replace(plan, attention=records.PiecesAttention(queries=512))
    return dataclasses.replace(plan, reason="less at once than what failed")
