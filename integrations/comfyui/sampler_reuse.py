"""Reuse of the network's last output while its change, as estimated from that of its input, stays below a threshold
(EasyCache, arXiv:2507.02860). Lossy: a user has to allow it."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class OutputReuse:
    """The outputs of one sample's calls. They are kept as directions, so that they serve at another noise level.

    Attributes:
        reused: calls that the last output served.
        deviation: the largest change that was passed over so, over the size of what changed.
    """

    def __init__(self) -> None:
        self.reused = 0
        self.deviation = 0.0
        self._input: torch.Tensor | None = None
        self._directions: list[torch.Tensor] = []
        #: The output's change for a change of the input by one; None until two calls have been computed.
        self._rate: float | None = None
        self._change = 0.0

    def served(self, x: torch.Tensor, sigma: torch.Tensor, count: int, threshold: float) -> list[torch.Tensor] | None:
        """The outputs that serve for an input; None if they have to be computed.

        Args:
            x: the network's input, [N, C, …].
            sigma: its noise level, [N].
            count: outputs that are asked for.
            threshold: the change over the output's size up to which the last one serves.
        """
        before = self._input
        if before is None or self._rate is None or before.shape != x.shape or len(self._directions) != count:
            return None
        moved = _size(x - before)
        change = self._change + self._rate * moved / max(_size(self._directions[0]), 1e-12)
        if not change < threshold:
            return None
        self.reused += 1
        self.deviation = max(self.deviation, change)
        self._change = change
        # The next change counts from here.
        self._input = x.clone()
        return [x - _level(sigma, x) * direction for direction in self._directions]

    def computed(self, x: torch.Tensor, sigma: torch.Tensor, outputs: Sequence[torch.Tensor]) -> None:
        """Takes outputs that were computed for an input: what is left of it without noise."""
        level = _level(sigma, x).clamp_min(1e-6)
        directions = [(x - output) / level for output in outputs]
        if self._input is not None and self._input.shape == x.shape and len(directions) == len(self._directions):
            moved = _size(x - self._input)
            if moved > 0:
                self._rate = _size(directions[0] - self._directions[0]) / moved
        self._input, self._directions = x.clone(), directions
        self._change = 0.0


def _level(sigma: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return sigma.to(x).reshape(-1, *[1] * (x.ndim - 1))


def _size(values: torch.Tensor) -> float:
    return float(values.abs().mean())
