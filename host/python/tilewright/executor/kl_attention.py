"""Attention over all pixels of a picture, in pieces of queries."""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .band_norms import Norm
from .layers import CPU_OPERATIONS, Format, Linear, casts, entered, is_replaced

#: The most scores that attention without a fused kernel holds at once.
SCORES = 1 << 24

#: The fewest queries of a piece: PyTorch's fused attention on a CPU blocks fewer otherwise.
LEAST_QUERIES = 768

#: The most queries that a fused kernel of a GPU takes at once, so that a cancellation is seen between them.
FUSED_QUERIES = 1 << 15

#: diffusers' processors that compute attention alone, each in its way.
PROCESSORS = frozenset(
    {
        "AttnProcessor",
        "AttnProcessor2_0",
        "AttnProcessorNPU",
        "FusedAttnProcessor2_0",
        "SlicedAttnProcessor",
        "XFormersAttnProcessor",
        "XLAFlashAttnProcessor2_0",
    }
)


class Attention(Protocol):
    """Attention added to its input."""

    def forward(self, to: Format, given: list[Tensor]) -> Tensor:
        """[N, C, H, W] to the same. The picture is taken out of the list, and may be written to."""
        ...

    @property
    def called(self) -> tuple[nn.Module, ...]:
        """The modules that it calls."""
        ...


class PixelAttention:
    """Attention between pixels, of some heads, added to its input.

    Attributes:
        heads: heads, which share the channels.
        scale: the factor of the products of queries and keys.
    """

    __slots__ = ("_block", "_norm", "_output", "_together", "_triple", "heads", "scale")

    def __init__(
        self,
        block: nn.Module,
        norm: nn.Module,
        triple: tuple[nn.Module, ...],
        output: nn.Module,
        *,
        heads: int = 1,
        scale: float | None = None,
    ) -> None:
        self._block = block
        self._norm = Norm(norm)
        #: Queries, keys and values, or all of them from one layer.
        self._triple = tuple(Linear(one) for one in triple)
        self._output = Linear(output)
        self.heads = heads
        self.scale = scale

    @property
    def called(self) -> tuple[nn.Module, ...]:
        return tuple(one.module for one in (*self._triple, self._output))

    def forward(self, to: Format, given: list[Tensor]) -> Tensor:
        with entered(self._block):
            picture = given.pop()
            batch, channels, height, width = picture.shape
            tokens = self._norm.forward(to, picture).to(to.compute)
            tokens = tokens.reshape(batch, channels, height * width).transpose(1, 2).contiguous()
            to.run.check()
            if len(self._triple) == 1:
                query, key, value = self._triple[0].forward(to, tokens).chunk(3, dim=-1)
            else:
                query, key, value = [one.forward(to, tokens) for one in self._triple]
            del tokens
            to.run.check()
            attend(to, query, key, value, self.heads, self.scale)
            del key, value
            mixed = self._output.forward(to, query)
            del query
            return picture.add_(mixed.to(to.layer).transpose(1, 2).reshape(picture.shape))


class CalledAttention:
    """An attention block that is nobody's we know: called as it is, in its own type."""

    __slots__ = ("_block",)

    def __init__(self, block: nn.Module) -> None:
        self._block = block

    @property
    def called(self) -> tuple[nn.Module, ...]:
        return (self._block,)

    def forward(self, to: Format, given: list[Tensor]) -> Tensor:
        to.run.check()
        own = next((one.dtype for one in self._block.parameters()), to.compute)
        return to.ordered(cast(Tensor, self._block(given.pop().to(own))).to(to.layer))


def attend(to: Format, query: Tensor, key: Tensor, value: Tensor, heads: int = 1, scale: float | None = None) -> None:
    """Attention of tokens [N, T, C]: the result takes the query's place."""
    queries, keys, values = (_headed(one, heads) for one in (query, key, value))
    tokens = queries.shape[2]
    step = _queries_at_once(to, queries, keys, values)
    # The rest joins the piece before.
    ends = list(range(step, tokens - step // 2, step))
    for start, end in zip([0, *ends], [*ends, tokens]):
        to.run.check()
        part = queries[:, :, start:end]
        part.copy_(F.scaled_dot_product_attention(part, keys, values, scale=scale))


def _headed(tokens: Tensor, heads: int) -> Tensor:
    """[N, T, C] to [N, heads, T, C / heads] of the same memory."""
    batch, count, channels = tokens.shape
    return tokens.view(batch, count, heads, channels // heads).transpose(1, 2)


def _queries_at_once(to: Format, query: Tensor, key: Tensor, value: Tensor) -> int:
    """Queries of a piece: as many as keep the scores small where there is no fused kernel."""
    batch, heads, tokens, width = query.shape
    few = max(SCORES // max(batch * heads * key.shape[2], 1), 1)
    if to.device.type == "cpu":
        if to.run.is_cancelled is None:
            return max(few, LEAST_QUERIES)
        each = 4.0 * batch * heads * key.shape[2] * width
        return max(min(int(CPU_OPERATIONS / max(each, 1.0)), few), min(tokens, LEAST_QUERIES))
    return FUSED_QUERIES if to.device.type == "cuda" and _is_fused(query, key, value) else few


def _is_fused(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """True if a GPU has a kernel for this attention that holds no scores."""
    cuda = cast(Any, torch.backends.cuda)
    try:
        asked = cuda.SDPAParams(query, key, value, None, 0.0, False, False)
        flash = cuda.flash_sdp_enabled() and cuda.can_use_flash_attention(asked, False)
        efficient = cuda.mem_efficient_sdp_enabled() and cuda.can_use_efficient_attention(asked, False)
        return bool(flash or efficient)
    except (AttributeError, TypeError, RuntimeError):
        # Another PyTorch asks otherwise: pieces are right everywhere.
        return False


def attention_of(block: nn.Module) -> Attention:
    """The attention of a middle block's, of either dialect."""
    named = cast(Any, block)
    names = type(block).__name__
    if names == "AttnBlock" and all(hasattr(block, name) for name in ("norm", "q", "k", "v", "proj_out")):
        return CalledAttention(block) if is_replaced(block) else PixelAttention(
            block, named.norm, (named.q, named.k, named.v), named.proj_out
        )
    return _of_diffusers(block) or CalledAttention(block)


def _of_diffusers(block: nn.Module) -> PixelAttention | None:
    named = cast(Any, block)
    processor = type(getattr(block, "processor", None)).__name__
    if type(block).__name__ != "Attention" or processor not in PROCESSORS or is_replaced(block):
        return None
    plain = {
        "residual_connection": True,
        "rescale_output_factor": 1.0,
        "spatial_norm": None,
        "norm_q": None,
        "norm_k": None,
        "norm_cross": None,
        "add_k_proj": None,
    }
    if any(getattr(block, name, value) not in (value,) for name, value in plain.items()):
        return None
    if not isinstance(named.group_norm, nn.GroupNorm) and not casts(named.group_norm):
        return None
    is_fused = getattr(block, "fused_projections", False) and processor == "FusedAttnProcessor2_0"
    triple = (named.to_qkv,) if is_fused else (named.to_q, named.to_k, named.to_v)
    return PixelAttention(
        block, named.group_norm, triple, named.to_out[0], heads=int(named.heads), scale=float(named.scale)
    )
