"""The node Decision: what was decided for a run and why, and its tiles on the picture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from comfy_api.v0_0_2 import io, ui

from .settings import CATEGORY

if TYPE_CHECKING:
    from torch import Tensor


#: Values of a plan's parts that go without saying.
USUAL = ("keep", "precision", "channels-first", 1)


class Decision(io.ComfyNode):
    """A record in words, and drawn."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        return io.Schema(
            node_id="TilewrightDecision",
            display_name="Decision",
            category=CATEGORY,
            description="Tells what a policy decided for a run and why: its answer, what was changed in it, the plans "
            "that failed "
            "before, and what the run was expected to take and took. Tiles are drawn on the picture.",
            search_aliases=["tiles", "record", "explain"],
            is_output_node=True,
            inputs=[
                io.Image.Input(
                    "image",
                    optional=True,
                    tooltip="The picture that tiles are drawn on. Connect the decoded one: the node runs after it "
                    "then.",
                ),
                io.String.Input(
                    "record",
                    optional=True,
                    force_input=True,
                    tooltip="The record of a node on Tilewright. Nothing: the latest record of any node of this pack.",
                ),
            ],
            outputs=[
                io.String.Output("text", display_name="text", tooltip="The decision in words."),
                io.Image.Output("image", display_name="IMAGE", tooltip="The picture with the tiles on it."),
                io.String.Output("record", display_name="record", tooltip="The record as JSON."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> Any:
        """Always another: the latest record is none of the inputs."""
        return float("nan")

    @classmethod
    def execute(cls, image: Tensor | None = None, record: str | None = None) -> io.NodeOutput:
        """The text, the picture and the record.

        Raises:
            TilewrightError: there is no record yet, or the text is none.
        """
        from . import plotting

        stages = stages_of(record)
        text = "\n\n".join(told(stage) for stage in stages)
        # The picture is a decode's or encode's; of a prompt the last stage is.
        drawn = plotting.draw_tiles(image, stages[-1])
        shown = {**ui.PreviewImage(drawn, cls=cls).as_dict(), **ui.PreviewText(text).as_dict()}
        whole = json.dumps(stages[0] if len(stages) == 1 else {"stages": stages})
        return io.NodeOutput(text, drawn, whole, ui=shown)


def stages_of(record: str | None) -> list[dict[str, Any]]:
    """The records in a text, or the latest one.

    Raises:
        TilewrightError: there is none, or the text is none.
    """
    from tilewright.errors import TilewrightError

    from . import history

    if not record or not record.strip():
        latest = history.latest()
        if latest is None:
            raise TilewrightError(
                "record: nothing was decided yet: connect a node's record, or run one of this pack before"
            )
        return [latest]
    try:
        read = json.loads(record)
    except ValueError as error:
        raise TilewrightError(f"record: it is none of Tilewright's: {error}") from None
    stages = read.get("stages", [read]) if isinstance(read, dict) else []
    if not isinstance(stages, list) or not stages:
        raise TilewrightError("record: it is none of Tilewright's: it is no object")
    if not all(isinstance(stage, dict) and "plan" in stage for stage in stages):
        raise TilewrightError("record: it is none of Tilewright's: it has no plan")
    if not all(map(is_whole, stages)):
        raise TilewrightError("record: it is none of Tilewright's: parts of it are missing")
    return stages


def is_whole(record: dict[str, Any]) -> bool:
    """True if a record has all that is shown of it. One from a file may be of another program, or cut."""
    try:
        request, outcome = record["request"], record.get("outcome")
        told(record)
        int(request["memory_limit"])
        if outcome is not None:
            float(outcome["elapsed_ms"]), int(outcome["peak_bytes"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    return True


def stage_of(record: dict[str, Any]) -> str:
    """The stage of a record; earlier programs have named it in a hint."""
    hints = record.get("request", {}).get("hints", ())
    return str(record.get("stage") or next((hint["value"] for hint in hints if hint["name"] == "stage"), "decode"))


def told(record: dict[str, Any]) -> str:
    """A record in words, line by line."""
    return "\n".join(_lines(record))


def _lines(record: dict[str, Any]) -> Iterator[str]:
    yield f"{stage_of(record)}: {_work(record)}"
    device = record.get("device", {})
    limit = size(record["request"].get("memory_limit"))
    yield f"device: {device.get('name', '?')} ({device.get('backend', '?')}), limit {limit}"
    policy = record.get("policy", {})
    settings = ", ".join(f"{key}={value}" for key, value in policy.get("settings", {}).items())
    named = f"policy: {policy.get('name', '?')} {policy.get('version', '')}".rstrip()
    yield named + (f" ({settings})" if settings else "")
    for number, attempt in enumerate(record.get("attempts", ()), 1):
        yield f"attempt {number} failed: {_failure(attempt['failure'])}: {plan_told(attempt['plan'])}"
    yield f"plan: {plan_told(record['plan'])}"
    reason = record["plan"].get("reason")
    if reason:
        yield f"reason: {reason}"
    answer = record.get("answer")
    if answer is not None and plan_told(answer) != plan_told(record["plan"]):
        yield f"answer: {plan_told(answer)}"
    if record.get("adjusted"):
        yield f"adjusted: {'; '.join(record['adjusted'])}"
    fallback = record.get("fallback")
    if fallback:
        told_why = f"{fallback.get('reason')}: {fallback.get('detail', '')}".rstrip(": ")
        yield f"fallback: the host's own plan, since {told_why}"
    yield from _costs(record)
    yield f"decided in {record.get('decision_ms', 0.0):.1f} ms, with {record.get('fuel', 0):,} units of fuel"


def _costs(record: dict[str, Any]) -> Iterator[str]:
    estimate, outcome = record.get("expected") or record.get("estimate"), record.get("outcome")
    time_key = "step_ms" if outcome is not None and "step_ms" in outcome else "elapsed_ms"
    unit = " a step" if time_key == "step_ms" else ""
    if estimate is not None:
        took = estimate.get(time_key)
        yield f"estimate: {size(estimate.get('peak_bytes'))}" + ("" if took is None else f", {duration(took)}{unit}")
    if outcome is None:
        yield "outcome: none"
        return
    line = f"outcome: {size(outcome.get('peak_bytes'))}, {duration(outcome.get(time_key, 0.0))}{unit}"
    if outcome.get("load_ms"):
        line += f", after {duration(outcome['load_ms'])} of loading"
    if estimate is not None and estimate.get("peak_bytes") and outcome.get("peak_bytes"):
        line += f" ({(outcome['peak_bytes'] / estimate['peak_bytes'] - 1) * 100:+.0f} % of memory"
        took = estimate.get(time_key)
        line += f", {(outcome.get(time_key, 0.0) / took - 1) * 100:+.0f} % of time)" if took else ")"
    yield line


def _work(record: dict[str, Any]) -> str:
    request = record.get("request", {})
    family = request.get("model", {}).get("family") or request.get("model", {}).get("kind", "")
    if "width" not in request:
        return f"{family} of {', '.join(map(str, request.get('tokens', ())))} tokens".strip()
    parts = [f"{request['width']}×{request['height']}"]
    if request.get("frames", 1) > 1:
        parts.append(f"{request['frames']} frames")
    if request.get("batch", 1) > 1:
        parts.append(f"batch of {request['batch']}")
    if request.get("steps"):
        parts.append(f"{request['steps']} steps")
    return f"{family} {', '.join(parts)}".strip()


def plan_told(plan: dict[str, Any]) -> str:
    """A plan in words."""
    parts = [words for key, value in plan.items() if (words := _part_told(key, value))]
    options = plan.get("options") or ()
    parts += [f"{name}={value}" for name, value in (options.items() if isinstance(options, dict) else options)]
    return ", ".join(parts)


def _part_told(key: str, value: Any) -> str:
    """A part of a plan in words; empty of one that is as usual."""
    if key in ("reason", "options") or value in (None, False, 0, ""):
        return ""
    kind = value.get("kind") if isinstance(value, dict) else None
    match key, kind:
        case "space", "whole":
            return "the whole picture"
        case "space", _:
            shared = f" that share {value['overlap']} pixels" if value.get("overlap") else ""
            return f"{kind} tiles of {value['width']}×{value['height']}{shared}"
        case "time", "whole":
            return ""
        case "time", _:
            shared = f" that share {value['overlap']}" if value.get("overlap") else ""
            return f"{kind} chunks of {value['frames']} frames{shared}"
        case "precision", "uniform":
            return str(value["dtype"])
        case "precision", _:
            return f"{kind} {value['dtype']}"
        case "attention", "pieces":
            return f"attention in pieces of {value['queries']} queries"
        case ("reuse", "off") | ("attention", "fused"):
            return ""
        case "batch", _:
            return "" if value == 1 else f"{value} at once"
        case ("release" | "products" | "layout" | "feed_forward"), _ if value in USUAL:
            return ""
        case _, None:
            return key.replace("_", " ") if value is True else f"{key.replace('_', ' ')} {value}"
        case _:
            details = " ".join(f"{name} {detail}" for name, detail in value.items() if name != "kind")
            return f"{key} {kind} {details}".rstrip()


def _failure(failure: dict[str, Any]) -> str:
    kind = str(failure.get("kind", failure)).replace("-", " ")
    if "bytes" in failure:
        return f"{kind} at {size(failure['bytes'])}"
    return f"{kind}, {failure['values']} values" if "values" in failure else kind


def size(count: int | None) -> str:
    """A number of bytes in words."""
    if count is None:
        return "unknown"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit in ("B", "KiB") or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration(milliseconds: float) -> str:
    """A time in words."""
    return f"{milliseconds:.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"


NODES: list[type[io.ComfyNode]] = [Decision]
