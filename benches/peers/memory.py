"""How much memory a process holds at most: the kernel's own high-water mark, so that no sampling can miss a peak."""

import contextlib
import ctypes
import math
import subprocess
import threading
import time
from pathlib import Path

import torch

MIB = 1024 * 1024


def status_bytes(field, process="self"):
    """A figure of /proc/PID/status in bytes; None where the process has gone."""
    try:
        text = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return None
    _, found, rest = text.partition(f"\n{field}:")
    return int(rest.split()[0]) * 1024 if found else None


class Peak:
    """Around some work: `before` and `peak` in bytes, of this process's resident memory or of the GPU's allocator."""

    def __init__(self, device="cpu"):
        self.gpu = device != "cpu"
        self.before = self.peak = 0
        self.sampler = None

    def __enter__(self):
        if self.gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
            return self
        # What earlier work left in malloc's hands would hide a part of this one's need.
        ctypes.CDLL(None).malloc_trim(0)
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self.sampler = Sampler()
        self.before = status_bytes("VmRSS")
        return self

    def __exit__(self, *_):
        if self.gpu:
            self.peak = torch.cuda.max_memory_allocated()
        else:
            self.peak = self.sampler.stop() if self.sampler else status_bytes("VmHWM")


class Sampler:
    """Where the kernel does not let the mark be reset (some containers): a thread that looks every 2 ms."""

    def __init__(self):
        self.peak, self.done = 0, threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)
        self.thread.start()

    def look(self):
        while not self.done.is_set():
            self.peak = max(self.peak, status_bytes("VmRSS"))
            time.sleep(0.002)

    def stop(self):
        self.done.set()
        self.thread.join()
        return self.peak


def mark(child):
    """A running child's high-water mark in bytes."""
    return status_bytes("VmHWM", child.pid) or 0


def reset_mark(child):
    """The mark, which begins anew from what the child holds now (in some containers it can't)."""
    peak = mark(child)
    with contextlib.suppress(OSError):
        Path(f"/proc/{child.pid}/clear_refs").write_text("5")
    return peak


def watch(child, patience_s=math.inf):
    """Waits for a child and returns its high-water mark in bytes. A child that takes longer is killed: subprocess.TimeoutExpired.

    Its ru_maxrss would start from the size of this process. The mark only grows, so looking now and then misses at most the
    growth of the last moment before the exit, when memory is being given back.
    """
    peak, until = 0, time.monotonic() + patience_s
    while child.poll() is None:
        if time.monotonic() > until:
            child.kill()
            raise subprocess.TimeoutExpired(child.args, patience_s)
        peak = max(peak, mark(child))
        time.sleep(0.01)
    return peak
