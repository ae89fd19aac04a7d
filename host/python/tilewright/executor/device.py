"""Devices as the caller's PyTorch runs them: measured once, kept, and described as `tilewright device --json` does."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import torch

from .. import __version__
from ..errors import ModelError
from ..model import Device
from .machine import Memory, gpu_memory, host_memory, processor_name
from .probes import PROBE, Probes, has_onednn

#: A folder of files that can be made again, in the user's folder of such.
_FOLDER = ("tilewright", "torch-devices")

#: Variables of the environment that change how convolutions run.
_SETTINGS = ("TORCH_CUDNN_V8_API_DISABLED", "MIOPEN_FIND_MODE", "PYTORCH_MIOPEN_SUGGEST_NHWC", "NVIDIA_TF32_OVERRIDE")

#: Measurements of this process, by fingerprints.
_measured: dict[str, dict[str, Any]] = {}
_measuring = threading.Lock()


def device_of(
    device: torch.device | str, *, is_cancelled: Callable[[], bool] | None = None, folder: Path | None = None
) -> Device:
    """A device of this machine, as this process's PyTorch runs it. Speeds are measured when they are first asked for,
    which takes about a second, and kept for later processes; memory is asked for anew each time.

    Args:
        device: `cpu`, or `cuda[:N]`, as which PyTorch addresses AMD's GPUs, too.
        is_cancelled: asked between two probes.
        folder: the folder of kept measurements, in place of `$XDG_CACHE_HOME/tilewright/torch-devices` or
            `~/.cache/tilewright/torch-devices`.

    Raises:
        ModelError: the device is of another kind, or does not work.
        Cancelled: `is_cancelled` said so; nothing is kept.
    """
    place = placed(device)
    facts = _cpu_facts() if place.type == "cpu" else _gpu_facts(place)
    fingerprint = _fingerprint(place, facts)
    kept = folder if folder is not None else _cache_folder()
    with _measuring:
        known = _measured.get(fingerprint) or _read(kept, fingerprint)
        if known is None:
            known = _measure(place, facts["backend"], bool(facts["unified"]), is_cancelled)
            _write(kept, fingerprint, known)
        _measured[fingerprint] = known
    return Device.from_json(_description(place, facts, fingerprint, known))


def placed(device: torch.device | str) -> torch.device:
    """A device with its number.

    Raises:
        ModelError: plans can't be carried out on such a device.
    """
    named = torch.device(device)
    if named.type == "cpu":
        return torch.device("cpu")
    if named.type != "cuda":
        raise ModelError(f"{named}: plans are carried out on cpu and cuda alone: move the module to one of them")
    index = cast("int | None", named.index)
    if index is not None:
        return named
    return torch.device("cuda", torch.cuda.current_device())


def forget() -> None:
    """Lets go of this process's measurements: the next question reads them from their file, or measures again."""
    with _measuring:
        _measured.clear()


def is_description(text: str) -> bool:
    """True if it is the whole description of a device."""
    try:
        Device.from_json(text)
    except ModelError:
        return False
    return True


def _description(
    place: torch.device, facts: Mapping[str, Any], fingerprint: str, known: Mapping[str, Any]
) -> str:
    """The JSON of a device with these measurements."""
    host = host_memory()
    transfer = known["measured"].get("transfer_bytes_per_second")
    whole: dict[str, Any] = {
        "device": {**facts, "fast_dtypes": _fast_dtypes(known["measured"])},
        "fingerprint": fingerprint,
        "measured": known["measured"],
        "large_convolutions": facts["backend"] == "cuda",
        "kernels": _kernels(place),
        "fp8_products": False,
        "host": {
            "host_total_bytes": host.total,
            "host_free_bytes": host.free,
            "transfer_rate": 0 if transfer is None else int(transfer),
        },
    }
    if known.get("heads") is not None:
        whole["heads"] = known["heads"]
    return json.dumps(whole)


def _measure(
    place: torch.device, backend: str, is_integrated: bool, is_cancelled: Callable[[], bool] | None
) -> dict[str, Any]:
    probes = Probes(place, is_cancelled)
    try:
        measured = probes.measured(backend, is_integrated=is_integrated)
        heads = None if place.type == "cpu" else probes.fused_heads()
    except RuntimeError as error:
        said = (str(error).strip().splitlines() or ["it does not say why"])[0]
        raise ModelError(f"{place}: convolutions fail on it ({said}): mend PyTorch or its driver") from error
    if place.type == "cuda":
        # Memory that the probes held is not the work's.
        torch.cuda.empty_cache()
    return {"measured": measured, "heads": heads}


def _kernels(place: torch.device) -> dict[str, Any]:
    """The kernels of PyTorch alone: the program's own, which pack weights or filter by Winograd's, are not there."""
    on_cpu = place.type == "cpu"
    return {
        "on_cpu": on_cpu,
        "threads": max(torch.get_num_threads(), 1) if on_cpu else 1,
        "block": 16 if on_cpu and _capability() == "AVX512" else 8,
        "products": [False, False],
        "int8": False,
    }


def _fast_dtypes(measured: Mapping[str, Any]) -> list[str]:
    """The types no slower than f32 to within the noise, fastest first; after a hurried measurement those that are
    clearly faster."""
    best: dict[str, float] = {}
    for speed in measured["speeds"]:
        best[speed["dtype"]] = max(best.get(speed["dtype"], 0.0), speed["flops_per_second"])
    least = (1.25 if measured["hurried"] else 0.97) * best["f32"]
    fast = [dtype for dtype, rate in best.items() if dtype == "f32" or rate >= least]
    return sorted(fast, key=lambda dtype: -best[dtype])


def _cpu_facts() -> dict[str, Any]:
    memory = host_memory()
    levels = {"AVX512": "x86-64-v4", "AVX2": "x86-64-v3"}
    machine = os.uname().machine if hasattr(os, "uname") else "x86-64"
    is_x86 = machine.lower() in ("x86_64", "x86-64", "amd64")
    return {
        "backend": "cpu",
        "name": processor_name(),
        "arch": levels.get(_capability(), "x86-64-v2") if is_x86 else machine,
        "compute_units": _cores(),
        "total_bytes": memory.total,
        "free_bytes": memory.free,
        "unified": True,
        "hints": [],
    }


def _gpu_facts(place: torch.device) -> dict[str, Any]:
    try:
        known: Any = cast(Any, torch.cuda).get_device_properties(place)
        free, total = torch.cuda.mem_get_info(place)
        # PyTorch's pool gives what it holds and does not use.
        free += torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)
    except (AssertionError, RuntimeError) as error:
        said = (str(error).strip().splitlines() or ["it does not say why"])[0]
        raise ModelError(f"{place}: PyTorch can't use it ({said}): name cpu, or mend its driver") from error
    is_rocm = torch.version.hip is not None
    is_integrated = bool(getattr(known, "is_integrated", False))
    memory = gpu_memory(Memory(total, free), is_integrated=is_integrated, bus_address=_bus_address(known))
    arch = str(getattr(known, "gcnArchName", "")).partition(":")[0] if is_rocm else f"sm_{known.major}{known.minor}"
    versions = {"hip": torch.version.hip, "cuda": torch.version.cuda, "cudnn": _cudnn_version()}
    return {
        "backend": "rocm" if is_rocm else "cuda",
        "name": str(known.name) or f"GPU {place.index}",
        "arch": arch or "unknown",
        "compute_units": int(known.multi_processor_count),
        "total_bytes": memory.total,
        "free_bytes": memory.free,
        "unified": is_integrated,
        "hints": [{"name": name, "value": str(value)} for name, value in versions.items() if value],
    }


def _bus_address(known: Any) -> str | None:
    parts = [getattr(known, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    if any(part is None for part in parts):
        return None
    domain, bus, device = (int(cast(int, part)) for part in parts)
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _cudnn_version() -> int | None:
    with suppress(RuntimeError):
        return torch.backends.cudnn.version()
    return None


def _capability() -> str:
    return str(torch.backends.cpu.get_cpu_capability()).upper()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _fingerprint(place: torch.device, facts: Mapping[str, Any]) -> str:
    """All that changes how fast a device is."""
    libraries = ", ".join(f"{hint['name']} {hint['value']}" for hint in facts["hints"])
    if place.type == "cpu":
        onednn = [name for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)) if has_onednn(dtype)]
        libraries = f"{torch.get_num_threads()} threads, oneDNN {'+'.join(['f32', *onednn])}"
    chosen = "".join(f", {name}={os.environ[name]}" for name in _SETTINGS if name in os.environ)
    if place.type == "cuda":
        chosen += f", tf32 {torch.backends.cudnn.allow_tf32}, benchmark {torch.backends.cudnn.benchmark}"
    name, arch, units = facts["name"], facts["arch"], facts["compute_units"]
    return (
        f"{name} ({facts['backend']}, {arch}, {units} units), {libraries}, tilewright {__version__} (probe {PROBE} of "
        f"the caller's PyTorch), torch {torch.__version__}{chosen}"
    )


def _cache_folder() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    return Path(base, *_FOLDER)


def _file(folder: Path, fingerprint: str) -> Path:
    return folder / f"{hashlib.sha256(fingerprint.encode()).hexdigest()[:32]}.json"


def _read(folder: Path | None, fingerprint: str) -> dict[str, Any] | None:
    """Measurements that were kept; None if there are none, or others, or damaged ones."""
    if folder is None:
        return None
    try:
        kept: Any = json.loads(_file(folder, fingerprint).read_text(encoding="utf-8"))
        if kept["fingerprint"] != fingerprint:
            return None
        known = {"measured": kept["measured"], "heads": kept.get("heads")}
        _fast_dtypes(known["measured"])
        on_cpu = known["measured"]["backend"] == "cpu"
        place, facts = torch.device("cpu" if on_cpu else "cuda"), _blank_facts(known["measured"]["backend"])
        is_sound = is_description(_description(place, facts, fingerprint, known))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return known if is_sound else None


def _blank_facts(backend: str) -> dict[str, Any]:
    """Facts of no device, to try measurements with."""
    facts = {"backend": backend, "name": "any", "arch": "any", "compute_units": 1, "total_bytes": 1, "free_bytes": 1}
    return {**facts, "unified": backend == "cpu", "hints": []}


def _write(folder: Path | None, fingerprint: str, known: Mapping[str, Any]) -> None:
    """Keeps measurements, all or nothing; without room or right for it, the next process measures again."""
    if folder is None:
        return
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(dir=folder, prefix=".", suffix=".json")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"fingerprint": fingerprint, **known}, file)
            os.replace(name, _file(folder, fingerprint))
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
