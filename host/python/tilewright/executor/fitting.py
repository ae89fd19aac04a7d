"""Questions about networks that other libraries run: what is asked of a policy, what of its answer can be carried out,
and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Generic

import torch

from .. import records
from .._kinds import CapabilitiesT, CostT, PlanT, RequestT
from ..model import DenoiseQuote, Device
from .machine import host_memory
from .networks import Measured, Weights
from .rates import copied_per_second, products_per_second
from .residency import Places
from .running import TORCH_DTYPES

#: The share of free memory that is the limit if nobody sets one.
FREE_SHARE = 0.8

#: The name of the option for the kernel of attention, and of its default: whatever the network's owner has set.
ATTENTION, OWN = "attention-backend", "own"

#: Kernels of attention that PyTorch has on a device, by the names of diffusers, and packages that have others.
_BACKENDS = {
    "cpu": ("native", "_native_math"),
    "cuda": ("native", "_native_math", "_native_flash", "_native_efficient", "_native_cudnn"),
}
_PACKAGED = {"flash_attn": "flash", "xformers": "xformers"}

#: Values of a token that a forward holds at once, for each of its width, until that was measured.
_ASSUMED_WIDTHS = 24

_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


@dataclass(frozen=True, slots=True)
class Question(Generic[RequestT, CapabilitiesT, PlanT, CostT]):
    """A question to a policy.

    Attributes:
        request: the work.
        capabilities: what can be carried out.
        device: the device.
        costs: prices of plans, or the reasons why they can't be carried out.
        fit: a plan as it can be carried out, and a line for each change.
    """

    request: RequestT
    capabilities: CapabilitiesT
    device: Device
    costs: Callable[[Sequence[PlanT]], list[CostT | str]]
    fit: Callable[[PlanT], tuple[PlanT, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Subject:
    """A network on a device.

    Attributes:
        weights: its weights.
        places: where it computes, and where weights can wait.
        device: the device as it was measured.
        tokens: tokens of a forward, over the batch.
        width: the width of a token.
        operations: what a forward computes, as far as shapes tell.
        measured: what earlier forwards of these sizes took, if there were any.
        is_movable: weights can be moved and cast: they are plain tensors that nobody else moves.
        resident_bytes: bytes of its weights that are on the device.
    """

    weights: Weights
    places: Places
    device: Device
    tokens: int
    width: int
    operations: int
    measured: Measured | None
    is_movable: bool
    resident_bytes: int

    def peak_bytes(self, dtype: torch.dtype) -> int:
        """The most bytes of values at once."""
        if self.measured is not None:
            return self.measured.in_type(dtype)
        return self.tokens * self.width * _ASSUMED_WIDTHS * dtype.itemsize

    def seconds(self, dtype: torch.dtype, device: torch.device | None = None) -> float | None:
        """The time of a forward; None if the device has no products in the type."""
        where = device or self.places.device
        rate = products_per_second(where, dtype)
        if rate is None:
            return None
        if self.measured is None or device is not None:
            return self.operations / rate
        before = products_per_second(where, self.measured.dtype)
        return self.measured.seconds * (1.0 if before is None else before / rate)

    def dtypes(self) -> tuple[records.Dtype, ...]:
        """The types that it can be computed in: its own; f32, which loses nothing; and bf16 in place of f32."""
        own = self.weights.dtype
        offered = [own]
        if self.is_movable:
            offered += [torch.float32, *((torch.bfloat16,) if own is torch.float32 else ())]
        found: dict[records.Dtype, None] = {}
        for dtype in offered:
            if dtype in _NAMES and products_per_second(self.places.device, dtype) is not None:
                found[_NAMES[dtype]] = None  # pyright: ignore[reportArgumentType]
        return tuple(found)

    def limit(self, memory_limit: int | None, taken: int) -> int:
        """The most bytes that the work may hold, beside those that others have taken."""
        if memory_limit is not None:
            return max(memory_limit - taken, 1)
        return max(int((self.device.facts.free_bytes + self.resident_bytes) * FREE_SHARE), 1)

    def moved_seconds(self, size: int) -> float:
        """The time in which so many bytes come to the device."""
        rate = copied_per_second(self.places.device, self.places.host)
        return size / rate if rate else 0.0

    def precision(self, asked: records.Precision) -> tuple[records.Precision, str | None]:
        """A precision that it can be computed in, and the reason if it is another one."""
        own = _NAMES.get(self.weights.dtype, "f32")
        if isinstance(asked, records.MixedPrecision):
            kept = asked.dtype if asked.dtype in self.dtypes() else own
            uniform = records.UniformPrecision(dtype=kept)  # pyright: ignore[reportArgumentType]
            return uniform, "its modules have types of their own for norms and sums"
        if asked.dtype in self.dtypes():
            return asked, None
        uniform = records.UniformPrecision(dtype=own)  # pyright: ignore[reportArgumentType]
        return uniform, "its weights are in another type"


def torch_dtype(precision: records.Precision) -> torch.dtype:
    """The type that a plan computes in."""
    return TORCH_DTYPES[precision.dtype]


def denoise_question(
    subject: Subject,
    family: str,
    size: tuple[int, int, int, int],
    tokens: tuple[int, int],
    schedule: tuple[int, int, str, tuple[float, ...]],
    *,
    memory_limit: int | None,
    objective: records.Objective,
    taken: int = 0,
    quote: DenoiseQuote | None = None,
    has_backends: bool = False,
) -> Question[records.DenoiseRequest, records.DenoiseCapabilities, records.DenoisePlan, records.DenoiseCost]:
    """A sample's question.

    Args:
        subject: the denoiser.
        family: its family.
        size: samples, latent frames, latent height and width.
        tokens: tokens of text, and of pictures.
        schedule: steps, passes of a step, the sampler's name, and the sigmas.
        memory_limit: the most bytes to hold, weights included; None for a share of what is free.
        objective: what counts most.
        taken: bytes of the limit that others hold.
        quote: prices of the same work by the package's own model of the network.
        has_backends: attention can be given another kernel.
    """
    weights, places = subject.weights, subject.places
    batch, frames, height, width = size
    steps, passes, sampler, sigmas = schedule
    host = host_memory()
    limit = subject.limit(memory_limit, taken)
    request = records.DenoiseRequest(
        model=records.DenoiserModel(
            family=family,
            parameters=weights.parameters,
            stored_bytes=weights.stored_bytes,
            stored=weights.stored_types[0].name if weights.stored_types else "f32",
            blocks=weights.blocks,
            largest_block_bytes=weights.largest_block_bytes,
            experts=1,
            stored_types=weights.stored_types,
        ),
        batch=batch,
        frames=frames,
        height=height,
        width=width,
        text_tokens=tokens[0],
        image_tokens=tokens[1],
        steps=steps,
        passes=passes,
        sampler=sampler,
        sigmas=sigmas,
        memory_limit=limit,
        host_free_bytes=host.free,
        host_total_bytes=host.total,
        objective=objective,
        transfer_rate=int(copied_per_second(places.device, places.host)),
    )
    can_stream = places.are_apart and subject.is_movable and weights.blocks > 1
    options = (_attention_option(places.device),) if has_backends else ()
    capabilities = records.DenoiseCapabilities(
        dtypes=subject.dtypes(),
        fp8_products=False,
        fused_attention=True,
        queries_least=max(sum(tokens), 1),
        ahead_most=weights.blocks - 1 if can_stream else 0,
        parts_most=1,
        reuse_most=0.0,
        options=options,
    )

    def fault(plan: records.DenoisePlan) -> str | None:
        other = subject.precision(plan.precision)
        if other[1] is not None:
            return f"{plan.precision.dtype}: {other[1]}"
        if plan.guidance == "together" and passes > 1:
            return "the pipeline runs its passes in turn"
        if plan.samples is not None:
            return "the pipeline runs its samples together"
        if plan.ahead is not None and not can_stream:
            if places.are_apart:
                return "its weights are others' to move"
            return "weights lie where they are computed with"
        return None

    def cost(plan: records.DenoisePlan) -> records.DenoiseCost | str:
        why = fault(plan)
        if why is not None:
            return why
        dtype = torch_dtype(plan.precision)
        seconds = subject.seconds(dtype)
        if seconds is None:
            return f"the device has no products in {plan.precision.dtype}"
        peak = subject.peak_bytes(dtype)
        if quote is not None:
            plain = replace(plan, ahead=None, options=())
            [known] = quote.estimates([plain])
            if not isinstance(known, str):
                peak, seconds = known.peak_bytes, known.step_ms / 1000 / passes
        held, moved = _weights(weights, places, dtype, plan.ahead, plan.weights == "expanded")
        coming = subject.moved_seconds(moved)
        one = max(seconds, coming) if plan.ahead else seconds + coming
        return records.DenoiseCost(
            peak_bytes=peak, weights_bytes=held, step_ms=one * passes * 1000, moved_bytes=moved * passes
        )

    def fit(plan: records.DenoisePlan) -> tuple[records.DenoisePlan, tuple[str, ...]]:
        notes: list[str] = []
        precision, why = subject.precision(plan.precision)
        if why is not None:
            notes.append(f"precision {_words(plan.precision)} → {_words(precision)}: {why}")
        changed = replace(plan, precision=precision)
        if plan.guidance == "together":
            changed = replace(changed, guidance="in-turn")
            notes.append("guidance together → in-turn: it is the pipeline's own")
        if plan.samples is not None:
            changed = replace(changed, samples=None)
            notes.append(f"samples {plan.samples} → all: the pipeline runs them together")
        if plan.ahead is not None and not can_stream:
            changed = replace(changed, ahead=None)
            notes.append(f"ahead {plan.ahead} → all: {fault(replace(changed, ahead=0))}")
        if not isinstance(plan.attention, records.FusedAttention):
            changed = replace(changed, attention=records.FusedAttention())
            notes.append("attention in pieces → fused: it is the network's own")
        return changed, tuple(notes)

    return Question(request, capabilities, subject.device, lambda plans: [cost(plan) for plan in plans], fit)


def text_question(
    subject: Subject,
    kind: str,
    tokens: tuple[int, ...],
    heads: int,
    table_bytes: int,
    *,
    memory_limit: int | None,
    objective: records.Objective,
    taken: int = 0,
) -> Question[records.TextRequest, records.TextCapabilities, records.TextPlan, records.TextCost]:
    """A text encoder's question.

    Args:
        subject: the encoder.
        kind: its kind, with its width.
        tokens: tokens of each text.
        heads: heads of its attention.
        table_bytes: bytes of the tables that tokens are looked up in.
        memory_limit: the most bytes to hold, weights included; None for a share of what is free.
        objective: what counts most.
        taken: bytes of the limit that others hold.
    """
    weights, places = subject.weights, subject.places
    host = host_memory()
    request = records.TextRequest(
        model=records.EncoderModel(
            kind=kind,
            stored_types=weights.stored_types,
            parameter_bytes=max(weights.stored_bytes - table_bytes, 0),
            blocks=weights.blocks,
            width=subject.width,
            head_width=max(subject.width // heads, 1),
        ),
        tokens=tokens,
        memory_limit=subject.limit(memory_limit, taken),
        host_free_bytes=host.free,
        host_total_bytes=host.total,
        objective=objective,
        transfer_rate=int(copied_per_second(places.device, places.host)),
    )
    can_move = places.are_apart and subject.is_movable
    offered: tuple[records.Place, ...] = ("device",) if places.are_apart else ("host",)
    if can_move:
        offered = ("device", "host")
    capabilities = records.TextCapabilities(
        dtypes=subject.dtypes(), places=offered, weights=("packed", "expanded"), kept=True
    )

    def fault(plan: records.TextPlan) -> str | None:
        other = subject.precision(plan.precision)
        if other[1] is not None:
            return f"{plan.precision.dtype}: {other[1]}"
        if plan.place not in offered:
            return f"{plan.place}: its weights are not ours to move"
        return None

    def cost(plan: records.TextPlan) -> records.TextCost | str:
        why = fault(plan)
        if why is not None:
            return why
        on_host = places.are_apart and plan.place == "host"
        dtype = torch_dtype(plan.precision)
        seconds = subject.seconds(dtype, places.host if on_host else None)
        if seconds is None:
            return f"no products in {plan.precision.dtype} there"
        peak = subject.peak_bytes(dtype)
        held, _ = _weights(weights, places, dtype, None, True)
        absent = max(weights.stored_bytes - subject.resident_bytes, 0)
        loading = 0.0 if on_host or not places.are_apart else subject.moved_seconds(absent)
        return records.TextCost(
            elapsed_ms=seconds * 1000,
            load_ms=loading * 1000,
            peak_bytes=0 if on_host else peak,
            weights_bytes=0 if on_host else held,
            host_bytes=peak + held if on_host else 0,
        )

    def fit(plan: records.TextPlan) -> tuple[records.TextPlan, tuple[str, ...]]:
        notes: list[str] = []
        precision, why = subject.precision(plan.precision)
        if why is not None:
            notes.append(f"precision {_words(plan.precision)} → {_words(precision)}: {why}")
        changed = replace(plan, precision=precision)
        if plan.place not in offered:
            changed = replace(changed, place=offered[0])
            notes.append(f"place {plan.place} → {offered[0]}: its weights are not ours to move")
        if not plan.kept and not can_move:
            changed = replace(changed, kept=True)
            notes.append("kept false → true: the pipeline holds it in the memory that computes")
        return changed, tuple(notes)

    return Question(request, capabilities, subject.device, lambda plans: [cost(plan) for plan in plans], fit)


def _weights(
    weights: Weights, places: Places, dtype: torch.dtype, ahead: int | None, expanded: bool
) -> tuple[int, int]:
    """Bytes of weights on the device at once, and those that come to it again in each forward."""
    stored = weights.stored_bytes
    streamed = stored - weights.rest_bytes
    moved = 0 if ahead is None else streamed
    at_home = stored if ahead is None else weights.rest_bytes
    if dtype is weights.dtype:
        coming = 0 if ahead is None else (ahead + 1) * weights.largest_block_bytes
        return at_home + min(coming, streamed), moved
    scale = dtype.itemsize / weights.dtype.itemsize
    if expanded:
        # Those that they are made of stay.
        return at_home + int(stored * scale), moved
    blocks = min(((ahead or 0) + 1) * weights.largest_block_bytes, streamed)
    return at_home + int((weights.rest_bytes + blocks) * scale), moved


def _attention_option(device: torch.device) -> records.PlanOption:
    words = (OWN, *_BACKENDS.get(device.type, ("native",)))
    if device.type == "cuda":
        words += tuple(name for package, name in _PACKAGED.items() if find_spec(package) is not None)
    return records.PlanOption(
        name=ATTENTION,
        summary="the kernel of attention, by diffusers' name; own leaves it as the pipeline has it",
        values=records.TextValues(words=words),
        default=OWN,
    )


def _words(precision: records.Precision) -> str:
    return f"mixed {precision.dtype}" if isinstance(precision, records.MixedPrecision) else precision.dtype
