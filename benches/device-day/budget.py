"""The time of a run: each step has a share, and none takes what later ones need at least."""

import os
import signal
import subprocess
import time


class Budget:
    def __init__(self, total_s, clock=time.monotonic):
        self.clock, self.until = clock, clock() + total_s

    def left(self):
        return max(0.0, self.until - self.clock())

    def share(self, most_s, reserved_s=0):
        """Seconds that a step may take: `most_s`, less where later ones need `reserved_s`."""
        return max(0.0, min(most_s, self.left() - reserved_s))


class Failed(Exception):
    """A step's reason, in one line."""


def run(command, allowed_s, least_s=1.0):
    """→ standard output."""
    if allowed_s < least_s:
        raise Failed(f"not run: {allowed_s:.0f} s were left")
    words = [str(word) for word in command]
    try:
        # A session of its own, so that processes which it started end with it.
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    except OSError as error:
        raise Failed(str(error)) from None
    try:
        printed, said = process.communicate(timeout=allowed_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Failed(f"stopped after {allowed_s:.0f} s") from None
    if process.returncode:
        print("\n".join(said.splitlines()[-20:]), flush=True)
        raise Failed(last_line(said) or f"ended with {process.returncode}")
    return printed


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
