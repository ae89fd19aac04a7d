"""Policies in this process: decisions, threads, memory, attempts, learning, errors."""

from __future__ import annotations

import copy
import dataclasses
import gc
import gzip
import json
import os
import pickle
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tilewright
from conftest import ROOT, SHAPES, VAE, program
from tilewright import model, records

pytest.importorskip("tilewright._native")

#: Policies that are broken, or of an earlier contract.
CORPUS = ROOT / "host" / "policy" / "tests" / "corpus" / "0.1.0"


def unpacked(name: str, to: Path) -> Path:
    """A policy of the corpus, whose modules are kept packed, as a file."""
    to.write_bytes(gzip.decompress((CORPUS / f"{name}.gz").read_bytes()))
    return to


@pytest.fixture(scope="module")
def quote(device: tilewright.Device) -> model.VaeQuote:
    return tilewright.Model(VAE).decode(device, width=1024, height=1024, memory_limit=2**30)


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_policy_describes_itself(adaptive: tilewright.Policy) -> None:
    assert (adaptive.identity.name, adaptive.identity.digest[:7]) == ("adaptive", "sha256:")
    assert adaptive.identity.settings["min-tile"] == 256
    assert adaptive.inspect() == json.loads(program("policy", "inspect", "adaptive", "--json"))
    fixed = tilewright.Policy("fixed", settings={"space": "blended", "tile": 128})
    assert fixed.identity.settings["tile"] == "128"


def test_the_gate_says_what_the_program_says() -> None:
    said = json.loads(program("policy", "check", "fixed", "--json", "--seed", "1"))
    found = tilewright.Policy("fixed").check(seed=1)
    # How long it took is another matter each time.
    times = ("elapsed_ms", "worst")
    assert {**found, **dict.fromkeys(times)} == {**said, **dict.fromkeys(times)} and found["worst"]


def test_a_request_is_decided_as_its_quote(adaptive: tilewright.Policy, quote: model.VaeQuote) -> None:
    of_quote = adaptive.decide(quote)
    asked: dict[str, Any] = {"capabilities": quote.capabilities, "device": quote.device}
    of_request = adaptive.decide(quote.request, costs=quote, **asked)
    of_caller = adaptive.decide(quote.request, costs=quote.estimates, **asked)
    for decision in (of_request, of_caller):
        assert decision.plan == of_quote.plan and decision.answer == of_quote.answer
        assert decision.fuel == of_quote.fuel and decision.adjusted == of_quote.adjusted
        record = decision.record
        assert record.request == quote.request and record.policy == adaptive.identity and record.stage == "decode"
        assert records.Record.from_json(record.to_json()) == record
    assert of_quote.estimate == quote.estimate(of_quote.plan) == of_quote.record.estimate
    assert of_quote.fallback is None and of_quote.decision_ms > 0
    # Without prices, adaptive has nothing to go by: whatever it answers, there is a plan.
    assert adaptive.decide(quote.request, **asked).plan


def test_a_policy_lets_go_of_the_callers_prices(quote: model.VaeQuote) -> None:
    class Holder:
        def __init__(self) -> None:
            self.policy = tilewright.Policy("adaptive")

        def costs(self, plans: Sequence[records.Plan]) -> list[records.Cost | str]:
            return quote.estimates(plans)

    def asked() -> weakref.ref[Holder]:
        holder = Holder()
        holder.policy.decide(
            quote.request, capabilities=quote.capabilities, device=quote.device, costs=holder.costs
        )
        return weakref.ref(holder)

    holder = asked()
    gc.collect()
    assert holder() is None


def test_prices_of_the_caller_count(adaptive: tilewright.Policy, quote: model.VaeQuote) -> None:
    asked: list[records.Plan] = []

    def costs(plans: Sequence[records.Plan]) -> list[records.Cost | str]:
        asked.extend(plans)
        return [
            cost if plan.space.kind != "whole" else "not in one piece"
            for plan, cost in zip(plans, quote.estimates(plans))
        ]

    decision = adaptive.decide(quote.request, capabilities=quote.capabilities, device=quote.device, costs=costs)
    assert asked and decision.plan.space.kind != "whole"

    def broken(plans: Sequence[records.Plan]) -> list[records.Cost | str]:
        raise KeyError("no table")

    def short(plans: Sequence[records.Plan]) -> list[records.Cost | str]:
        return []

    with pytest.raises(KeyError, match="no table"):
        adaptive.decide(quote.request, capabilities=quote.capabilities, device=quote.device, costs=broken)
    with pytest.raises(tilewright.PolicyError, match="0 answers for"):
        adaptive.decide(quote.request, capabilities=quote.capabilities, device=quote.device, costs=short)


def test_prices_are_of_any_kind_but_make_sense(adaptive: tilewright.Policy, quote: model.VaeQuote) -> None:
    def decide(costs: Any) -> records.Plan:
        asked: dict[str, Any] = {"capabilities": quote.capabilities, "device": quote.device}
        return adaptive.decide(quote.request, costs=costs, **asked).plan

    def said(answer: Any, *, for_all: bool = True) -> Any:
        def costs(plans: Sequence[records.Plan]) -> Any:
            return [answer] * len(plans) if for_all else answer

        return costs

    def priced(**changed: Any) -> Any:
        cost: dict[str, Any] = {"peak_bytes": 1, "elapsed_ms": 1.0, "tiles": 1, "shapes": 1, "rework": 1.0, **changed}
        return said(records.Cost(**cost))

    def one_by_one(plans: Sequence[records.Plan]) -> Iterator[records.Cost | str]:
        yield from quote.estimates(plans)

    assert decide(one_by_one) == adaptive.decide(quote).plan
    for costs, words in [
        (priced(elapsed_ms=-1), "costs: elapsed_ms: expected a number from 0, not -1"),
        (priced(elapsed_ms=float("nan")), "costs: elapsed_ms: expected a finite number"),
        (priced(peak_bytes=1.5), "costs: peak_bytes: expected a whole number from 0, not 1.5"),
        (priced(rework="much"), "costs: rework: expected a finite number, not 'much'"),
    ]:
        with pytest.raises(tilewright.PolicyError, match=words):
            decide(costs)
    for costs in (said("no", for_all=False), said(None, for_all=False), said(1), 5):
        with pytest.raises(TypeError, match="^costs: "):
            decide(costs)


def test_a_policy_is_not_asked_while_it_asks(adaptive: tilewright.Policy, quote: model.VaeQuote) -> None:
    asked: dict[str, Any] = {"capabilities": quote.capabilities, "device": quote.device}
    fresh = tilewright.Policy("adaptive")
    outcome = records.Outcome(
        elapsed_ms=1.0, load_ms=0.0, peak_bytes=1, attempts=1, pool=records.PoolStatistics(hits=1, misses=1, held_bytes=0)
    )
    plan = adaptive.decide(quote).plan

    def through_another(again: Any) -> Any:
        def costs(plans: Sequence[records.Plan]) -> list[records.Cost | str]:
            adaptive.decide(quote.request, costs=lambda plans: again() or quote.estimates(plans), **asked)
            return quote.estimates(plans)

        return costs

    for again in (
        lambda: fresh.decide(quote),
        lambda: fresh.decide(quote.request, costs=quote, **asked),
        lambda: fresh.decide(quote.request, costs=quote.estimates, **asked),
        lambda: fresh.learn(quote, plan, outcome),
        lambda: fresh.identity,
    ):
        for costs in (lambda plans, again=again: again(), through_another(again)):  # pyright: ignore
            with pytest.raises(tilewright.PolicyError, match="is being asked already: ask another Policy"):
                fresh.decide(quote.request, costs=costs, **asked)  # pyright: ignore
    assert fresh.decide(quote).plan == plan
    assert fresh.decide(quote.request, costs=lambda plans: adaptive.decide(quote) and quote.estimates(plans), **asked)


def test_a_policy_is_described_while_prices_are_asked(quote: model.VaeQuote) -> None:
    policy = tilewright.Policy("adaptive")
    asked: dict[str, Any] = {"capabilities": quote.capabilities, "device": quote.device}
    names: list[str] = []
    other = threading.Thread(target=lambda: names.append(policy.identity.name))

    def costs(plans: Sequence[records.Plan]) -> list[records.Cost | str]:
        if not names and not other.is_alive():
            other.start()
            # It gets as far as it can meanwhile.
            time.sleep(0.2)
        return quote.estimates(plans)

    assert policy.decide(quote.request, costs=costs, **asked).fallback is None
    other.join()
    assert names == ["adaptive"]


def test_values_that_json_does_not_have_are_said(adaptive: tilewright.Policy, quote: model.VaeQuote) -> None:
    asked: dict[str, Any] = {"capabilities": quote.capabilities, "device": quote.device}
    plan = adaptive.decide(quote).plan
    half, named = dataclasses.replace(plan, reason="\ud800"), dataclasses.replace(quote.device, name="\ud800")
    failure = records.OutOfMemoryFailure(bytes=1)
    attempt = records.Attempt(plan=half, failure=failure)
    for wrong in (
        lambda: adaptive.decide(quote.request, capabilities=quote.capabilities, device=named),
        lambda: adaptive.decide(quote.request, [attempt], **asked),
        lambda: adaptive.decide(quote, [attempt]),
    ):
        with pytest.raises(tilewright.PolicyError, match="can't be written as JSON"):
            wrong()
    with pytest.raises(tilewright.ModelError, match="a plan can't be written as JSON"):
        quote.estimates([half])


def test_forks_have_policies_of_their_own(adaptive: tilewright.Policy, quote: model.VaeQuote, tmp_path: Path) -> None:
    unpacked("wat-whole.wasm", tmp_path / "own.wasm")
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        of_file = tilewright.Policy("own.wasm")
    finally:
        os.chdir(here)
    expected = adaptive.decide(quote).plan, of_file.decide(quote).plan
    ends = threading.Event()

    def decide() -> None:
        while not ends.is_set():
            adaptive.decide(quote)
            of_file.decide(quote)

    with ThreadPoolExecutor(2) as pool:
        deciding = [pool.submit(decide) for _ in range(2)]
        try:
            for _ in range(5):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DeprecationWarning)
                    forked = os.fork()
                if forked == 0:
                    code = 9
                    try:
                        # One that hangs is ended.
                        signal.alarm(120)
                        code = 0 if (adaptive.decide(quote).plan, of_file.decide(quote).plan) == expected else 1
                    finally:
                        os._exit(code)
                assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
        finally:
            ends.set()
        for one in deciding:
            one.result()


def test_policies_are_pickled_and_copied(quote: model.VaeQuote) -> None:
    policy = tilewright.Policy("adaptive", settings={"min_tile": 128}, memory_bytes=2**25)
    assert policy.identity.settings["min-tile"] == 128
    for again in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)):
        assert again.identity == policy.identity and again.decide(quote).plan == policy.decide(quote).plan
    for stays in (quote, policy.decide(quote)):
        for send in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="stays in its process"):
                send(stays)


def test_failed_plans_are_not_tried_again(adaptive: tilewright.Policy, quote: model.VaeQuote) -> None:
    attempts: list[Any] = []
    plans: list[records.Plan] = []
    for _ in range(3):
        decision = adaptive.decide(quote, attempts)
        assert decision.plan not in plans
        plans.append(decision.plan)
        attempts.append(decision.failed(records.OutOfMemoryFailure(bytes=2**20)))
        assert [attempt.plan for attempt in decision.record.attempts] == plans[:-1]
    decision = adaptive.decide(quote, attempts)
    for wrong in (5, None, decision):
        with pytest.raises(TypeError, match="failure: expected OutOfMemoryFailure or"):
            decision.failed(wrong)  # type: ignore[arg-type]
    with pytest.raises(tilewright.PolicyError, match="step: expected a whole number"):
        decision.failed(records.OutOfMemoryFailure(bytes=1), step=1.5)  # type: ignore[arg-type]
    # A plan and its failure are enough, and a request takes them as a quote does.
    bare = [records.Attempt(plan=attempt.plan, failure=attempt.failure) for attempt in attempts]
    again = adaptive.decide(quote.request, bare, capabilities=quote.capabilities, device=quote.device, costs=quote)
    assert again.plan == adaptive.decide(quote, bare).plan and again.plan not in plans
    assert [attempt.failure for attempt in again.record.attempts] == [attempt.failure for attempt in bare]
    # What is known of the decisions that failed stays in the record.
    known = adaptive.decide(quote.request, attempts, capabilities=quote.capabilities, device=quote.device, costs=quote)
    assert known.record.attempts == tuple(attempts) == adaptive.decide(quote, attempts).record.attempts


def test_the_last_resort_is_the_hosts_own_plan(adaptive: tilewright.Policy, quote: model.VaeQuote) -> None:
    asked: dict[str, Any] = {"capabilities": quote.capabilities, "device": quote.device}
    first = adaptive.decide(quote, last_resort=True)
    assert first.answer is None and first.fuel == 0
    assert first.estimate is not None and first.estimate.peak_bytes <= quote.request.memory_limit
    assert first.fallback == records.Fallback(reason="exhausted", detail="the host's own plan was asked for")
    attempts: list[Any] = []
    plans: list[records.Plan] = []
    with pytest.raises(tilewright.PolicyError, match="no plan is left that has not failed"):
        for _ in range(100):
            decision = adaptive.decide(quote, attempts, last_resort=True)
            same = adaptive.decide(quote.request, attempts, **asked, costs=quote, last_resort=True)
            assert decision.plan == same.plan and decision.plan not in plans
            assert decision.fallback is not None and decision.fallback.reason == "exhausted"
            assert decision.record.attempts == tuple(attempts)
            plans.append(decision.plan)
            attempts.append(decision.failed(records.OutOfMemoryFailure(bytes=2**20)))
    assert len(plans) > 1
    # Prices of the caller's count, too, and what raises is raised.
    priced: list[records.Plan] = []

    def costs(plans: Sequence[records.Plan]) -> list[records.Cost | str]:
        priced.extend(plans)
        return quote.estimates(plans)

    called = adaptive.decide(quote.request, **asked, costs=costs, last_resort=True)
    assert called.plan == first.plan and priced
    with pytest.raises(tilewright.PolicyError, match="last_resort: expected True or False, not 1"):
        adaptive.decide(quote, last_resort=1)  # type: ignore[call-overload]
    # The policy is not asked, and what it would say stays the same.
    assert adaptive.decide(quote).answer is not None


def test_all_kinds_of_work_are_decided(adaptive: tilewright.Policy, device: tilewright.Device) -> None:
    sample = tilewright.Model(SHAPES / "transformer").denoise(device, width=128, height=128, steps=4)
    decision = adaptive.decide(sample)
    assert decision.plan.weights in ("packed", "expanded") and decision.record.stage == "denoise"
    with pytest.raises(tilewright.PolicyError, match="done: goes with running"):
        adaptive.decide(sample, done=2)
    going_on = adaptive.decide(sample, running=decision.plan, done=2)
    assert going_on.record.request == sample.request
    [text] = tilewright.Model(SHAPES / "text_encoder").text(device, tokens=[77])
    assert adaptive.decide(text).plan.place in ("device", "host")


def test_outcomes_are_learnt(adaptive: tilewright.Policy, quote: model.VaeQuote) -> None:
    decision = adaptive.decide(quote)
    assert decision.estimate is not None
    outcome = records.Outcome(
        elapsed_ms=decision.estimate.elapsed_ms,
        load_ms=0.0,
        peak_bytes=decision.estimate.peak_bytes,
        attempts=1,
        pool=records.PoolStatistics(hits=1, misses=1, held_bytes=0),
    )
    adaptive.learn(quote, decision.plan, outcome)
    adaptive.learn(quote.request, decision.plan, outcome, capabilities=quote.capabilities, device=quote.device)


def test_threads_share_a_policy(adaptive: tilewright.Policy, quote: model.VaeQuote) -> None:
    expected = adaptive.decide(quote).plan

    def decide(_thread: int) -> set[str]:
        return {adaptive.decide(quote).plan.to_json() for _ in range(200)}

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(decide, range(8)):
            assert found == {expected.to_json()}


def test_memory_stays_what_it_was(adaptive: tilewright.Policy, quote: model.VaeQuote) -> None:
    def decide(count: int) -> int:
        for _ in range(count):
            decision = adaptive.decide(quote)
            assert decision.plan and decision.record
        return resident()

    before = decide(1_000)
    assert decide(9_000) < 1.05 * before


def test_earlier_contracts_are_served(quote: model.VaeQuote, tmp_path: Path) -> None:
    policy = tilewright.Policy(unpacked("wat-whole.wasm", tmp_path / "whole.wasm"))
    assert policy.inspect()["contract"].startswith("0.1.")
    assert policy.decide(quote).plan


def test_errors_are_one_line(adaptive: tilewright.Policy, quote: model.VaeQuote, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.wasm"
    nonsense.write_bytes(b"no module")
    asked: dict[str, Any] = {"capabilities": quote.capabilities, "device": quote.device}
    empty = records.Request.from_json({**quote.request.to_dict(), "batch": 0})
    for wrong, words in [
        (lambda: tilewright.Policy("none"), "none"),
        (lambda: tilewright.Policy(tmp_path / "missing.wasm"), "missing.wasm"),
        (lambda: tilewright.Policy(nonsense), "nonsense.wasm"),
        (lambda: tilewright.Policy("adaptive", settings={"invented": 1}), "invented"),
        (lambda: tilewright.Policy("adaptive", settings={"min-tile": "much"}), "min-tile"),
        (lambda: adaptive.decide(empty, **asked), "0 samples"),
        (lambda: adaptive.decide(quote.request, stage="denoise", **asked), "stage denoise"),  # type: ignore[call-overload]
        (lambda: tilewright.Policy("\ud800"), "policy: expected a text"),
        (lambda: tilewright.Policy("a\nb"), r"a\nb"),
        (lambda: tilewright.Policy("adaptive", memory_bytes=-1), "memory_bytes: expected a whole number"),
        (lambda: adaptive.check(seed=-1), "seed: expected a whole number"),
        (lambda: adaptive.decide(quote, running=adaptive.decide(quote).plan, done=-1), "done: expected a whole number"),
    ]:
        with pytest.raises(tilewright.PolicyError) as error:
            wrong()
        assert words in str(error.value) and "\n" not in str(error.value)
    wrong_types: list[tuple[Callable[[Any], Any], str]] = [
        (lambda _: adaptive.decide(quote.request), "needs capabilities"),  # type: ignore[call-overload]
        (lambda _: adaptive.decide(quote, **asked), "of its own"),
        (lambda one: adaptive.decide(one, **asked), "expected a quote or a request, not str"),
        (lambda one: adaptive.decide(quote, [one]), "an attempt: expected FailedAttempt or Attempt, not str"),
        (lambda one: adaptive.decide(quote.request, [one], **asked), "an attempt: expected"),
        (lambda one: adaptive.decide(quote, running=one), "running: expected Plan, not str"),
        (lambda one: adaptive.decide(quote.request, **{**asked, "device": one}), "device: expected Device, not str"),
        (lambda one: adaptive.decide(quote.request, **{**asked, "capabilities": one}), "capabilities: expected"),
        (lambda one: adaptive.learn(quote, one, one), "plan: expected Plan, not str"),
        (lambda one: adaptive.learn(quote, adaptive.decide(quote).plan, one), "outcome: expected Outcome, not str"),
        (lambda _: adaptive.learn(quote, adaptive.decide(quote).plan, None), "not NoneType"),  # type: ignore[arg-type]
        (lambda one: tilewright.Policy("adaptive", settings=one), "settings: expected Mapping, not str"),
        (lambda _: tilewright.Policy(None), "policy: expected str or PathLike"),  # type: ignore[arg-type]
    ]
    for mistaken, words in wrong_types:
        with pytest.raises(TypeError, match=words):
            mistaken("a cat")
