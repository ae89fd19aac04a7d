"""The time of a run, and processes that keep to it."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

# Seconds that a killed process gets to end in. One that hangs in a driver may never do.
ENDING_S = 5
# What ends the run, with all that it started.
SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def end_by_signals():
    """As an exception, so that what runs is ended first."""
    for number in SIGNALS:
        signal.signal(number, lambda number, _: sys.exit(128 + number))


class Budget:
    def __init__(self, total_s, clock=time.monotonic):
        self.clock, self.until = clock, clock() + total_s

    def left(self):
        return max(0.0, self.until - self.clock())

    def share(self, most_s, reserved_s=0):
        """A budget of `most_s` seconds, less where `reserved_s` of these would not be left."""
        return Budget(max(0.0, min(most_s, self.left() - reserved_s)), self.clock)


class Failed(Exception):
    """A step's reason, in one line, and what its command printed until then."""

    def __init__(self, reason, printed=""):
        super().__init__(reason)
        self.printed = printed


def run(command, budget):
    """→ standard output."""
    allowed_s = budget.left()
    if not allowed_s:
        raise Failed("not run: no time was left")
    # Files, not pipes: a process that outlives a kill would hold a pipe open, and what was said until then would be lost.
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as said:
        reason = ended(command, allowed_s, printed, said)
        printed, said = whole(printed), whole(said)
    if reason is None:
        return printed
    print("\n".join(line for text in (printed, said) for line in text.splitlines()[-20:]), flush=True)
    raise Failed(reason or last_line(said) or "it said nothing", printed)


def ended(command, allowed_s, printed, said):
    """Runs the command. → None where it did what it should, else the reason: empty where standard error has it."""
    process, before = None, signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        # A group of its own, so that processes which it started end with it; in this session, so that none outlives the whole run.
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=printed, stderr=said, process_group=0,
                                   preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before))
        # Not sooner, or a signal could end this process while the other has begun and isn't known yet.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        code = process.wait(allowed_s)
    except OSError as error:
        return str(error)
    except subprocess.TimeoutExpired:
        return f"stopped after {allowed_s:.0f} s"
    finally:
        if process and process.poll() is None:
            kill(process)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return f"ended by signal {-code}" if code < 0 else "" if code else None


def kill(process):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDING_S)


def whole(file):
    file.seek(0)
    return file.read()


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
