"""One attempt at a plan: the types that it computes in, and the way in which its owner follows and ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import TilewrightError
from ..records import MixedPrecision, Plan

#: Element types of convolutions, by the names that plans have. Values in TF32 are kept in f32.
TORCH_DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
}


class Cancelled(Exception):  # noqa: N818 - it is no error.
    """The attempt's owner has ended it."""


class PlanError(TilewrightError):
    """A plan can't be carried out on this module or this input."""


@dataclass(slots=True)
class Run:
    """One attempt at a plan.

    Attributes:
        plan: the plan that is carried out.
        compute: dtype of convolutions and matrix products, from the plan's precision: f32, bf16 or f16.
        mixed: True if norms, softmax and sums are in f32; otherwise all is in `compute`.
        device: device that computes.
        on_progress: called with the pieces that are done, and with all of them.
        on_frames: called with frames [N, C, T, H, W] as soon as they are final, and with the index of the first.
        is_cancelled: True once the work is to end.
    """

    plan: Plan
    compute: torch.dtype
    mixed: bool
    device: torch.device
    on_progress: Callable[[int, int], None] | None = None
    on_frames: Callable[[Tensor, int], None] | None = None
    is_cancelled: Callable[[], bool] | None = None

    @classmethod
    def of(
        cls,
        plan: Plan,
        device: torch.device | str,
        *,
        on_progress: Callable[[int, int], None] | None = None,
        on_frames: Callable[[Tensor, int], None] | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> Run:
        """An attempt in the types that the plan's precision names.

        Raises:
            PlanError: PyTorch has no convolutions in such a type.
        """
        precision = plan.precision
        compute = TORCH_DTYPES.get(precision.dtype)
        if compute is None:
            known = ", ".join(TORCH_DTYPES)
            raise PlanError(f"precision: convolutions can't run in {precision.dtype} here: take one of {known}")
        mixed = isinstance(precision, MixedPrecision)
        return cls(plan, compute, mixed, torch.device(device), on_progress, on_frames, is_cancelled)

    def check(self) -> None:
        """Called between pieces.

        Raises:
            Cancelled: the work is to end.
        """
        if self.is_cancelled is not None and self.is_cancelled():
            raise Cancelled

    def advance(self, done: int, total: int) -> None:
        """Tells that `done` of `total` pieces are done.

        Raises:
            Cancelled: the work is to end.
        """
        if self.on_progress is not None:
            self.on_progress(done, total)
        self.check()
