"""Tilewright's side of denoise.py: `tilewright sample`, followed by the bar that it draws on a terminal.

A record has the mean of all steps, the first one included. The bar tells when each step is done, so that steps are measured one by one and
the process can be suspended between them, as others wait for their turn. It is drawn every 200 ms: a sample is wrong by so much at most,
and their mean by so much once.
"""

import fcntl
import json
import os
import pty
import re
import selectors
import signal
import struct
import subprocess
import termios
import time

import numpy
from safetensors.torch import load_file

from memory import mark, reset_mark
from network import Unfit

# Steps of a process; it is ended when it has done what is to be measured. For both 57 and 30 blocks there is a place in every step of 25
# where the bar's percentage changes.
STEPS = 25
SHOWN = re.compile(rb"\r?([^\r\n\[]*) \[[^\]]*\] +(\d+) %")


def percentage(step, block, blocks):
    """What the bar shows when a block begins: host/cli/src/progress.rs in thousandths, as indicatif prints them."""
    position = int((step + block / blocks) / STEPS * 1000)
    return int(format(float(numpy.float32(position) / numpy.float32(1000) * numpy.float32(100)), ".0f"))


def marks(blocks):
    """Percentages that are first shown at the same block of each step, from the second step on."""
    changes = [{block: percentage(step, block, blocks) for block in range(blocks)
                if percentage(step, block, blocks) != percentage(*divmod(step * blocks + block - 1, blocks), blocks)} for step in range(1, STEPS)]
    same = sorted(set.intersection(*map(set, changes)))
    if not same:
        raise Unfit(f"no percentage of tilewright's bar tells where a step of {blocks} blocks ends")
    return [change[same[0]] for change in changes]


class Bar:
    """A run of the program, and what its bar shows."""

    def __init__(self, command, environment, patience_s):
        self.patience_s, self.shown = patience_s, b""
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 240, 0, 0))
        try:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave,
                                            env=environment | {"TERM": "xterm"})
        finally:
            os.close(slave)

    def wait(self, mark):
        """Until the bar shows as much."""
        until = time.monotonic() + self.patience_s
        with selectors.DefaultSelector() as selector:
            selector.register(self.master, selectors.EVENT_READ)
            while True:
                if not selector.select(until - time.monotonic()):
                    raise Unfit(f"no pass within {self.patience_s:.0f} s: allow more with --patience")
                try:
                    self.shown = self.shown[-4096:] + os.read(self.master, 4096)
                except OSError:
                    lines = self.shown.decode(errors="replace").splitlines() or ["it said nothing"]
                    raise Unfit(f"tilewright sample ended with {self.process.wait()}: {lines[-1].strip()}") from None
                found = SHOWN.findall(self.shown)
                if found and b"loading" not in found[-1][0] and int(found[-1][1]) >= mark:
                    return

    def suspend(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def close(self):
        # It ends at the next block; what it says while doing so has to be read.
        self.process.terminate()
        self.resume()
        try:
            while os.read(self.master, 4096):
                pass
        except OSError:
            pass
        self.process.wait()
        os.close(self.master)


class Sampling:
    """A contestant: the program by one plan."""

    def __init__(self, program, plan, arguments, task, needs, patience_s, number):
        self.name, self.program, self.task, self.needs, self.patience_s = f"tilewright {plan}", program, task, needs, patience_s
        self.output = task.folder / f"tilewright-{number}.safetensors"
        self.peak, self.warm, self.plan, self.about, self.bar = 0, 0, None, None, None
        sets = [part for pair in plan.split(",") if pair for part in ("--set", pair)]
        self.command = [program.path, "sample", "--transformer", str(task.weights), "--conditioning", str(task.conditioning), "--noise",
                        str(task.noise), *arguments, *sets, *program.options, *program.extra]

    @property
    def alive(self):
        return self.bar is not None

    def line(self, steps, sigma, output):
        sigmas = [sigma * (steps - step) / steps for step in range(steps + 1)]
        return [*self.command, "--sigmas", ",".join(map(str, sigmas)), "-o", str(output)]

    def once(self):
        """A run with one step, for its result and its record: the time of the step."""
        printed, peak = self.program.run([*self.line(1, self.task.sigma, self.output), "--json"])
        self.peak = max(self.peak, peak)
        try:
            record = json.loads(printed)
            self.plan, outcome = record["plan"], record["outcome"]
            self.about = f"loads in {outcome['load_ms'] / 1000:.1f} s, reports {outcome['peak_bytes'] / 2**20:.0f} MiB beside its weights"
            self.marks = marks(record["request"]["model"]["blocks"])
            return outcome["elapsed_ms"] / 1000
        except (ValueError, KeyError, TypeError):
            raise Unfit("tilewright sample --json does not print a record with its outcome: give a program that does") from None

    def start(self):
        """Reads, and does one pass that is not measured; where it is the first run of all, the time of a process's first pass."""
        first = None if self.output.exists() else self.once()
        self.bar = Bar(self.line(STEPS, self.task.sigma, self.output.with_name("other.safetensors")), self.program.environment, self.patience_s)
        self.ahead = iter(self.marks)
        self.bar.wait(next(self.ahead))
        self.bar.suspend()
        self.peak = max(self.peak, reset_mark(self.bar.process))
        return first

    def measure(self):
        shown = next(self.ahead)
        start = time.perf_counter()
        self.bar.resume()
        self.bar.wait(shown)
        self.bar.suspend()
        elapsed = time.perf_counter() - start
        self.warm = max(self.warm, mark(self.bar.process))
        return elapsed

    def velocity(self, _):
        return self.task.velocity(load_file(self.output)["latent"].float())

    def close(self):
        if self.bar:
            self.bar.close()
            self.bar = None


# The first step is never measured.
MOST_PASSES = STEPS - 2
