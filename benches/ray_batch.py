"""What a batch over Ray costs beside its work: a stand-in engine sleeps, and everything else is the layer's own.

    PYTHONPATH=target/python:.tools/ray:.tools/pytest python benches/ray_batch.py [--items 10000] [--sleep 0.01]

It prints, for each number of workers, the seconds from the first item to the last, the efficiency (the time asleep over the
workers' time), what an item takes of a worker beside its sleep, and the driver's memory after a tenth of the items and at
the end. All workers share this machine's cores: beyond their number, the cost of an item is that of the cores that it waits
for.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from tilewright.ray.batch import _run
from tilewright.ray.worker import Worker
from tilewright.ray.works import DECODE

#: The bytes of a small latent and its picture.
CONTENT = bytes(20_000)


class Job:
    """A job that sleeps."""

    state = SimpleNamespace(format="png", results=[SimpleNamespace(sample=0, bytes=len(CONTENT))], request=None)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def wait(self) -> Job:
        time.sleep(self._seconds)
        return self

    def save(self, path: str, sample: int) -> None:
        Path(path).write_bytes(CONTENT)

    def decision(self) -> dict[str, Any]:
        return {"policy": {"name": "fixed"}}


class Sleeper:
    """An engine that sleeps."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def submit(self, request: Mapping[str, Any], files: Mapping[str, Any], key: str) -> Job:
        return Job(self._seconds)

    def close(self) -> None:
        pass


class SleepingWorker(Worker):
    """A worker without an engine."""

    def _running(self) -> Any:
        if self._engine is None:
            self._engine = Sleeper(float(os.environ["TILEWRIGHT_SLEEP"]))  # type: ignore[assignment]
        return self._engine


def resident() -> int:
    """This process's memory, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--sleep", type=float, default=0.01, help="seconds that an item sleeps")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    given = parser.parse_args()
    os.environ["TILEWRIGHT_SLEEP"] = str(given.sleep)
    ray.init(num_cpus=max(given.workers), include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    print(f"{given.items} items of {1000 * given.sleep:g} ms on {os.cpu_count()} cores")
    print("workers   seconds   efficiency   ms beside   driver at a tenth   at the end")
    for workers in given.workers:
        with tempfile.TemporaryDirectory() as folder:
            ends: list[float] = []
            memory: list[int] = []

            def ended(item: Mapping[str, Any]) -> None:
                assert item["state"] == "made", item
                ends.append(time.monotonic())
                if len(ends) in (given.items // 10, given.items):
                    memory.append(resident())

            latent = Path(folder, "item.latent")
            latent.write_bytes(CONTENT)
            items = [{"name": f"{number:05}", "latent": str(latent)} for number in range(given.items)]
            _run(DECODE, items, folder, {"vae": "/nowhere"}, {}, {"workers": workers, "cpus": 1, "on_item": ended}, SleepingWorker)
        # Workers start for seconds, which a batch of any length pays once.
        taken, count = ends[-1] - ends[0], given.items - 1
        each = taken * workers / count
        tenth, end = (f"{held / 2**20:.0f} MiB" for held in memory)
        print(f"{workers:7} {taken:9.1f} {given.sleep / each:12.2f} {1000 * (each - given.sleep):11.2f} {tenth:>19} {end:>12}")


if __name__ == "__main__":
    main()
