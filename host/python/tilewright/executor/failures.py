"""Failures of attempts that another plan may avoid, told from errors that none does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ..errors import TilewrightError
from ..records import FailedAttempt, Failure, NonFiniteFailure, OutOfMemoryFailure


class WorkFailed(TilewrightError):
    """No plan gave an output; its cause is the last attempt's error.

    Attributes:
        attempts: plans that were tried.
        failure: the last one's failure.
    """

    attempts: int
    failure: Failure

    def __init__(self, line: str, attempts: int, failure: Failure) -> None:
        super().__init__(line)
        self.attempts = attempts
        self.failure = failure

    def __reduce__(self) -> tuple[type[WorkFailed], tuple[str, int, Failure]]:
        return type(self), (str(self), self.attempts, self.failure)


class NonFiniteValues(Exception):  # noqa: N818 - it ends one attempt, and never leaves the governor.
    """An attempt's output holds values that are not finite.

    Attributes:
        values: so many.
    """

    def __init__(self, values: int) -> None:
        super().__init__(f"{values} values are not finite")
        self.values = values


#: Words in messages of allocators: PyTorch's of GPUs, PyTorch's of CPUs, and those of libraries beneath.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|std::bad_alloc|"
    r"(?:CUBLAS|CUDNN|HIPBLAS|MIOPEN)_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)

#: The bytes that messages name: "Tried to allocate 2.50 GiB", "you tried to allocate 137438953472 bytes".
_BYTES = re.compile(r"tried to allocate ([0-9]+(?:\.[0-9]+)?) ?(bytes|KiB|MiB|GiB|TiB)", re.IGNORECASE)

_UNITS = {"bytes": 0, "kib": 10, "mib": 20, "gib": 30, "tib": 40}


def failure_of(error: BaseException) -> Failure | None:
    """The failure that an attempt's error is; None if another plan does not avoid it."""
    if isinstance(error, NonFiniteValues):
        return NonFiniteFailure(values=error.values)
    is_out = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    if is_out or (isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error))):
        return OutOfMemoryFailure(bytes=_bytes_of(str(error)))
    return None


def non_finite(values: Tensor) -> int:
    """The number of values that are NaN or infinite, looked for part by part: a mask of all would take memory that no
    plan has counted."""
    if not values.is_floating_point() or values.numel() == 0:
        return 0
    count = torch.zeros((), dtype=torch.int64, device=values.device)
    for part in _parts(values, 1 << 22):
        count += (~torch.isfinite(part)).sum()
    return int(count)


def check_finite(values: Tensor) -> Tensor:
    """The same values.

    Raises:
        NonFiniteValues: some are not finite.
    """
    found = non_finite(values)
    if found:
        raise NonFiniteValues(found)
    return values


def _parts(values: Tensor, most: int) -> list[Tensor]:
    """Parts of a tensor, none of which has many more values than `most`, as views."""
    parts: list[Tensor] = [values]
    for axis in range(values.dim()):
        if all(part.numel() <= most for part in parts):
            break
        step = max(most // max(parts[0].numel() // max(parts[0].shape[axis], 1), 1), 1)
        divided: list[Tensor] = []
        for part in parts:
            divided += cast("tuple[Tensor, ...]", cast(Any, part).split(step, axis))
        parts = divided
    return parts


def _bytes_of(message: str) -> int:
    found = _BYTES.search(message)
    return int(float(found[1]) * (1 << _UNITS[found[2].lower()])) if found else 0


def without_frames(error: BaseException) -> BaseException:
    """An error without the frames that it went through, which hold tensors."""
    known: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in known:
            continue
        known.add(id(one))
        one.__traceback__ = None
        waiting += [one.__cause__, one.__context__]
    return error


def advice_on(
    stage: str, failed: Sequence[FailedAttempt], values: Tensor, error: BaseException | None
) -> str:
    """A line that says what failed and what to do."""
    last = failed[-1]
    count = f"gave up after {len(failed)} attempt{'s' if len(failed) > 1 else ''}"
    if isinstance(last.failure, NonFiniteFailure):
        name = "latents" if stage == "decode" else "pixels"
        own = non_finite(values)
        if own:
            return f"{name}: {own} values are NaN or infinite, which no plan mends: make them anew, in a wider type"
        return (
            f"{count}: {last.failure.values} values of the {stage} are NaN or infinite even in "
            f"{last.plan.precision.dtype}: check the autoencoder's weights"
        )
    said = "" if error is None or isinstance(error, NonFiniteValues) else f" ({_first_line(error)})"
    return f"{count}, the last for lack of memory{said}: free memory, allow blended tiles, or make a smaller {stage}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
