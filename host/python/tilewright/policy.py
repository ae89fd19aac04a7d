"""Policies in this process: the plans that they decide on, and what they learn from outcomes."""

from __future__ import annotations

import functools
import json
import os
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Union, cast, overload

from . import model, records
from ._json import encodable, expect, settings_of, text_of, writing
from ._kinds import OF_REQUEST, CapabilitiesT, CostT, Kind, PlanT, RecordT, RequestT
from .errors import PolicyError
from .model import BYTES, COUNT_OR_NONE, FLAG, NUMBER, TEXT, read_field

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
Costs = Callable[[Sequence[PlanT]], Iterable[Union[CostT, str]]]


#: The reasons why a plan gave no output.
FAILURES = (records.OutOfMemoryFailure, records.NonFiniteFailure, records.OverLimitFailure)


class _Asking(threading.local):
    """The policies that this thread asks with a function of the caller's, which is called meanwhile."""

    def __init__(self) -> None:
        self.policies: list[Policy] = []


_asking = _Asking()

#: Parts of policies that forks have from other processes: there a thread may have held their locks, and no thread is
#: left that lets go of them.
_left: list[_native.Policy] = []


class Policy:
    """A policy in its sandbox. Safe from threads, which take turns; the interpreter's lock is released meanwhile. In a
    fork of the process, or pickled, it is made anew: what it has learnt stays behind.

    Args:
        policy: a shipped policy's name, or the path of a .wasm file.
        settings: its settings, by their names, with `_` or `-` in these.
        memory_bytes: the memory that it may use, in bytes; 16 MiB if it is left out.

    Raises:
        PolicyError: there is no such policy, the file is none, or a setting is wrong.
    """

    __slots__ = ("_again", "_identity", "_last", "_native", "_process", "_settings", "_source")

    def __init__(
        self,
        policy: str | os.PathLike[str],
        *,
        settings: Mapping[str, records.Value] | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        expect("policy", policy, str, os.PathLike)
        self._source: str = read_field("policy", os.fspath(policy), TEXT, PolicyError)
        named = settings_of(settings or {})
        self._settings = [(name, _setting(name, value)) for name, value in named.items()]
        if memory_bytes is not None:
            memory_bytes = read_field("memory_bytes", memory_bytes, BYTES, PolicyError)
        self._identity: records.PolicyIdentity | None = None
        #: The latest question about a request without attempts, which is often asked again.
        self._last: _Question | None = None
        self._make(self._source, memory_bytes)
        if self._native.warning is not None:
            warnings.warn(self._native.warning, stacklevel=2)
        # Wherever it is made again, its file is found.
        is_file = self._source.endswith(".wasm") or os.sep in self._source
        place = os.path.abspath(self._source) if is_file else self._source
        self._again = place, named, memory_bytes

    def _make(self, source: str, memory_bytes: int | None) -> None:
        from ._extension import native

        self._native = native.Policy(source, self._settings, memory_bytes)
        self._process = os.getpid()

    @property
    def native(self) -> _native.Policy:
        """The policy itself, for one question.

        Raises:
            PolicyError: this thread is asking it already.
        """
        if self._process != os.getpid():
            _left.append(self._native)
            source, _, memory_bytes = self._again
            self._make(source, memory_bytes)
        if self in _asking.policies:
            raise PolicyError("the policy is being asked already: ask another Policy from a costs function")
        return self._native

    @contextmanager
    def _asked_with_function(self) -> Generator[_native.Policy, None, None]:
        """The policy, for a question whose prices a function of the caller's gives."""
        found = self.native
        _asking.policies.append(self)
        try:
            yield found
        finally:
            _asking.policies.remove(self)

    def __reduce__(self) -> tuple[Any, ...]:
        source, settings, memory_bytes = self._again
        return functools.partial(type(self), source, settings=settings, memory_bytes=memory_bytes), ()

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

        if seed is not None:
            seed = read_field("seed", seed, COUNT_OR_NONE, PolicyError)
        found: dict[str, Any] = json.loads(native.Policy.check(self._again[0], self._settings, seed))
        return found

    @overload
    def decide(
        self,
        request: model.Quote[RequestT, CapabilitiesT, PlanT, CostT, RecordT],
        attempts: Sequence[AnyAttempt] = (),
        *,
        running: PlanT | None = None,
        done: int | None = None,
        last_resort: bool = False,
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
        last_resort: bool = False,
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
        last_resort: bool = False,
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
        last_resort: bool = False,
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
        last_resort: bool = False,
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
            last_resort: the policy is not asked: the host's own plan is taken that none of the attempts was, as after
                a policy's last attempt.

        Raises:
            PolicyError: the question makes no sense, or no plan is left for the last resort.
        """
        last_resort = read_field("last_resort", last_resort, FLAG, PolicyError)
        if isinstance(request, model.Quote):
            if stage is not None or capabilities is not None or device is not None or costs is not None:
                raise TypeError("a quote has a stage, capabilities, a device and costs of its own")
            kind = request.kind
            if running is None and done is None:
                failed = _listed(attempts, kind) if attempts else None
                return Decision(request.native.decide(self.native, failed, last_resort), kind)
            asked = _Question(
                request.stage, request.request, request.capabilities, request.device, attempts, running, done
            )
            return Decision(self.native.decide(asked.text, request.native, last_resort), kind)
        if capabilities is None or device is None:
            raise TypeError("a request needs capabilities and a device; a quote has them")
        asked = self._last
        if attempts or running is not None or done is not None:
            asked = _Question(stage, request, capabilities, device, attempts, running, done)
        elif asked is None or not asked.asks(stage, request, capabilities, device):
            asked = self._last = _Question(stage, request, capabilities, device)
        if costs is None or isinstance(costs, model.Quote):
            answer = self.native.decide(asked.text, None if costs is None else costs.native, last_resort)
        else:
            if not callable(costs):
                raise TypeError(f"costs: expected a quote or a function, not {type(costs).__name__}")
            prices = _Prices(costs, asked.kind)
            try:
                with self._asked_with_function() as native:
                    answer = native.decide(asked.text, prices, last_resort)
            finally:
                prices.end()
            if prices.failure is not None:
                raise prices.failure
        return Decision(answer, asked.kind)

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
            asked = _Question(
                request.stage, request.request, request.capabilities, request.device, (), running, done
            )
        elif capabilities is None or device is None:
            raise TypeError("a request needs capabilities and a device; a quote has them")
        else:
            asked = _Question(stage, request, capabilities, device, (), running, done)
        expect("plan", plan, asked.kind.plan)
        expect("outcome", outcome, asked.kind.outcome)
        with writing("the plan or its outcome", PolicyError):
            told = encodable(text_of(plan)), encodable(outcome.to_json())
        failure = self.native.learn(asked.text, *told)
        if failure is not None:
            raise PolicyError(failure)

    def __repr__(self) -> str:
        return f"<tilewright.Policy {self._source}>"


class Decision(Generic[PlanT, CostT, RecordT]):
    """What a policy decided, and what became of its answer. Each part is read when it is asked for."""

    __slots__ = ("_kind", "_parts", "_plan", "_record", "native")

    def __init__(self, native: _native.Decision, kind: Kind) -> None:
        self.native = native
        self._kind = kind
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
        """The decision with all that led to it, as `tilewright decode --dry-run --json` prints it; `to_json` makes it a
        line of a file that `tilewright policy replay` reads."""
        if self._record is None:
            self._record = self._kind.record.from_json(self._said())
        return cast(RecordT, self._record)

    def failed(self, failure: records.Failure, *, step: int | None = None) -> AnyAttempt:
        """The attempt that the plan's failure makes of this decision, for the next one.

        Args:
            failure: why the plan gave no output.
            step: steps of a sample that were finished before.
        """
        expect("failure", failure, *FAILURES)
        step = None if step is None else read_field("step", step, COUNT_OR_NONE, PolicyError)
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

    def __reduce__(self) -> NoReturn:
        raise TypeError("a decision stays in its process: send its plan or its record")

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


class _Question:
    """What a policy is asked, as JSON text."""

    __slots__ = ("_parts", "kind", "text")

    def __init__(
        self,
        stage: records.Stage | None,
        request: AnyRequest,
        capabilities: AnyCapabilities,
        device: AnyDevice,
        attempts: Sequence[AnyAttempt] = (),
        running: AnyPlan | None = None,
        done: int | None = None,
    ) -> None:
        kind = OF_REQUEST.get(type(request))
        if kind is None:
            raise TypeError(f"expected a quote or a request, not {type(request).__name__}")
        if stage is not None and stage not in kind.stages:
            raise PolicyError(f"stage {stage}: of {type(request).__name__} expected {' or '.join(kind.stages)}")
        expect("capabilities", capabilities, kind.capabilities)
        expect("device", device, model.Device, records.Device)
        self.kind = kind
        self._parts = stage, request, capabilities, device
        facts = device.facts if isinstance(device, model.Device) else device
        with writing("the question", PolicyError):
            written = self._written(stage or kind.stages[0], request, capabilities, facts, attempts, running, done)
            self.text = encodable(written)

    def _written(
        self,
        stage: records.Stage,
        request: AnyRequest,
        capabilities: AnyCapabilities,
        device: records.Device,
        attempts: Sequence[AnyAttempt],
        running: AnyPlan | None,
        done: int | None,
    ) -> str:
        said = [
            f'{{"stage":"{stage}","request":{text_of(request)},"device":{text_of(device)},'
            f'"capabilities":{text_of(capabilities)}'
        ]
        if done is not None and running is None:
            raise PolicyError("done: goes with running: give the plan of the work that is under way, too")
        if running is not None:
            expect("running", running, self.kind.plan)
            said.append(f',"running":{text_of(running)}')
        if done is not None:
            said.append(f',"done":{read_field("done", done, COUNT_OR_NONE, PolicyError)}')
        if attempts:
            said.append(f',"attempts":{_listed(attempts, self.kind)}')
        said.append("}")
        return "".join(said)

    def asks(
        self,
        stage: records.Stage | None,
        request: AnyRequest,
        capabilities: AnyCapabilities | None,
        device: AnyDevice | None,
    ) -> bool:
        """Whether it is made of these very parts, which don't change."""
        own = self._parts
        return own[1] is request and own[2] is capabilities and own[3] is device and own[0] == stage


class _Prices:
    """A caller's prices, for the policy's questions."""

    def __init__(self, costs: Costs[Any, Any], kind: Kind) -> None:
        self._costs: Costs[Any, Any] = costs
        self._kind = kind
        #: What the caller's function raised, which is no matter of the policy's.
        self.failure: BaseException | None = None

    def end(self) -> None:
        """Lets go of the caller's function: the policy keeps the prices of its last question, and the function may hold who
        holds the policy."""
        self._costs = _no_prices

    def __call__(self, plans: str) -> str:
        asked: list[Any] = json.loads(plans)
        try:
            if self.failure is not None:
                raise self.failure
            said: Any = self._costs([self._kind.plan.from_json(plan) for plan in asked])
            if isinstance(said, str) or not isinstance(said, Iterable):
                raise TypeError(f"costs: expected a cost or a reason for each plan, not {type(said).__name__}")
            answers = list(cast(Iterable[Any], said))
            if len(answers) != len(asked):
                raise PolicyError(f"costs: {len(answers)} answers for {len(asked)} plans: one for each is needed")
            return json.dumps([self._told(one) for one in answers])
        except BaseException as error:
            self.failure = error
            return json.dumps([{"error": "its price could not be asked"}] * len(asked))


    def _told(self, answer: Any) -> dict[str, Any]:
        """A price of the caller's in JSON."""
        if isinstance(answer, str):
            return {"error": read_field("costs", answer, TEXT, PolicyError)}
        expect("costs: a price", answer, self._kind.cost, str)
        for field in fields(answer):
            value = getattr(answer, field.name)
            number = read_field(f"costs: {field.name}", value, NUMBER, PolicyError)
            if number < 0 or (field.type == "int" and not isinstance(value, int)):
                expected = "a whole number from 0" if field.type == "int" else "a number from 0"
                raise PolicyError(f"costs: {field.name}: expected {expected}, not {value!r}")
        return {"cost": answer.to_dict()}


def _no_prices(plans: Sequence[Any]) -> list[Any]:
    return ["the question is over"] * len(plans)


def _setting(name: str, value: records.Value) -> str:
    """A setting as the command line has it."""
    read_field("settings", name, TEXT, PolicyError)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return read_field(f"settings: {name}", text, TEXT, PolicyError)


def _listed(attempts: Sequence[AnyAttempt], kind: Kind) -> str:
    """Attempts as records have them. Of one that is only a plan and its failure, the rest is not known."""
    for one in attempts:
        expect("an attempt", one, kind.failed, kind.attempt)
    whole = [
        one if isinstance(one, kind.failed) else kind.failed(plan=one.plan, failure=one.failure, adjusted=(), fuel=0)
        for one in attempts
    ]
    with writing("an attempt", PolicyError):
        return encodable(f"[{','.join([text_of(one) for one in whole])}]")
