"""A contestant's process: a line in, a line out. It needs nothing but Python on this side."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from pathlib import Path

from unfit import Unfit

HERE = Path(__file__).resolve().parent


class Worker:
    """A process that reads once and then works on command, a line for a line."""

    script = "worker.py"
    # What a late answer's error says beside the time.
    advice = ": allow more with --patience"
    # Seconds to end in, once there is nothing more to do.
    closing_s = 30

    def __init__(self, name, options, folder, patience_s):
        self.name, self.options, self.folder, self.patience_s = name, options | {"contestant": name}, folder, patience_s
        threads = str(options["threads"])
        self.environment = os.environ | {
            "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads,
            # Compiled code of an earlier run would make compiling look free.
            "TORCHINDUCTOR_CACHE_DIR": str(folder / f"compiled-{name}"),
        }
        self.process = None

    def command(self):
        return [sys.executable, str(HERE / self.script), json.dumps(self.options)]

    def start(self):
        self.said = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, env=self.environment)
        return self.answer()

    def ask(self, command):
        try:
            self.process.stdin.write(f"{command}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Unfit(self.last_words()) from None
        return self.answer()

    def answer(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(self.patience_s):
                self.process.kill()
                raise Unfit(f"no answer within {self.patience_s:.0f} s{self.advice}")
        line = self.process.stdout.readline()
        if not line:
            raise Unfit(self.last_words())
        answer = json.loads(line)
        if "error" in answer:
            raise Unfit(answer["error"])
        return answer

    def last_words(self):
        code = self.ended()
        self.said.seek(0)
        lines = [line.strip() for line in self.said if line.strip()]
        return f"its process ended with {code}: {lines[-1] if lines else 'it said nothing'}"

    def ended(self):
        """The process's status. One that does not end by itself is killed, and not waited for: it may hang in a driver."""
        try:
            return self.process.wait(self.closing_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "a kill"

    def close(self):
        if self.process is None:
            return
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.ended()
        self.process.stdout.close()
        self.said.close()
        self.process = None
