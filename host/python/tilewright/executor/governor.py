"""Decodes and encodes by policy: decide, run, after a failure the next plan, learn, record."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from .. import records
from ..errors import ModelError, PolicyError, one_line
from ..model import FLAG, LIMIT, read_field
from ..policy import Policy, VaeDecision
from .asking import Aims, Extents, InputError, NoPrice, Question, extents_of, has_price
from .autoencoders import Autoencoder
from .device import device_of, placed
from .failures import WorkFailed, advice_on, failure_of, without_frames
from .unplanned import computing_device, module_dtype, output_of_module, record_of_module
from .peak import Peak, collect, trim
from .running import Cancelled, PlanError, Run
from .tiles import carry_out

#: Records that are kept.
MOST_RECORDS = 256

#: Answers of the policy that are tried before the host's own plans take over, as the program has it.
POLICY_ATTEMPTS = 3

#: Attempts in all.
MOST_ATTEMPTS = 6

#: Seconds between two looks at a cancellation while another thread's work is under way.
_PATIENCE = 0.05

_log = logging.getLogger("tilewright")

Stage = Literal["decode", "encode"]


class _Wishes(NamedTuple):
    """The caller's functions for one piece of work."""

    on_progress: Callable[[int, int], None] | None
    is_cancelled: Callable[[], bool] | None
    on_decision: Callable[[VaeDecision], None] | None

    def check(self) -> None:
        if self.is_cancelled is not None and self.is_cancelled():
            raise Cancelled


class VaeGovernor:
    """An autoencoder whose decodes and encodes a policy decides. Threads take turns.

    The output is what the module gives, in the type that it gives it in, without a gradient. An input that there are no
    prices for, such as pictures whose sides are no multiples of the scale, goes to the module as it is, and the record
    says so.

    Args:
        autoencoder: the module, as `find_autoencoder` gives it.
        policy: a policy, or its name or file.
        settings: the settings of a policy that is named.
        memory_limit: the most that the work may hold beside the weights, in bytes or as `"8GiB"`; 80 % of what is free
            if it is left out. A plan that is expected to hold more is not run.
        objective: what counts most.
        allows_blended: tiles that are cross-faded, which is not quite the module's own output, are allowed where an
            exact plan fits, too; otherwise they are the last resort.
        allows_narrower: types narrower than that of the module's weights are allowed.
        on_record: called with each record.

    Attributes:
        records: the latest 256, the newest last.

    Raises:
        PolicyError: there is no such policy, or a setting is wrong.
        ModelError: the limit is none.
    """

    records: list[records.Record]

    def __init__(
        self,
        autoencoder: Autoencoder,
        policy: Policy | str = "adaptive",
        *,
        settings: Mapping[str, records.Value] | None = None,
        memory_limit: int | str | None = None,
        objective: records.Objective = "balanced",
        allows_blended: bool = False,
        allows_narrower: bool = True,
        on_record: Callable[[records.Record], None] | None = None,
    ) -> None:
        if isinstance(policy, Policy) and settings:
            raise PolicyError("settings: a Policy has its own: leave them out, or name the policy")
        self.autoencoder = autoencoder
        self.policy = policy if isinstance(policy, Policy) else Policy(policy, settings=settings)
        self.records = []
        self.on_record = on_record
        self._lock = threading.RLock()
        self._aims = Aims(None, "balanced", False)
        #: Formats that ran on a GPU before.
        self._warm: set[tuple[Any, ...]] = set()
        self.aim(
            memory_limit=memory_limit,
            objective=objective,
            allows_blended=allows_blended,
            allows_narrower=allows_narrower,
        )

    def aim(
        self,
        *,
        memory_limit: int | str | None = None,
        objective: records.Objective = "balanced",
        allows_blended: bool = False,
        allows_narrower: bool = True,
    ) -> None:
        """Changes the user's wishes for the next work; the arguments are the constructor's.

        Raises:
            ModelError: the limit is none, or there is no such objective.
        """
        limit = None if memory_limit is None else read_field("memory_limit", memory_limit, LIMIT)
        if objective not in ("fastest", "balanced", "leanest"):
            raise ModelError(f"objective: expected fastest, balanced or leanest, not {objective!r}")
        self._aims = Aims(
            limit,
            objective,
            read_field("allows_blended", allows_blended, FLAG),
            read_field("allows_narrower", allows_narrower, FLAG),
        )

    def decide(
        self,
        stage: Stage,
        shape: Sequence[int],
        *,
        device: torch.device | str,
        dtype: torch.dtype,
        attempts: Sequence[records.FailedAttempt] = (),
    ) -> VaeDecision:
        """The decision on latents or pixels of a shape; nothing is run.

        Args:
            stage: `decode` or `encode`.
            shape: [N, C, h, w] of latents or [N, 3, H, W] of pixels; of a video's with an axis of frames after the
                channels.
            device: the device that computes.
            dtype: the type of the module's weights.
            attempts: plans that failed, as `Decision.failed` makes them.

        Raises:
            InputError: the autoencoder takes no such shape.
            ModelError: there are no prices for it, or not even the leanest plan fits the limit.
        """
        extents = extents_of(self.autoencoder, stage, shape)
        with self._turn(None):
            return self._question(stage, extents, placed(device), dtype, None).decide(attempts)

    def decode(
        self,
        latents: Tensor,
        *,
        device: torch.device | str | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        is_cancelled: Callable[[], bool] | None = None,
        on_decision: Callable[[VaeDecision], None] | None = None,
    ) -> Tensor:
        """The output of the module's own decode, raw and not clamped.

        Args:
            latents: [N, C, h, w], or [N, C, T, h, w] of a video's, in the module's own space.
            device: the device that computes; that of the module's weights, or that its hooks bring them to, if it is
                left out.
            on_progress: called with the pieces that are done, and with all of them; anew for each attempt.
            is_cancelled: asked between pieces.
            on_decision: called before each attempt, as to make room for it.

        Returns:
            Pictures [N, 3, H, W] or clips [N, 3, T, H, W].

        Raises:
            InputError: the autoencoder takes no such latents.
            ModelError: not even the leanest plan fits the user's limit.
            WorkFailed: no plan gave an output.
            Cancelled: `is_cancelled` said so.
        """
        return self._govern("decode", latents, device, _Wishes(on_progress, is_cancelled, on_decision))

    def encode(
        self,
        pixels: Tensor,
        *,
        device: torch.device | str | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        is_cancelled: Callable[[], bool] | None = None,
        on_decision: Callable[[VaeDecision], None] | None = None,
    ) -> Tensor:
        """The moments that the module's own encode makes a distribution of: means and log variances.

        Args:
            pixels: [N, 3, H, W], or [N, 3, T, H, W] of a video's, in -1 … 1.
            device: as `decode` has it, as are the others.
            on_progress: as above.
            is_cancelled: as above.
            on_decision: as above.

        Returns:
            [N, 2C, h, w] or [N, 2C, T, h, w].

        Raises:
            InputError: the autoencoder takes no such pixels.
            ModelError: not even the leanest plan fits the user's limit.
            WorkFailed: no plan gave an output.
            Cancelled: `is_cancelled` said so.
        """
        return self._govern("encode", pixels, device, _Wishes(on_progress, is_cancelled, on_decision))

    def _govern(self, stage: Stage, values: Tensor, device: torch.device | str | None, wishes: _Wishes) -> Tensor:
        extents = extents_of(self.autoencoder, stage, values.shape)
        if not values.is_floating_point():
            name = "latents" if stage == "decode" else "pixels"
            raise InputError(f"{name}: {values.dtype} holds no fractions: bring them to a floating-point type")
        with self._turn(wishes.is_cancelled), torch.no_grad():
            wishes.check()
            place = placed(device) if device is not None else computing_device(self.autoencoder.module, values)
            if not has_price(self.autoencoder, extents):
                size = f"{extents.frames} frames of {extents.width}×{extents.height} pixels"
                return self._run_module(stage, values, extents, place, f"no plan has a price at {size}")
            dtype = module_dtype(self.autoencoder.module, values)
            try:
                question = self._question(stage, extents, place, dtype, wishes.is_cancelled)
                return self._attempts(question, values, place, dtype, wishes)
            except (NoPrice, PlanError) as error:
                reason = str(error)
            return self._run_module(stage, values, extents, place, reason)

    def _question(
        self,
        stage: Stage,
        extents: Extents,
        place: torch.device,
        dtype: torch.dtype,
        is_cancelled: Callable[[], bool] | None,
    ) -> Question:
        device = device_of(place, is_cancelled=is_cancelled)
        return Question.of(self.policy, self.autoencoder, stage, extents, device, dtype, self._aims)

    def _attempts(
        self, question: Question, values: Tensor, place: torch.device, dtype: torch.dtype, wishes: _Wishes
    ) -> Tensor:
        """Plans one after the other, until one gives an output."""
        failed: list[records.FailedAttempt] = []
        decision = question.decide()
        while True:
            excess, error = question.excess(decision), None
            failure: records.Failure
            if excess is not None:
                failure = records.OverLimitFailure(bytes=excess)
            else:
                if wishes.on_decision is not None:
                    wishes.on_decision(decision)
                try:
                    output, outcome = self._attempt(question, decision, values, place, dtype, wishes)
                except Cancelled:
                    self._keep(decision, failed, None)
                    raise
                except Exception as raised:
                    found = failure_of(raised)
                    if found is None:
                        raise
                    failure, error = found, without_frames(raised)
                else:
                    outcome = replace(outcome, attempts=len(failed) + 1)
                    self._learn(question, decision, outcome)
                    self._keep(decision, failed, outcome)
                    return output
                collect(place)
            _log.info("the attempt failed: %s: %s", decision.plan.reason, failure)
            failed.append(cast(records.FailedAttempt, decision.failed(failure)))
            following = _next(question, failed)
            if following is None:
                self._keep(decision, failed[:-1], None)
                raise WorkFailed(advice_on(question.stage, failed, values, error), len(failed), failure) from error
            decision = following

    def _attempt(
        self,
        question: Question,
        decision: VaeDecision,
        values: Tensor,
        place: torch.device,
        dtype: torch.dtype,
        wishes: _Wishes,
    ) -> tuple[Tensor, records.Outcome]:
        plan = decision.plan
        on_progress = wishes.on_progress
        # The C library keeps freed memory in pieces, so that a process holds more than its tensors do, by half and
        # more: a limit that the user has set is one of the process.
        if place.type == "cpu" and (plan.release == "each-step" or self._aims.memory_limit is not None):
            on_progress = _trimming(on_progress, place)
        run = Run.of(plan, place, on_progress=on_progress, is_cancelled=wishes.is_cancelled)
        run.check()
        format_ = (place, plan.precision, plan.layout)
        is_cold = place.type == "cuda" and format_ not in self._warm
        try:
            with Peak(place) as peak:
                output = carry_out(self.autoencoder, question.stage, values, run).to(dtype)
        finally:
            if plan.release != "keep":
                trim(place)
        self._warm.add(format_)
        estimate = decision.estimate
        measured = peak.bytes if peak.bytes is not None else estimate.peak_bytes if estimate is not None else 0
        outcome = records.Outcome(
            elapsed_ms=peak.seconds * 1000,
            load_ms=0.0,
            peak_bytes=measured,
            attempts=1,
            pool=peak.pool,
            cold=is_cold,
        )
        return output, outcome

    def _learn(self, question: Question, decision: VaeDecision, outcome: records.Outcome) -> None:
        if outcome.cold:
            # Libraries were loaded meanwhile: the time says little of the next.
            return
        try:
            question.learn(decision.plan, outcome)
        except PolicyError as error:
            _log.warning("the policy did not learn: %s", error)

    def _run_module(
        self, stage: Stage, values: Tensor, extents: Extents, place: torch.device, reason: str
    ) -> Tensor:
        """The module's own way, where no plan can be carried out."""
        with Peak(place) as peak:
            output = output_of_module(self.autoencoder, stage, values, place)
        note = f"run whole, as the module does: {one_line(reason)}"
        self._add(
            record_of_module(self.autoencoder, stage, extents, place, self.policy.identity, self._aims, note, peak)
        )
        return output

    def _keep(
        self,
        decision: VaeDecision,
        failed: Sequence[records.FailedAttempt],
        outcome: records.Outcome | None,
    ) -> None:
        self._add(replace(decision.record, attempts=tuple(failed), outcome=outcome))

    def _add(self, record: records.Record) -> None:
        self.records.append(record)
        del self.records[:-MOST_RECORDS]
        if self.on_record is not None:
            self.on_record(record)

    @contextmanager
    def _turn(self, is_cancelled: Callable[[], bool] | None) -> Generator[None, None, None]:
        """This thread's turn; while it waits, it may be cancelled."""
        while not self._lock.acquire(timeout=_PATIENCE):
            if is_cancelled is not None and is_cancelled():
                raise Cancelled
        try:
            yield
        finally:
            self._lock.release()


def _trimming(on_progress: Callable[[int, int], None] | None, place: torch.device) -> Callable[[int, int], None]:
    """Gives freed memory back to the system at each step."""

    def tell(done: int, total: int) -> None:
        trim(place)
        if on_progress is not None:
            on_progress(done, total)

    return tell


def _next(question: Question, failed: Sequence[records.FailedAttempt]) -> VaeDecision | None:
    """The decision after a failure; None if it is time to give up. No plan that failed is tried again: the host's own
    stands in for a policy that repeats one."""
    last = failed[-1]
    is_wide = last.plan.precision.dtype in ("f32", "tf32")
    if len(failed) >= MOST_ATTEMPTS or (isinstance(last.failure, records.NonFiniteFailure) and is_wide):
        return None
    tried = [_work_of(attempt.plan) for attempt in failed]
    if len(failed) < POLICY_ATTEMPTS:
        answered = question.decide(failed)
        if _work_of(answered.plan) not in tried:
            return answered
    own = question.last_resort(failed)
    return own if own is not None and _work_of(own.plan) not in tried else None


def _work_of(plan: records.Plan) -> tuple[Any, ...]:
    """The part of a plan that decides on its memory and overflow: plans that differ in anything else fail alike."""
    space = plan.space
    if not isinstance(space, records.WholeSpace):
        space = replace(space, overlap=0)
    return plan.precision, space, plan.time, plan.batch, plan.options
