"""The node Monitor: time, memory, attempts and estimates of what the nodes of this pack have done."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

from comfy_api.v0_0_2 import io, ui

from .decision import is_whole, stage_of
from .settings import CATEGORY

if TYPE_CHECKING:
    from .history import Entry
    from .plotting import Panel

ALL = "all"

#: Stages in the order in which they are shown.
STAGES = ("text", "encode", "denoise", "decode")

#: Runs in the plot.
PLOTTED = 32


class Monitor(io.ComfyNode):
    """The history as numbers and a plot."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        return io.Schema(
            node_id="TilewrightMonitor",
            display_name="Monitor",
            category=CATEGORY,
            description="Time and memory of VAEs and samplers from the history of this pack's nodes: what was "
            "estimated and what "
            "it took, how often the policy's first plan held, how often a plan failed or the host's own was taken.",
            search_aliases=["performance", "statistics", "history", "VAE monitor", "sampler monitor"],
            is_output_node=True,
            inputs=[
                io.Combo.Input("stage", options=[ALL, *STAGES], default=ALL, tooltip="The stage that is shown."),
                io.Int.Input(
                    "latest", default=PLOTTED, min=1, max=256, tooltip="The number of the latest runs that count."
                ),
                io.AnyType.Input(
                    "after",
                    optional=True,
                    tooltip="Anything that is to be done before, as the decoded picture: it is not looked at.",
                ),
            ],
            outputs=[
                io.String.Output("numbers", display_name="numbers", tooltip="The numbers as JSON."),
                io.Image.Output("plot", display_name="plot", tooltip="Time and memory of each run; lines are "
                "estimates."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> Any:
        """Always another: the history is none of the inputs."""
        return float("nan")

    @classmethod
    def execute(cls, stage: str, latest: int, after: Any = None) -> io.NodeOutput:
        """The numbers and the plot; of an empty history, that nothing was measured."""
        from . import history, plotting

        whole = [entry for entry in history.entries() if is_whole(entry.record)]
        found = [entry for entry in whole if stage in (ALL, stage_of(entry.record))][-latest:]
        summary = numbers(found)
        image = plotting.plot(_panels(found))
        shown = {**ui.PreviewImage(image, cls=cls).as_dict(), **ui.PreviewText("\n".join(_told(summary))).as_dict()}
        return io.NodeOutput(json.dumps(summary), image, ui=shown)


def numbers(entries: list[Entry]) -> dict[str, Any]:
    """The numbers of some runs, stage by stage: times in milliseconds, sizes in bytes, shares from 0 to 1."""
    found: dict[str, Any] = {}
    for stage in STAGES:
        of = [entry.record for entry in entries if stage_of(entry.record) == stage]
        if of:
            found[stage] = _stage_numbers(of)
    return {"runs": len(entries), "stages": found}


def _stage_numbers(of: list[dict[str, Any]]) -> dict[str, Any]:
    done = [record for record in of if record.get("outcome") is not None]
    times = [float(record["outcome"]["elapsed_ms"]) for record in done]
    peaks = [int(record["outcome"]["peak_bytes"]) for record in done]
    errors = [ratio for ratio in map(_error_of("peak_bytes"), done) if ratio is not None]
    delays = [ratio for ratio in map(_error_of("elapsed_ms", "step_ms"), done) if ratio is not None]
    failed = sum(len(record.get("attempts", ())) for record in of)
    return {
        "runs": len(of),
        "elapsed_ms": _spread(times),
        "load_ms": _spread([float(record["outcome"].get("load_ms", 0.0)) for record in done]),
        "peak_bytes": _spread(peaks),
        "first_plan_held": _share(of, lambda record: not record.get("attempts") and not record.get("fallback")),
        "fallbacks": _share(of, lambda record: bool(record.get("fallback"))),
        "adjusted": _share(of, lambda record: bool(record.get("adjusted"))),
        "failed_attempts": failed,
        "over_limit": _share(done, lambda record: record["outcome"]["peak_bytes"] > record["request"]["memory_limit"]),
        "peak_over_estimate": _spread(errors),
        "time_over_estimate": _spread(delays),
        "decision_ms": _spread([float(record.get("decision_ms", 0.0)) for record in of]),
    }


def _share(of: list[dict[str, Any]], holds: Any) -> float:
    return sum(map(bool, map(holds, of))) / len(of) if of else 0.0


def _error_of(*keys: str) -> Any:
    """A function that gives the measured value over the estimated one, by the first key that both have."""

    def ratio(record: dict[str, Any]) -> float | None:
        estimate, outcome = record.get("expected") or record.get("estimate") or {}, record["outcome"]
        for key in keys:
            if estimate.get(key) and outcome.get(key) is not None:
                return float(outcome[key]) / float(estimate[key])
        return None

    return ratio


def _spread(values: list[Any]) -> dict[str, float] | None:
    if not values:
        return None
    return {
        "mean": statistics.fmean(values),
        "least": min(values),
        "most": max(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
    }


def _told(summary: dict[str, Any]) -> list[str]:
    from .decision import duration, size

    if not summary["runs"]:
        return ["nothing was measured yet: run a node of this pack before"]
    found: list[str] = []
    for stage, of in summary["stages"].items():
        line = f"{stage}: {of['runs']} run{'s' if of['runs'] > 1 else ''}"
        if of["elapsed_ms"]:
            line += f", {duration(of['elapsed_ms']['mean'])} ± {duration(of['elapsed_ms']['deviation'])}"
            line += f", peak {size(int(of['peak_bytes']['most']))}"
        line += f"; the first plan held in {of['first_plan_held']:.0%}, fallback in {of['fallbacks']:.0%}"
        line += f", {of['failed_attempts']} failed attempts"
        if of["peak_over_estimate"]:
            line += f"; memory at {of['peak_over_estimate']['mean']:.2f} of the estimate"
        if of["time_over_estimate"]:
            line += f", time at {of['time_over_estimate']['mean']:.2f}"
        found.append(line)
    return found


def _panels(entries: list[Entry]) -> list[Panel]:
    """Time and memory of each run, with the estimates across."""
    from .plotting import Bar, Panel

    times: list[Bar] = []
    peaks: list[Bar] = []
    for number, entry in enumerate(entries[-PLOTTED:], 1):
        record = entry.record
        outcome = record.get("outcome")
        if outcome is None:
            continue
        estimate = record.get("expected") or record.get("estimate") or {}
        stage = stage_of(record)
        note = "fallback" if record.get("fallback") else ""
        if record.get("attempts"):
            note = f"{len(record['attempts'])} failed"
        request = record.get("request", {})
        label = f"{number}\n{request['width']}×{request['height']}" if "width" in request else f"{number}"
        expected = estimate.get("elapsed_ms")
        if expected is None and estimate.get("step_ms") is not None:
            expected = estimate["step_ms"] * request.get("steps", 1)
        times.append(Bar(label, float(outcome["elapsed_ms"]), stage, mark=expected, note=note))
        scale = 2.0**20
        held = estimate.get("peak_bytes")
        peaks.append(
            Bar(label, outcome["peak_bytes"] / scale, stage, mark=None if held is None else held / scale, note=note)
        )
    return [Panel("Time of each run", "ms", tuple(times)), Panel("Peak of memory of each run", "MiB", tuple(peaks))]


NODES: list[type[io.ComfyNode]] = [Monitor]
