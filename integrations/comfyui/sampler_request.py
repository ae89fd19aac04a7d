"""A sample of ComfyUI as policies see it: the request, the plans that can be carried out, and their prices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from comfy import model_management
from tilewright import records

#: Types by their names.
DTYPES: dict[str, torch.dtype] = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

#: Names that records have for types of stored weights.
_STORED = {
    torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16",
    torch.float8_e4m3fn: "f8_e4m3", torch.float8_e5m2: "f8_e5m2", torch.int8: "i8", torch.uint8: "u8",
}  # fmt: skip

#: Families by the names of ComfyUI's classes.
_FAMILIES = {
    "Flux": "flux", "WAN21": "wan-2.1", "WAN22": "wan-2.2", "BaseModel": "sd", "SDXL": "sdxl", "SD3": "sd3",
    "QwenImage": "qwen-image",
}  # fmt: skip

#: The share of a pass's time that each call of the network costs beside its work.
_CALL = 0.02

#: The share of time that attention in pieces costs beside its work, and the share of memory that it saves.
_PIECES_TIME, _PIECES_MEMORY = 0.03, 0.1

#: Operations a second, for want of a measurement.
_RATE = 5e10

#: Seconds that an operation took by this process's latest sample, by family and device.
_measured: dict[tuple[str, str], float] = {}


@dataclass(frozen=True)
class Sample:
    """The facts that are known of a sample before it begins.

    Attributes:
        patcher: ComfyUI's patcher of the model.
        shape: the latents' shape, [N, C, h, w] or [N, C, T, h, w].
        sigmas: the noise levels, one more than steps.
        sampler: the sampler's name.
        passes: conditionings that each step runs the network with.
        text_tokens: tokens of the longest conditioning.
        reuse: the change of the output up to which the last one may serve again; 0 if each is to be computed.
        allows_lossy: types narrower than the model's own are allowed.
    """

    patcher: Any
    shape: tuple[int, ...]
    sigmas: tuple[float, ...]
    sampler: str
    passes: int
    text_tokens: int
    reuse: float
    allows_lossy: bool

    @property
    def own_dtype(self) -> torch.dtype:
        """The type that the model computes in by ComfyUI's choice."""
        # Another run's type may still be on the model that handles share; this handle's own is told apart.
        cast = self.patcher.get_model_object("manual_cast_dtype")
        return self.patcher.model.get_dtype() if cast is None else cast

    @property
    def family(self) -> str:
        """The model's family."""
        name = type(self.patcher.model).__name__
        return _FAMILIES.get(name, name.lower())

    @property
    def image_tokens(self) -> int:
        """Positions that the network works on, as far as its patches are known."""
        network = self.patcher.model.diffusion_model
        patch = getattr(network, "patch_size", 1)
        area = math.prod(patch) if isinstance(patch, (tuple, list)) else int(patch or 1) ** 2
        return max(1, math.prod(self.shape[2:]) // max(1, area))

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights as they are loaded."""
        return int(self.patcher.model_size())

    def offered_dtypes(self) -> tuple[str, ...]:
        """Types that the network can be computed in: its own, the wider one, and if allowed narrower ones."""
        own = NAMES.get(self.own_dtype)
        if own is None:
            return ("f32",)
        offered = [own]
        if is_castable(self.patcher):
            supported = getattr(self.patcher.model.model_config, "supported_inference_dtypes", [])
            for name, dtype in DTYPES.items():
                is_narrower = dtype.itemsize < self.own_dtype.itemsize
                is_wider = dtype.itemsize > self.own_dtype.itemsize
                if is_wider or (is_narrower and self.allows_lossy and dtype in supported):
                    offered.append(name)
        return tuple(offered)

    def request(self, limit: int, objective: Any, device: records.Device) -> records.DenoiseRequest:
        """The request.

        Args:
            limit: the most bytes that the run may hold beside the weights.
            objective: the aim.
            device: what it runs on.
        """
        host_total, host_free = host_memory()
        frames, height, width = self.shape[2:] if len(self.shape) == 5 else (1, *_sides(self.shape))
        return records.DenoiseRequest(
            model=_network(self.family, self.patcher.model.diffusion_model),
            batch=self.shape[0],
            frames=frames,
            height=height,
            width=width,
            text_tokens=self.text_tokens,
            image_tokens=self.image_tokens,
            steps=len(self.sigmas) - 1,
            passes=self.passes,
            sampler=self.sampler,
            sigmas=self.sigmas,
            memory_limit=limit + self.weights_bytes,
            host_free_bytes=host_free,
            host_total_bytes=host_total,
            objective=objective,
            reuse=self.reuse or None,
            transfer_rate=0,
        )

    def capabilities(
        self, dtypes: Sequence[Any] | None = None, *, options: tuple[records.PlanOption, ...] = ()
    ) -> records.DenoiseCapabilities:
        """The plans that ComfyUI can carry out.

        Args:
            dtypes: the types, if they are fewer by now.
            options: choices beside a plan's fields.
        """
        return records.DenoiseCapabilities(
            dtypes=tuple(dtypes or self.offered_dtypes()),  # pyright: ignore[reportArgumentType]
            fp8_products=False,
            fused_attention=has_fused_attention(self.patcher),
            queries_least=64,
            ahead_most=0,
            parts_most=1,
            reuse_most=self.reuse,
            options=options,
        )

    def price(self, plan: records.DenoisePlan) -> records.DenoiseCost | str:
        """A plan's price, by ComfyUI's own estimate of the memory of a call; or why it can't be carried out."""
        refused = self.refusal(plan)
        if refused is not None:
            return refused
        batch = self.shape[0]
        together = min(plan.samples or batch, batch)
        calls = math.ceil(batch / together)
        if plan.guidance == "together":
            together *= self.passes
        else:
            calls *= self.passes
        own = self.own_dtype.itemsize
        dtype = DTYPES[plan.precision.dtype]
        peak = float(self.patcher.model.memory_required([together, *self.shape[1:]])) * dtype.itemsize / own
        is_in_pieces = isinstance(plan.attention, records.PiecesAttention)
        if is_in_pieces:
            peak *= 1 - _PIECES_MEMORY
        # Tensors that the sampler and guidance keep of each sample.
        peak += math.prod(self.shape) * 4 * (6 + 3 * self.passes)
        operations = self.operations() * (dtype.itemsize / own)
        seconds = operations / _RATE
        rate = _measured.get((self.family, str(self.patcher.load_device)))
        if rate is not None:
            seconds = operations * rate
        seconds *= 1 + _CALL * calls + (_PIECES_TIME if is_in_pieces else 0)
        weights = self.weights_bytes
        return records.DenoiseCost(peak_bytes=int(peak), weights_bytes=weights, step_ms=seconds * 1000)

    def refusal(self, plan: records.DenoisePlan) -> str | None:
        """The reason why a plan can't be carried out here; None if it can."""
        own = NAMES.get(self.own_dtype, "f32")
        if isinstance(plan.precision, records.MixedPrecision) and plan.precision.dtype != own:
            return "ComfyUI computes a network in one type"
        if plan.precision.dtype not in DTYPES:
            return f"ComfyUI computes no network in {plan.precision.dtype}"
        if plan.weights == "expanded" and own != _most_stored(self.patcher.model.diffusion_model):
            return "ComfyUI keeps weights in the type that they were loaded in"
        if plan.ahead is not None:
            return "ComfyUI decides itself where weights are"
        if plan.feed_forward != 1:
            return "feed-forward layers run whole"
        if plan.products != "precision":
            return "products run in the network's own type"
        if isinstance(plan.reuse, records.FirstBlockStepReuse):
            return "the last output alone can serve again"
        if isinstance(plan.attention, records.PiecesAttention) and has_own_attention(self.patcher):
            return "the model has an attention of its own"
        return None

    def operations(self) -> float:
        """Operations of a step, counted by the weights that each position meets."""
        parameters = sum(one.numel() for one in self.patcher.model.diffusion_model.parameters())
        return 2.0 * parameters * self.image_tokens * self.shape[0] * self.passes

    def learn_rate(self, step_ms: float, dtype: str) -> None:
        """Remembers how fast a step was, for the prices of later ones."""
        share = DTYPES[dtype].itemsize / self.own_dtype.itemsize
        _measured[self.family, str(self.patcher.load_device)] = step_ms / 1000 / max(self.operations() * share, 1.0)


def is_castable(patcher: Any) -> bool:
    """True if the network can be computed in another type than its own: its weights are plain."""
    network = patcher.model.diffusion_model
    if not hasattr(patcher, "set_model_compute_dtype"):
        return False
    return all(type(one.data) is torch.Tensor and one.dtype in NAMES for one in network.parameters())


def has_own_attention(patcher: Any) -> bool:
    """True if another node has given the model an attention of its own."""
    return "optimized_attention_override" in patcher.model_options.get("transformer_options", {})


def has_fused_attention(patcher: Any) -> bool:
    """True if the model's attention holds no scores in memory."""
    if has_own_attention(patcher):
        return True
    return bool(
        model_management.xformers_enabled()
        or model_management.sage_attention_enabled()
        or model_management.flash_attention_enabled()
        or model_management.pytorch_attention_flash_attention()
    )


def _sides(shape: Sequence[int]) -> tuple[int, int]:
    """Height and width of latents, also of those that have one axis."""
    return (shape[2], shape[3]) if len(shape) == 4 else (1, shape[-1])


def _network(family: str, network: torch.nn.Module) -> records.DenoiserModel:
    stored: dict[str, int] = {}
    parameters = 0
    for one in network.parameters():
        parameters += one.numel()
        name = _STORED.get(one.dtype, str(one.dtype).removeprefix("torch."))
        stored[name] = stored.get(name, 0) + one.numel() * one.element_size()
    types = tuple(
        records.StoredType(name=name, bytes=size) for name, size in sorted(stored.items(), key=lambda one: -one[1])
    )
    blocks = [block for layer in network.children() if isinstance(layer, torch.nn.ModuleList) for block in layer]
    largest = max((sum(one.nbytes for one in block.parameters()) for block in blocks), default=0)
    return records.DenoiserModel(
        family=family,
        parameters=parameters,
        stored_bytes=sum(stored.values()),
        stored=types[0].name if types else "f32",
        blocks=max(1, len(blocks)),
        largest_block_bytes=largest,
        experts=1,
        stored_types=types,
    )


def _most_stored(network: torch.nn.Module) -> str:
    return _network("", network).stored


def host_memory() -> tuple[int, int]:
    """Bytes that the host has, and those that are free."""
    management: Any = model_management
    cpu = torch.device("cpu")
    return int(management.get_total_memory(cpu)), int(management.get_free_memory(cpu))
