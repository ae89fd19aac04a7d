"""The highest memory of an attempt, and what its memory pool did meanwhile.

On a GPU it is what PyTorch's pool had given out at its highest, without what was there before: exact, but for other
threads' work. A CPU's allocator keeps no such count, so the process's own is taken: the kernel's high-water mark of
resident memory, set back at the beginning where the process may do so, or else samples of it every few milliseconds,
which can miss a short peak. Freed memory goes back to the system first where the C library can do that, or else it
would be used again unseen. What files brought into memory is left out. Work of other threads counts, and so do
libraries that are started meanwhile. On a system that tells none of this, there is no peak.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import torch

from ..records import PoolStatistics

#: Seconds between samples of resident memory.
_INTERVAL = 0.002

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")

#: The text that sets the high-water mark back (Linux, Documentation/filesystems/proc.rst).
_RESET = "5"

_NO_POOL = PoolStatistics(hits=0, misses=0, held_bytes=0)


def trim(device: torch.device) -> None:
    """Gives memory that nothing uses back to the system: PyTorch's pool of a GPU, and the C library's of a CPU."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return
    if _malloc_trim is not None:
        _malloc_trim(0)


def collect(device: torch.device) -> None:
    """Frees what a failed attempt left, such as tensors that its exception's frames held."""
    gc.collect()
    trim(device)


class Peak:
    """The measurement of what runs within a `with`.

    Attributes:
        bytes: the highest memory beyond what was there before, in bytes; None if the system does not tell.
        seconds: the time that it took.
        pool: what PyTorch's memory pool did; zeros of a CPU.
    """

    bytes: int | None
    seconds: float
    pool: PoolStatistics

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.bytes = None
        self.seconds = 0.0
        self.pool = _NO_POOL
        self._before: dict[str, int] = {}
        self._begun = 0.0
        self._sampler: _Sampler | None = None

    def __enter__(self) -> Peak:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = _gpu_counts(self._device)
        elif self._device.type == "cpu":
            trim(self._device)
            if not _reset_high_water():
                self._sampler = _Sampler()
            self._before = _resident()
        self._begun = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._device.type == "cuda":
            # A fault of earlier work shows here: that of an attempt which failed by itself counts.
            with suppress(RuntimeError) if error is not None else suppress():
                torch.cuda.synchronize(self._device)
        self.seconds = time.perf_counter() - self._begun
        if self._device.type == "cuda":
            self._end_gpu()
        elif self._device.type == "cpu":
            self._end_cpu()

    def _end_gpu(self) -> None:
        with suppress(RuntimeError):
            after, before = _gpu_counts(self._device), self._before
            self.bytes = max(torch.cuda.max_memory_allocated(self._device) - before["in use"], 0)
            misses = after["segments"] - before["segments"]
            hits = max(after["allocations"] - before["allocations"] - misses, 0)
            self.pool = PoolStatistics(hits=hits, misses=max(misses, 0), held_bytes=after["held"])

    def _end_cpu(self) -> None:
        sampled = self._sampler.end() if self._sampler is not None else None
        after, before = _resident(), self._before
        if "VmRSS" not in after or "VmRSS" not in before:
            return
        highest = sampled if sampled is not None else after.get("VmHWM", after["VmRSS"])
        files = max(after.get("RssFile", 0) - before.get("RssFile", 0), 0)
        self.bytes = max(highest - before["VmRSS"] - files, 0)


class _Sampler:
    """A thread that looks at resident memory until it is told to end."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._highest = 0
        self._thread = threading.Thread(target=self._sample, name="tilewright-peak", daemon=True)
        self._thread.start()

    def end(self) -> int:
        """The highest of all samples, in bytes."""
        self._ended.set()
        self._thread.join()
        return self._highest

    def _sample(self) -> None:
        while True:
            self._highest = max(self._highest, _resident().get("VmRSS", 0))
            if self._ended.wait(_INTERVAL):
                break
        self._highest = max(self._highest, _resident().get("VmRSS", 0))


def _resident() -> dict[str, int]:
    """The process's counts of resident memory, in bytes; empty if the system does not tell."""
    try:
        text = _STATUS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    counts: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name in ("VmHWM", "VmRSS", "RssFile") and words and words[0].isdigit():
            counts[name] = int(words[0]) << 10
    return counts


def _reset_high_water() -> bool:
    """Sets the high-water mark back to what is resident; False if the process may not."""
    try:
        _CLEAR.write_text(_RESET, encoding="ascii")
    except OSError:
        return False
    counts = _resident()
    # Some sandboxes take the request and do nothing, or have no mark.
    highest, now = counts.get("VmHWM"), counts.get("VmRSS")
    return highest is not None and now is not None and highest - now < 1 << 22


def _gpu_counts(device: torch.device) -> dict[str, int]:
    statistics = torch.cuda.memory_stats(device)
    return {
        "in use": int(torch.cuda.memory_allocated(device)),
        "held": int(torch.cuda.memory_reserved(device)),
        "allocations": int(statistics.get("allocation.all.allocated", 0)),
        "segments": int(statistics.get("segment.all.allocated", 0)),
    }


def _find_malloc_trim() -> ctypes._NamedFuncPointer | None:  # pyright: ignore[reportPrivateUsage]
    """The C library's function that gives free memory back; glibc has one."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        found = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    found.argtypes, found.restype = [ctypes.c_size_t], ctypes.c_int
    return found


_malloc_trim = _find_malloc_trim()
