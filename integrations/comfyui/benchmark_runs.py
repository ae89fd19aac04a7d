"""Two ways of the same work, measured against each other on the same inputs."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Seconds between samples of memory.
INTERVAL = 0.003

#: The two ways, in words.
STOCK, GOVERNED = "stock", "governed"


@dataclass(frozen=True, slots=True)
class Case:
    """Work that is done both ways.

    Attributes:
        label: its name, as `decode 512×512`.
        stock: ComfyUI's own way; it returns its output.
        governed: the way by policy, on the same inputs.
    """

    label: str
    stock: Callable[[], torch.Tensor]
    governed: Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Side:
    """The measurements of one way.

    Attributes:
        elapsed_ms: the time of each run in milliseconds, warm-ups left out.
        mean_ms: their mean.
        deviation_ms: their standard deviation; 0 of one run.
        peak_bytes: the highest memory of any run beyond what was held before, weights that were loaded meanwhile
        included.
        error: the line of an error, if it failed; the rest is empty then.
    """

    elapsed_ms: tuple[float, ...] = ()
    mean_ms: float = 0.0
    deviation_ms: float = 0.0
    peak_bytes: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The measurements of a case.

    Attributes:
        case: its name.
        stock: ComfyUI's own way.
        governed: the way by policy.
        ratio: the mean time of the stock way over that of the governed one: above 1 the governed one is faster.
        ratio_deviation: the standard deviation of the ratios of runs that followed each other.
        difference: the largest absolute difference of the outputs; None if one failed.
    """

    case: str
    stock: Side
    governed: Side
    ratio: float | None
    ratio_deviation: float
    difference: float | None

    def to_dict(self) -> dict[str, Any]:
        """The measurements as in JSON."""
        return asdict(self)


class Highest:
    """The highest memory while a `with` runs, beyond what was held before: PyTorch's pool on a GPU, or else the
    process."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._before = 0
        self.bytes = 0

    def __enter__(self) -> Highest:
        self._before = self._held()
        self._thread = threading.Thread(target=self._sample, name="tilewright benchmark", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        assert self._thread is not None
        self._thread.join()
        self._look()
        if self._device.type == "cuda":
            import torch

            # A governed run sets this mark back for its own measurement: of both the higher one counts.
            self.bytes = max(self.bytes, torch.cuda.max_memory_allocated(self._device) - self._before)

    def _sample(self) -> None:
        while not self._ended.wait(INTERVAL):
            self._look()

    def _look(self) -> None:
        self.bytes = max(self.bytes, self._held() - self._before)

    def _held(self) -> int:
        if self._device.type == "cuda":
            import torch

            return torch.cuda.memory_allocated(self._device)
        import os

        from .memory import resident

        return resident(os.getpid())


def compare(
    case: Case,
    device: torch.device,
    *,
    runs: int,
    warm_up: int,
    on_run: Callable[[], None] = lambda: None,
) -> Comparison:
    """Runs a case both ways in turn: in an order that changes from run to run, so that what comes second, or on a
    warmer machine, is no way's advantage.

    Args:
        case: the work.
        device: the device whose memory is measured.
        runs: the runs of each way that count.
        warm_up: the runs of each way before them, which don't.
        on_run: called after each run; what it raises ends the comparison.
    """
    ways = {STOCK: case.stock, GOVERNED: case.governed}
    times: dict[str, list[float]] = {STOCK: [], GOVERNED: []}
    peaks = {STOCK: 0, GOVERNED: 0}
    errors = {STOCK: "", GOVERNED: ""}
    outputs: dict[str, torch.Tensor] = {}
    for number in range(warm_up + runs):
        for way in (STOCK, GOVERNED) if number % 2 == 0 else (GOVERNED, STOCK):
            if errors[way]:
                continue
            try:
                output, elapsed, peak = _measured(ways[way], device)
            except Exception as error:
                errors[way] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            finally:
                on_run()
            outputs.setdefault(way, output)
            if number >= warm_up:
                times[way].append(elapsed)
                peaks[way] = max(peaks[way], peak)
    sides = {way: _side(times[way], peaks[way], errors[way]) for way in ways}
    pairs = list(zip(times[STOCK], times[GOVERNED]))
    ratios = [stock / governed for stock, governed in pairs if governed > 0]
    return Comparison(
        case.label,
        sides[STOCK],
        sides[GOVERNED],
        sides[STOCK].mean_ms / sides[GOVERNED].mean_ms if ratios else None,
        statistics.stdev(ratios) if len(ratios) > 1 else 0.0,
        _difference(outputs),
    )


def _measured(work: Callable[[], torch.Tensor], device: torch.device) -> tuple[torch.Tensor, float, int]:
    """A run's output on the host, its time in milliseconds, and its peak in bytes."""
    import time

    from .memory import trim_all

    trim_all()
    _settle(device)
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
    with Highest(device) as highest:
        begun = time.perf_counter()
        output = work()
        _settle(device)
        elapsed = (time.perf_counter() - begun) * 1000
    return output.detach().to("cpu").float(), elapsed, highest.bytes


def _settle(device: torch.device) -> None:
    """Waits for work that the device still has."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _side(times: Sequence[float], peak: int, error: str) -> Side:
    if error or not times:
        return Side(error=error)
    spread = statistics.stdev(times) if len(times) > 1 else 0.0
    return Side(tuple(times), statistics.fmean(times), spread, peak)


def _difference(outputs: dict[str, torch.Tensor]) -> float | None:
    if len(outputs) < 2 or outputs[STOCK].shape != outputs[GOVERNED].shape:
        return None
    return float((outputs[STOCK] - outputs[GOVERNED]).abs().max())


def table(comparisons: Sequence[Comparison]) -> str:
    """The measurements as a table in Markdown."""
    from .decision import duration, size

    lines = [
        "| case | stock | governed | stock / governed | peak, stock | peak, governed | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in comparisons:
        cells = [
            side.error or f"{duration(side.mean_ms)} ± {duration(side.deviation_ms)}"
            for side in (one.stock, one.governed)
        ]
        ratio = "–" if one.ratio is None else f"{one.ratio:.2f} ± {one.ratio_deviation:.2f}"
        peaks = ["–" if side.error else size(side.peak_bytes) for side in (one.stock, one.governed)]
        difference = "–" if one.difference is None else f"{one.difference:.1e}"
        lines.append(f"| {one.case} | {cells[0]} | {cells[1]} | {ratio} | {peaks[0]} | {peaks[1]} | {difference} |")
    return "\n".join(lines)
