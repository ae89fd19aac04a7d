"""Facts of the machine that PyTorch does not tell: its processor, its memory, and that of AMD's GPUs beside it."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

#: Bytes that a GPU which shares the host's memory leaves to the system and to other programs: a desktop freezes
#: without.
SHARED_RESERVE = 4 << 30

#: The devices on the PCI bus, with files of their drivers'.
_PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory, in bytes."""

    total: int
    """All of it."""
    free: int
    """Bytes that can be had without swapping."""


def processor_name() -> str:
    """The processor's name, as the system gives it."""
    for line in _read("/proc/cpuinfo").splitlines():
        key, separator, value = line.partition(":")
        if separator and key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine() or "CPU"


def host_memory() -> Memory:
    """The machine's memory; a control group's limit counts where there is one. On a system that does not tell what is
    free, half of all memory counts as free."""
    memory = _linux_memory() or _windows_memory() or _posix_memory()
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if limit is None:
        return memory
    return Memory(min(memory.total, limit), min(memory.free, max(limit - (used or 0), 0)))


def gpu_memory(reported: Memory, *, is_integrated: bool, bus_address: str | None) -> Memory:
    """The memory of a GPU of which its runtime reports so much.

    HIP has been seen to report a part of an APU's memory as all of it, and more free than there is. The kernel's driver
    knows: from Linux 6.10 on, an APU allocates system memory (GTT) if that is more than its carve-out, and only the
    carve-out otherwise.

    Args:
        reported: what the runtime says.
        is_integrated: the GPU has no memory of its own.
        bus_address: its place on the PCI bus, as `0000:c5:00.0`.
    """
    if not is_integrated:
        return Memory(reported.total, min(reported.free, reported.total))
    left = max((_linux_memory() or host_memory()).free - SHARED_RESERVE, 0)
    card = _PCI / (bus_address or "none")
    names = ("mem_info_vram_total", "mem_info_vram_used", "mem_info_gtt_total", "mem_info_gtt_used")
    vram_total, vram_used, gtt_total, gtt_used = (_number(card / name) for name in names)
    if vram_total is None or vram_used is None or gtt_total is None or gtt_used is None:
        return Memory(reported.total, min(reported.free, reported.total, left))
    if gtt_total > vram_total:
        total = gtt_total + vram_total
        return Memory(total, min(max(total - gtt_used - vram_used, 0), left))
    return Memory(vram_total, max(vram_total - vram_used, 0))


def _linux_memory() -> Memory | None:
    found: dict[str, int] = {}
    for line in _read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            found[name] = int(words[0]) << 10
    total, free = found.get("MemTotal"), found.get("MemAvailable")
    return None if total is None or free is None else Memory(total, free)


def _windows_memory() -> Memory | None:
    if sys.platform != "win32":
        return None

    class Status(ctypes.Structure):
        _fields_ = [
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            ("total", ctypes.c_ulonglong),
            ("free", ctypes.c_ulonglong),
            *((f"other_{index}", ctypes.c_ulonglong) for index in range(5)),
        ]

    status = Status()
    status.length = ctypes.sizeof(Status)
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return Memory(int(status.total), int(status.free))


def _posix_memory() -> Memory:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return Memory(0, 0)
    return Memory(total, total // 2)


def _read(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(path: str | os.PathLike[str]) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None
