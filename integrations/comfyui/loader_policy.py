"""The decisions of a policy as a model is loaded: its types, and where texts are encoded."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

import torch
from comfy import model_management
from tilewright import records
from tilewright.executor.device import device_of

from . import comfy_memory
from .sampler_request import DTYPES, NAMES, Sample, host_memory, is_castable
from .settings import Choice

log = logging.getLogger("tilewright")

#: Pixels of a latent's side in the sample that a model is loaded for, and its steps.
SIDE, STEPS = 128, 20

#: Tokens of a usual text.
TOKENS = 77


def _options(choice: Choice, patcher: Any) -> tuple[records.PlanOption, ...]:
    """The choices that there are when a model is loaded, beside a plan's fields."""
    offered = [
        records.PlanOption(
            name="compatibility",
            summary="Compute in f32, whatever the device is fast in.",
            values=records.FlagValues(),
            default=False,
        ),
        records.PlanOption(
            name="lora",
            summary="A LoRA is merged into the weights, or computed beside them.",
            values=records.TextValues(words=("merged", "beside")),
            default="merged",
        ),
    ]
    if choice.allows_lossy and is_castable(patcher):
        offered.append(
            records.PlanOption(
                name="weight-dtype",
                summary="The type that weights are kept in.",
                values=records.TextValues(words=("default", "f8-e4m3", "f8-e5m2")),
                default="default",
                lossy=True,
            )
        )
    return tuple(offered)


@dataclass
class NetworkLoad:
    """A decision on a network that is loaded.

    Attributes:
        plan: the plan; None if there was nothing to decide.
        compute: the type to compute in, where it is not ComfyUI's own choice.
        record: the record as JSON has it.
    """

    plan: records.DenoisePlan | None
    compute: torch.dtype | None
    record: dict[str, Any]

    @classmethod
    def nothing(cls) -> NetworkLoad:
        """No decision, of a file without a network."""
        return cls(None, None, {})

    def option(self, name: str) -> records.Value | None:
        """The value of an option that the plan sets."""
        return None if self.plan is None else dict(self.plan.options).get(name)

    def finish(self, node: str) -> str:
        """Keeps the record, and gives it as JSON.

        Args:
            node: the node's id.
        """
        if self.record:
            from . import history

            history.add(self.record, node=node)
        return json.dumps(self.record)


def decide_network(patcher: Any, choice: Choice) -> NetworkLoad:
    """Decides how a network is computed and kept, for a sample of a usual size.

    Args:
        patcher: ComfyUI's patcher of the model.
        choice: the policy and its bounds.
    """
    latent_format = patcher.get_model_object("latent_format")
    frames = (1,) if latent_format.latent_dimensions == 3 else ()
    sides = (1, SIDE) if latent_format.latent_dimensions == 1 else (SIDE, SIDE)
    sample = Sample(
        patcher=patcher,
        shape=(1, latent_format.latent_channels, *frames, *sides),
        sigmas=tuple(1 - step / STEPS for step in range(STEPS + 1)),
        sampler="euler",
        passes=2,
        text_tokens=TOKENS,
        reuse=0.0,
        allows_lossy=choice.allows_lossy,
    )
    device = device_of(patcher.load_device).with_memory(free_bytes=comfy_memory.available(patcher.load_device)).facts
    limit = comfy_memory.limit_of(choice.memory_limit, patcher.load_device, patcher)
    capabilities = sample.capabilities(options=_options(choice, patcher))
    decision = choice.policy_of("denoise").decide(
        sample.request(limit, choice.objective, device),
        capabilities=capabilities,
        device=device,
        costs=lambda plans: [sample.price(plan) for plan in plans],
    )
    plan = decision.plan
    options = dict(plan.options)
    chosen = torch.float32 if options.get("compatibility") else DTYPES[plan.precision.dtype]
    # Packed weights, as those of GGUF files, are brought to this type as they are used.
    compute = chosen if chosen != sample.own_dtype else None
    log.info(
        "load: computed in %s%s: %s",
        NAMES.get(chosen if compute is not None else sample.own_dtype, "its own type"),
        "".join(f", {name} {value}" for name, value in options.items()),
        plan.reason,
    )
    return NetworkLoad(plan, compute, decision.record.to_dict())


def decide_text(clip: Any, choice: Choice) -> records.Place:
    """Decides where texts are encoded: `device`, as ComfyUI does, or `host`.

    Args:
        clip: ComfyUI's text encoder.
        choice: the policy and its bounds.
    """
    patcher = clip.patcher
    place = patcher.load_device
    if model_management.is_device_cpu(place):
        # There is no other place.
        return "device"
    size = int(patcher.model_size())
    device = device_of(place)
    facts = device.with_memory(free_bytes=comfy_memory.available(place)).facts
    limit = comfy_memory.limit_of(choice.memory_limit, place)
    parameters = sum(one.numel() for one in clip.cond_stage_model.parameters())
    first = next(clip.cond_stage_model.parameters(), None)
    own = "f16" if first is None else NAMES.get(first.dtype, "f16")
    host_total, host_free = host_memory()
    request = records.TextRequest(
        model=records.EncoderModel(
            kind=type(clip.cond_stage_model).__name__.lower(),
            stored_types=(records.StoredType(name=own, bytes=size),),
            parameter_bytes=size,
            blocks=12,
            width=768,
            head_width=64,
        ),
        tokens=(TOKENS,),
        memory_limit=limit,
        host_free_bytes=host_free,
        host_total_bytes=host_total,
        objective=choice.objective,  # pyright: ignore[reportArgumentType]
    )

    def price(plan: records.TextPlan) -> records.TextCost:
        on_host = plan.place == "host"
        # The host computes about a fiftieth of what a GPU does.
        seconds = 2.0 * parameters * TOKENS / (2e11 if on_host else 1e13)
        work = size // 20
        return records.TextCost(
            elapsed_ms=seconds * 1000,
            load_ms=0.0,
            peak_bytes=0 if on_host else work,
            weights_bytes=0 if on_host else size,
            host_bytes=size + work if on_host else 0,
        )

    decision = choice.policy_of("text").decide(
        request,
        capabilities=records.TextCapabilities(
            dtypes=(own,),  # pyright: ignore[reportArgumentType]
            places=("device", "host"),
            weights=("packed",),
            kept=True,
        ),
        device=facts,
        costs=lambda plans: [price(plan) for plan in plans],
    )
    log.info("load: texts are encoded on the %s: %s", decision.plan.place, decision.plan.reason)
    return decision.plan.place
