"""The node Memory: frees and trims what is held, reports, and sets the limit that policies see."""

from __future__ import annotations

import ctypes
import gc
import json
import os
from typing import Any

from comfy_api.v0_0_2 import io, ui

from .settings import CATEGORY

#: The word that takes a limit back.
NO_LIMIT = "none"


class Memory(io.ComfyNode):
    """Frees, trims, reports and limits memory, wherever it stands in a graph."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        template = io.MatchType.Template("passed")
        return io.Schema(
            node_id="TilewrightMemory",
            display_name="Memory",
            category=CATEGORY,
            description="Gives memory back, tells what is held, and sets the limit that policies see in this ComfyUI "
            "until it is "
            "set again or ComfyUI ends. What is connected goes through unchanged, so that the node can stand between "
            "any two. "
            "Nothing else is set: no flag of PyTorch, no option of ComfyUI.",
            search_aliases=["free memory", "unload", "VRAM", "clean"],
            is_output_node=True,
            inputs=[
                io.MatchType.Input(
                    "passed",
                    template=template,
                    optional=True,
                    tooltip="Anything: it goes through unchanged, and the node runs when it is there. Without it the "
                    "node runs in "
                    "each queued workflow.",
                ),
                io.Boolean.Input(
                    "unload_models",
                    display_name="unload models",
                    default=False,
                    tooltip="ComfyUI's models leave the device; they are loaded again when they are needed.",
                ),
                io.Boolean.Input(
                    "trim",
                    default=True,
                    tooltip="What nothing uses goes back: Python's garbage, PyTorch's pool on the device, and the C "
                    "library's heap.",
                ),
                io.Boolean.Input(
                    "end_engine",
                    display_name="end engine",
                    default=False,
                    tooltip="The engine of this ComfyUI ends with the weights that it holds; the next node that needs "
                    "it starts "
                    "another one.",
                ),
                io.String.Input(
                    "memory_limit",
                    display_name="memory limit",
                    default="",
                    placeholder="unchanged; none; or as 8 GiB",
                    tooltip="The limit that policies see in nodes which name none, as 8 GiB. Empty: as it is. none: "
                    "what can be "
                    "made free.",
                ),
            ],
            outputs=[
                io.MatchType.Output(template, id="passed", display_name="passed", tooltip="What came in."),
                io.String.Output("report", display_name="report", tooltip="What is held, as JSON: bytes before and "
                "after."),
            ],
        )

    @classmethod
    def validate_inputs(cls, memory_limit: str | None = None) -> bool | str:
        """Refuses a limit that is no size, before anything runs."""
        from tilewright.errors import TilewrightError

        try:
            _limit(memory_limit or "")
        except TilewrightError as error:
            return str(error)
        return True

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> Any:
        """Always another where nothing goes through; otherwise what goes through says if the node runs again, and with
        it what follows."""
        if "passed" not in inputs:
            return float("nan")
        return tuple(sorted((name, value) for name, value in inputs.items() if name != "passed"))

    @classmethod
    def execute(
        cls,
        unload_models: bool,
        trim: bool,
        end_engine: bool,
        memory_limit: str,
        passed: Any = None,
    ) -> io.NodeOutput:
        """The input that came in, and the report.

        Raises:
            TilewrightError: the limit is no size.
        """
        from comfy import model_management

        from . import comfy_memory, engine_session

        is_set, limit = _limit(memory_limit)
        before = held()
        if is_set:
            comfy_memory.set_session_limit(limit)
        if end_engine:
            engine_session.close()
        if unload_models:
            model_management.unload_all_models()
        if trim:
            trim_all()
        report = {"before": before, "after": held()}
        text = "\n".join(told(report))
        return io.NodeOutput(passed, json.dumps(report), ui=ui.PreviewText(text))


def _limit(text: str) -> tuple[bool, int | None]:
    """True if a limit is set or taken back, and the limit in bytes.

    Raises:
        TilewrightError: it is no size.
    """
    from tilewright._toml import SIZE, bytes_of
    from tilewright.errors import TilewrightError

    text = text.strip()
    if not text:
        return False, None
    if text.lower() == NO_LIMIT:
        return True, None
    try:
        return True, bytes_of(text)
    except (TypeError, ValueError):
        raise TilewrightError(f"memory limit: expected {SIZE}, or none, not {text!r}") from None


def trim_all() -> None:
    """Gives back what nothing uses: garbage, the device's pool, the C library's heap."""
    from comfy import model_management

    gc.collect()
    model_management.soft_empty_cache()
    # Only glibc has it; freed tensors of the processor otherwise stay in the process.
    release = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if release is not None:
        release(0)


def held() -> dict[str, Any]:
    """The memory that is held now, in bytes: by this process and the engine, on the device, and by ComfyUI's models."""
    from comfy import model_management

    from . import comfy_memory, engine_session

    device = model_management.get_torch_device()
    models = [
        {"model": type(loaded.model.model).__name__, "bytes": int(loaded.model_loaded_memory())}
        for loaded in list(model_management.current_loaded_models)
        if loaded.model is not None
    ]
    session = engine_session.current()
    engine = None if session is None or session.engine is None else session.engine.pid
    return {
        "device": str(device),
        "device_total_bytes": int(model_management.get_total_memory(device)),
        "device_free_bytes": int(model_management.get_free_memory(device)),
        "process_bytes": resident(os.getpid()),
        "engine_bytes": 0 if engine is None else resident(engine),
        "models": models,
        "limit_bytes": comfy_memory.session_limit(),
    }


def resident(process: int) -> int:
    """Bytes of memory that a process holds; 0 if the system does not tell."""
    import psutil

    try:
        return int(psutil.Process(process).memory_info().rss)
    except psutil.Error:
        return 0


def told(report: dict[str, Any]) -> list[str]:
    """A report in words, line by line."""
    from .decision import size

    before, after = report["before"], report["after"]
    found = [f"device {after['device']}: {size(after['device_free_bytes'])} free of "
    f"{size(after['device_total_bytes'])}"]
    for name, key in (("ComfyUI's process", "process_bytes"), ("the engine", "engine_bytes")):
        if before[key] or after[key]:
            found.append(f"{name}: {size(after[key])}, before {size(before[key])}")
    found += [f"loaded: {model['model']}, {size(model['bytes'])}" for model in after["models"]]
    limit = after["limit_bytes"]
    found.append("limit: what can be made free" if limit is None else f"limit: {size(limit)}")
    return found


NODES: list[type[io.ComfyNode]] = [Memory]
