"""Speeds of devices in matrix products, and of the way from the host's memory: what times are worked out from."""

from __future__ import annotations

import time
from functools import cache

import torch

#: The side of the product that is timed, on a processor and on a GPU, and the times that it runs.
_SIDES = {"cpu": 512, "cuda": 4096}
_RUNS = 3

#: Bytes of the copy that is timed.
_COPY = 64 << 20


@cache
def products_per_second(device: torch.device, dtype: torch.dtype) -> float | None:
    """Operations of matrix products a second; None if the device has none in this type."""
    side = _SIDES.get(device.type, 1024)
    try:
        with torch.no_grad():
            one = torch.ones((side, side), dtype=dtype, device=device)
            best = min(_seconds(device, lambda: one @ one) for _ in range(_RUNS + 1))
    except (RuntimeError, TypeError):
        return None
    return 2 * side**3 / best


@cache
def copied_per_second(device: torch.device, host: torch.device) -> float:
    """Bytes a second from the host's memory to the device's; 0 if they share one."""
    if device.type == host.type:
        return 0.0
    pinned = torch.empty(_COPY, dtype=torch.uint8, device=host).pin_memory()
    best = min(_seconds(device, lambda: pinned.to(device, non_blocking=True)) for _ in range(_RUNS))
    return _COPY / best


def _seconds(device: torch.device, work: object) -> float:
    assert callable(work)
    _settle(device)
    started = time.perf_counter()
    result = work()
    _settle(device)
    del result
    return max(time.perf_counter() - started, 1e-9)


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
