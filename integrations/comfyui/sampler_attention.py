"""Attention for so many queries at once: their scores alone are in memory meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: As ComfyUI calls an attention that stands in for the model's: with its own function, and that one's arguments.
Override = Callable[..., torch.Tensor]


def in_pieces(queries: int) -> Override:
    """Attention in products, `queries` at a time, by ComfyUI's own function for products.

    Args:
        queries: queries of a piece.
    """
    from comfy.ldm.modules.attention import attention_basic

    def attend(
        _: Callable[..., torch.Tensor],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        heads: int,
        *args: Any,
        **named: Any,
    ) -> torch.Tensor:
        # The fifth argument is the mask.
        mask = args[0] if args else named.pop("mask", None)
        rest = args[1:]
        has_heads = bool(rest[1] if len(rest) > 1 else named.get("skip_reshape", False))
        keeps_heads = bool(rest[2] if len(rest) > 2 else named.get("skip_output_reshape", False))
        axis = 2 if has_heads else 1
        count = q.shape[axis]
        pieces: list[torch.Tensor] = []
        for start in range(0, count, queries):
            length = min(queries, count - start)
            own_mask = mask
            if mask is not None and mask.shape[-2] == count and count > 1:
                own_mask = mask.narrow(-2, start, length)
            pieces.append(attention_basic(q.narrow(axis, start, length), k, v, heads, own_mask, *rest, **named))
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2 if keeps_heads else 1)

    return attend
