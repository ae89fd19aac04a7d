"""Policies in this process: the plans that they decide on, and what they learn from outcomes."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Generic, Literal, Union, cast, overload

from . import __version__, model, records
from ._json import text_of
from ._kinds import OF_REQUEST, OF_STAGE, CapabilitiesT, CostT, Kind, PlanT, RecordT, RequestT
from .errors import PolicyError

if TYPE_CHECKING:
    from . import _native

#: A plan that failed, with the decision that led to it as far as that is known.
AnyAttempt = Union[
    records.Attempt,
    records.DenoiseAttempt,
    records.TextAttempt,
    records.FailedAttempt,
    records.DenoiseFailedAttempt,
    records.TextFailedAttempt,
]

#: The types of any kind of work.
AnyRequest = Union[records.Request, records.DenoiseRequest, records.TextRequest]
AnyCapabilities = Union[records.Capabilities, records.DenoiseCapabilities, records.TextCapabilities]
AnyPlan = Union[records.Plan, records.DenoisePlan, records.TextPlan]
AnyOutcome = Union[records.Outcome, records.DenoiseOutcome, records.TextOutcome]
AnyQuote = model.Quote[Any, Any, Any, Any, Any]

#: A device: as it was measured, or its facts alone.
AnyDevice = Union[model.Device, records.Device]

#: Prices plans: each has a cost, or in one line the reason why it can't be carried out.
Costs = Callable[[Sequence[PlanT]], Sequence[Union[CostT, str]]]


class Policy:
    """A policy in its sandbox. Safe from threads, which take turns; the interpreter's lock is released meanwhile.

    Args:
        policy: a shipped policy's name, or the path of a .wasm file.
        settings: its settings, by their names.
        memory_bytes: the memory that it may use, in bytes; 16 MiB if it is left out.

    Raises:
        PolicyError: there is no such policy, the file is none, or a setting is wrong.
    """

    __slots__ = ("_identity", "_settings", "_source", "native")

    def __init__(
        self,
        policy: str | os.PathLike[str],
        *,
        settings: Mapping[str, records.Value] | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        from ._extension import native

        self._source = os.fspath(policy)
        self._settings = [(name, _setting(value)) for name, value in (settings or {}).items()]
        self.native = native.Policy(self._source, self._settings, memory_bytes)
        self._identity: records.PolicyIdentity | None = None
        if self.native.warning is not None:
            warnings.warn(self.native.warning, stacklevel=2)

    @property
    def identity(self) -> records.PolicyIdentity:
        """Its name, version, digest and settings, defaults included."""
        if self._identity is None:
            self._identity = records.PolicyIdentity.from_json(self.native.identity())
        return self._identity

    def inspect(self) -> dict[str, Any]:
        """Its description, stages and settings, as `tilewright policy inspect --json` prints them."""
        found: dict[str, Any] = json.loads(self.native.inspect())
        return found

    def check(self, seed: int | None = None) -> dict[str, Any]:
        """The verdict of the gate that a service asks before it takes a policy, as `tilewright policy check --json`
        prints it.

        Args:
            seed: draws the requests that are not fixed; one that nobody knows if it is left out.

        Raises:
            PolicyError: there is no verdict, as the file has changed to something else.
        """
        from ._extension import native

        found: dict[str, Any] = json.loads(native.Policy.check(self._source, self._settings, seed))
        return found

    @overload
    def decide(
        self,
        request: model.Quote[RequestT, CapabilitiesT, PlanT, CostT, RecordT],
        attempts: Sequence[AnyAttempt] = (),
        *,
        running: PlanT | None = None,
        done: int | None = None,
    ) -> Decision[PlanT, CostT, RecordT]: ...

    @overload
    def decide(
        self,
        request: records.Request,
        attempts: Sequence[AnyAttempt] = (),
        *,
        stage: Literal["decode", "encode"] = "decode",
        capabilities: records.Capabilities,
        device: AnyDevice,
        running: records.Plan | None = None,
        done: int | None = None,
        costs: Costs[records.Plan, records.Cost] | model.VaeQuote | None = None,
    ) -> VaeDecision: ...

    @overload
    def decide(
        self,
        request: records.DenoiseRequest,
        attempts: Sequence[AnyAttempt] = (),
        *,
        capabilities: records.DenoiseCapabilities,
        device: AnyDevice,
        running: records.DenoisePlan | None = None,
        done: int | None = None,
        costs: Costs[records.DenoisePlan, records.DenoiseCost] | model.DenoiseQuote | None = None,
    ) -> DenoiseDecision: ...

    @overload
    def decide(
        self,
        request: records.TextRequest,
        attempts: Sequence[AnyAttempt] = (),
        *,
        capabilities: records.TextCapabilities,
        device: AnyDevice,
        costs: Costs[records.TextPlan, records.TextCost] | model.TextQuote | None = None,
    ) -> TextDecision: ...

    def decide(
        self,
        request: AnyQuote | AnyRequest,
        attempts: Sequence[AnyAttempt] = (),
        *,
        stage: records.Stage | None = None,
        capabilities: AnyCapabilities | None = None,
        device: AnyDevice | None = None,
        running: AnyPlan | None = None,
        done: int | None = None,
        costs: Costs[Any, Any] | AnyQuote | None = None,
    ) -> Decision[Any, Any, Any]:
        """Decides on a plan. It never fails because of the policy: what is no usable answer is replaced by the host's
        own plan, and the decision's `fallback` says why.

        Args:
            request: a quote, which has capabilities, device and prices of its own; or a request.
            attempts: the plans that failed, the latest last; `Decision.failed` makes them.
            stage: the stage of a request: `decode` if it is left out, or `encode`.
            capabilities: the plans that can be carried out.
            device: what the work runs on.
            running: the plan of a clip or sample of which a part is done.
            done: its frames that are delivered, or steps that are finished.
            costs: a quote that prices plans, or a function: of a list of plans it gives for each a cost, in bytes and
                milliseconds, or in one line the reason why it can't be carried out. Without it, no plan has a price.

        Raises:
            PolicyError: the question makes no sense.
        """
        if isinstance(request, model.Quote):
            if stage is not None or capabilities is not None or device is not None or costs is not None:
                raise TypeError("a quote has a stage, capabilities, a device and costs of its own")
            kind = request.kind
            if running is None and done is None:
                failed = _listed(attempts, kind) if attempts else None
                return Decision(request.native.decide(self.native, failed), kind, None)
            asked = _Asked(self, request.stage, request.request, request.capabilities, request.device, attempts)
            return Decision(self.native.decide(asked.question(running, done), request.native), kind, asked)
        if capabilities is None or device is None:
            raise TypeError("a request needs capabilities and a device; a quote has them")
        asked = _Asked.of(self, request, stage, capabilities, device, attempts)
        question = asked.question(running, done)
        if costs is None or isinstance(costs, model.Quote):
            answer = self.native.decide(question, None if costs is None else costs.native)
        else:
            prices = _Prices(costs, asked.kind)
            answer = self.native.decide(question, prices)
            if prices.failure is not None:
                raise prices.failure
        return Decision(answer, asked.kind, asked)

    def learn(
        self,
        request: AnyQuote | AnyRequest,
        plan: AnyPlan,
        outcome: AnyOutcome,
        *,
        stage: records.Stage | None = None,
        capabilities: AnyCapabilities | None = None,
        device: AnyDevice | None = None,
        running: AnyPlan | None = None,
        done: int | None = None,
    ) -> None:
        """Tells the policy what a plan led to.

        Args:
            request: the work, as `decide` had it; so are `stage`, `capabilities`, `device`, `running` and `done`.
            plan: the plan that was carried out.
            outcome: what was measured: times in milliseconds, memory in bytes.

        Raises:
            PolicyError: the policy failed at it, or the question makes no sense.
        """
        if isinstance(request, model.Quote):
            asked = _Asked(self, request.stage, request.request, request.capabilities, request.device, ())
        elif capabilities is None or device is None:
            raise TypeError("a request needs capabilities and a device; a quote has them")
        else:
            asked = _Asked.of(self, request, stage, capabilities, device, ())
        failure = self.native.learn(asked.question(running, done), text_of(plan), outcome.to_json())
        if failure is not None:
            raise PolicyError(failure)

    def __repr__(self) -> str:
        return f"<tilewright.Policy {self._source}>"


class Decision(Generic[PlanT, CostT, RecordT]):
    """What a policy decided, and what became of its answer. Each part is read when it is asked for."""

    __slots__ = ("_asked", "_kind", "_parts", "_plan", "_record", "native")

    def __init__(self, native: _native.Decision, kind: Kind, asked: _Asked | None) -> None:
        self.native = native
        self._kind = kind
        self._asked = asked
        self._plan: PlanT | None = None
        self._record: RecordT | None = None
        self._parts: dict[str, Any] | None = None

    @property
    def plan(self) -> PlanT:
        """The plan: the answer after checking, or the host's own."""
        if self._plan is None:
            self._plan = self._kind.plan.from_json(self.native.plan)
        return cast(PlanT, self._plan)

    @property
    def answer(self) -> PlanT | None:
        """The policy's answer; None if it gave none."""
        answer = self._said()["answer"]
        return None if answer is None else self._kind.plan.from_json(answer)

    @property
    def adjusted(self) -> tuple[str, ...]:
        """The changes made to the answer, a line each."""
        return tuple(self._said()["adjusted"])

    @property
    def fallback(self) -> records.Fallback | None:
        """Why the host's own plan replaces the answer, if it does."""
        fallback = self._said()["fallback"]
        return None if fallback is None else records.Fallback.from_json(fallback)

    @property
    def decision_ms(self) -> float:
        """The time that it took, in milliseconds."""
        return self._said()["decision_ms"]

    @property
    def fuel(self) -> int:
        """Fuel that the policy used."""
        return self._said()["fuel"]

    @property
    def estimate(self) -> CostT | None:
        """The plan's price; None if it has none."""
        return self._cost("estimate")

    @property
    def expected(self) -> CostT | None:
        """The price corrected by earlier measurements, if there were any."""
        return self._cost("expected")

    @property
    def record(self) -> RecordT:
        """The decision with all that led to it, as `tilewright decode --dry-run --json` prints it: a line of a file
        that `tilewright policy replay` reads."""
        if self._record is None:
            said = self._said()
            whole = said if self._asked is None or "tilewright" in said else self._asked.record(said)
            self._record = self._kind.record.from_json(whole)
        return cast(RecordT, self._record)

    def failed(self, failure: records.Failure, *, step: int | None = None) -> AnyAttempt:
        """The attempt that the plan's failure makes of this decision, for the next one.

        Args:
            failure: why the plan gave no output.
            step: steps of a sample that were finished before.
        """
        said = self._said()
        return self._kind.failed(
            plan=self.plan,
            failure=failure,
            answer=self.answer,
            adjusted=self.adjusted,
            fallback=self.fallback,
            fuel=said["fuel"],
            step=step,
        )

    def _said(self) -> dict[str, Any]:
        if self._parts is None:
            self._parts = cast("dict[str, Any]", json.loads(self.native.record()))
        return self._parts

    def _cost(self, name: str) -> CostT | None:
        cost = self._said().get(name)
        return None if cost is None else self._kind.cost.from_json(cost)

    def __repr__(self) -> str:
        return f"<tilewright.Decision {self.native.plan}>"


VaeDecision = Decision[records.Plan, records.Cost, records.Record]
"""A decision on a decode or an encode."""

DenoiseDecision = Decision[records.DenoisePlan, records.DenoiseCost, records.DenoiseRecord]
"""A decision on a sample."""

TextDecision = Decision[records.TextPlan, records.TextCost, records.TextRecord]
"""A decision on a text encoder's run."""


class _Asked:
    """A question, and what its record needs of it."""

    __slots__ = ("attempts", "capabilities", "device", "kind", "policy", "request", "stage", "time")

    def __init__(
        self,
        policy: Policy,
        stage: records.Stage,
        request: AnyRequest,
        capabilities: AnyCapabilities,
        device: records.Device,
        attempts: Sequence[AnyAttempt],
    ) -> None:
        self.policy = policy
        self.stage: records.Stage = stage
        self.kind = OF_STAGE[stage]
        self.request = request
        self.capabilities = capabilities
        self.device = device
        self.attempts = attempts
        self.time = time.time()

    @classmethod
    def of(
        cls,
        policy: Policy,
        request: AnyRequest,
        stage: records.Stage | None,
        capabilities: AnyCapabilities,
        device: AnyDevice,
        attempts: Sequence[AnyAttempt],
    ) -> _Asked:
        """A question about a request of its own."""
        kind = OF_REQUEST.get(type(request))
        if kind is None:
            raise TypeError(f"expected a quote or a request, not {type(request).__name__}")
        if stage is not None and stage not in kind.stages:
            raise PolicyError(f"stage {stage}: of {type(request).__name__} expected {' or '.join(kind.stages)}")
        facts = device.facts if isinstance(device, model.Device) else device
        return cls(policy, stage or kind.stages[0], request, capabilities, facts, attempts)

    def question(self, running: AnyPlan | None, done: int | None) -> str:
        """The question as JSON text. Texts of messages are written once, so that further questions take no time."""
        parts = [
            f'{{"stage":"{self.stage}","request":{text_of(self.request)},"device":{text_of(self.device)},'
            f'"capabilities":{text_of(self.capabilities)}'
        ]
        if running is not None:
            parts.append(f',"running":{text_of(running)}')
        if done is not None:
            parts.append(f',"done":{int(done)}')
        attempts = ",".join(
            [f'{{"plan":{text_of(one.plan)},"failure":{text_of(one.failure)}}}' for one in self.attempts]
        )
        parts.append(f',"attempts":[{attempts}]}}')
        return "".join(parts)

    def record(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """The record as JSON's own types, in the order in which the program writes it.

        Args:
            said: the answer's part of it.
        """
        when = datetime.fromtimestamp(self.time, timezone.utc)
        return {
            "tilewright": __version__,
            "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "stage": self.stage,
            "request": self.request.to_dict(),
            "capabilities": self.capabilities.to_dict(),
            "device": self.device.to_dict(),
            "policy": self.policy.identity.to_dict(),
            **said,
            "estimate": said.get("estimate"),
            "attempts": json.loads(_listed(self.attempts, self.kind)),
            "outcome": None,
        }


class _Prices:
    """A caller's prices, for the policy's questions."""

    def __init__(self, costs: Costs[Any, Any], kind: Kind) -> None:
        self._costs = costs
        self._kind = kind
        #: What the caller's function raised, which is no matter of the policy's.
        self.failure: BaseException | None = None

    def __call__(self, plans: str) -> str:
        asked: list[Any] = json.loads(plans)
        try:
            if self.failure is not None:
                raise self.failure
            answers = self._costs([self._kind.plan.from_json(plan) for plan in asked])
            if len(answers) != len(asked):
                raise ValueError(f"costs: {len(answers)} answers for {len(asked)} plans: one for each is needed")
            told = [{"error": one} if isinstance(one, str) else {"cost": one.to_dict()} for one in answers]
            return json.dumps(told)
        except BaseException as error:
            self.failure = error
            return json.dumps([{"error": "its price could not be asked"}] * len(asked))


def _setting(value: records.Value) -> str:
    """A setting as the command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _listed(attempts: Sequence[AnyAttempt], kind: Kind) -> str:
    """Attempts as records have them. Of one that is only a plan and its failure, the rest is not known."""
    whole = [
        one if isinstance(one, kind.failed) else kind.failed(plan=one.plan, failure=one.failure, adjusted=(), fuel=0)
        for one in attempts
    ]
    return f"[{','.join([text_of(one) for one in whole])}]"
