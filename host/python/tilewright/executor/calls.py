"""The common part of forwards by policy: a network is described, plans are asked for, and weights are cast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, cast

import torch
from torch import Tensor, nn

from .._kinds import CapabilitiesT, CostT, PlanT, RequestT
from ..errors import PolicyError
from ..policy import Decision
from .fitting import Question, Subject
from .networks import Measured, Weights, assumed_operations
from .placement import Placement, Resident, is_trained, keep_types, others_way
from .residency import Cast

#: Answers of the policy that are tried before the host's own plans take over, and attempts in all.
POLICY_ATTEMPTS, MOST_ATTEMPTS = 3, 8


class Call(Generic[RequestT, CapabilitiesT, PlanT, CostT]):
    """The common part of both kinds of forwards: describe the network, cast, and try plans until one has an output."""

    def __init__(self, resident: Resident, placement: Placement) -> None:
        self.resident = resident
        self.placement = placement
        #: Memory and time that forwards took, by the sizes of their inputs.
        self.measured: dict[Any, Measured] = {}

    @property
    def network(self) -> nn.Module:
        """The network, which keeps what does its forwards."""
        return self.resident.network

    def is_left_alone(self) -> bool:
        """True if a forward is run as it is: others have the weights in hand, or gradients are asked for."""
        if is_trained(self.network):
            self.resident.residency.restore()
            return True
        way = others_way(self.network)
        if way is not None:
            self.placement.note(f"{self.resident.name}: {way}, so its weights stay as they are")
        return way is not None

    def subject(self, key: Any, samples: int, tokens: int, width: int) -> Subject:
        """The network as questions have it, for so many samples of so many tokens."""
        return Subject(
            weights=Weights.of(self.network),
            places=self.placement.places,
            device=self.placement.device,
            tokens=samples * tokens,
            width=width,
            operations=assumed_operations(self.network, samples * tokens, width, tokens),
            measured=self.measured.get(key),
            is_movable=self.resident.is_movable,
            resident_bytes=self.resident.on_device(),
        )

    def keep(self, key: Any, peak_bytes: int, dtype: torch.dtype, seconds: float) -> None:
        """Keeps what a forward took, for later questions: the highest memory, and the shortest time."""
        new = Measured(peak_bytes, dtype, seconds)
        before = self.measured.get(key)
        if before is not None:
            scaled = before.in_type(dtype)
            fastest = min(before.seconds, seconds) if before.dtype is dtype else seconds
            new = Measured(max(scaled, peak_bytes), dtype, fastest)
        self.measured[key] = new

    def decide(
        self, question: Question[RequestT, CapabilitiesT, PlanT, CostT], attempts: Sequence[Any]
    ) -> tuple[Any, PlanT, tuple[str, ...]]:
        """A decision, its plan as it can be carried out, and a line for each change."""
        ask = cast("Callable[..., Decision[Any, Any, Any]]", self.placement.policy.decide)
        decision = ask(
            question.request,
            attempts,
            capabilities=question.capabilities,
            device=question.device,
            costs=question.costs,
            last_resort=len(attempts) >= POLICY_ATTEMPTS,
        )
        plan, notes = question.fit(decision.plan)
        fallback = decision.fallback
        if fallback is not None and fallback.reason == "error":
            self.placement.note(f"{self.resident.name}: the policy gave no plan: {fallback.detail}")
        return decision, plan, (*notes, *_dropped(decision, plan, (*decision.adjusted, *notes)))

    def following(
        self, question: Question[RequestT, CapabilitiesT, PlanT, CostT], attempts: Sequence[Any]
    ) -> tuple[Any, PlanT, tuple[str, ...]] | None:
        """The decision after attempts that failed; None if no plan is left that was not tried."""
        if len(attempts) >= MOST_ATTEMPTS:
            return None
        try:
            found = self.decide(question, attempts)
        except PolicyError:
            return None
        return None if repeats(found[1], attempts) else found

    def casts(self, dtype: torch.dtype) -> tuple[Cast | None, tuple[torch.dtype, torch.dtype] | None]:
        """The types that weights and inputs are cast to for a plan's type; None if it is their own."""
        own = next((one.dtype for one in self.network.parameters() if one.is_floating_point()), dtype)
        main = Weights.of(self.network).dtype
        if main is dtype:
            return None, None
        widens = dtype.itemsize > main.itemsize
        is_kept = keep_types(self.network)

        def cast_of(name: str, tensor: Tensor) -> torch.dtype | None:
            if not tensor.is_floating_point() or (not widens and (tensor.dtype is not main or is_kept(name))):
                return None
            # Tables of positions are made in f32 by intent.
            is_table = not isinstance(tensor, nn.Parameter) and not widens
            return None if is_table else dtype

        return cast_of, (own if own.is_floating_point else main, dtype)


def _dropped(decision: Any, plan: Any, told: Sequence[str]) -> tuple[str, ...]:
    """A line for each part of the policy's answer that the plan lacks, and of which no line tells."""
    answer = None if decision.fallback is not None else decision.answer
    lines: list[str] = []
    if answer is None:
        return ()
    for name, value in answer.options:
        if (name, value) not in plan.options and not any(name in line for line in told):
            lines.append(f"{name} {value} → left out: it can't be carried out here")
    for part in ("ahead", "samples"):
        asked, kept = getattr(answer, part, None), getattr(plan, part, None)
        if asked is not None and asked != kept and not any(line.startswith(part) for line in told):
            lines.append(f"{part} {asked} → {'all' if kept is None else kept}: it can't be carried out here")
    return tuple(lines)


def repeats(plan: Any, attempts: Sequence[Any]) -> bool:
    """True if a plan was tried already, whatever its reason."""
    return any(replace(one.plan, reason="") == replace(plan, reason="") for one in attempts)


def record_of(decision: Any, plan: Any, notes: tuple[str, ...], attempts: Sequence[Any], outcome: Any) -> Any:
    """A decision's record with what was carried out and what came of it."""
    record = decision.record
    return replace(
        record, plan=plan, adjusted=(*record.adjusted, *notes), attempts=tuple(attempts), outcome=outcome
    )
