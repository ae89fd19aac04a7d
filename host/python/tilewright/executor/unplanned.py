"""The module's own way to decode and encode, for inputs that no plan is for."""

from __future__ import annotations

import inspect
from datetime import datetime, timezone
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from .. import __version__, records
from ..errors import ModelError
from .asking import Aims, Extents
from .autoencoders import Autoencoder
from .device import device_of, placed
from .peak import Peak
from .own_code import own_method
from .running import PlanError, Run
from .tiles import carry_out

Stage = Literal["decode", "encode"]

#: Types that a module's weights may have for their output to be in it; others are cast by the module itself.
_PLAIN = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

#: Types of records, by the names that safetensors has for them.
_RECORDED: dict[str, records.Dtype] = {
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "F8_E4M3": "f8-e4m3",
    "F8_E5M2": "f8-e5m2",
}


def computing_device(module: nn.Module, values: Tensor) -> torch.device:
    """The device that a module computes on: the one that its hooks bring it to, that of its weights, or the input's.

    Raises:
        ModelError: plans can't be carried out there.
    """
    hook = module.__dict__.get("_hf_hook")
    named = getattr(hook, "execution_device", None)
    if named is not None:
        return placed(torch.device("cuda", named) if isinstance(named, int) else named)
    found = {weight.device.type: weight.device for weight in module.parameters() if weight.device.type != "meta"}
    # Group offloading has weights on the host, and the input where they are brought to.
    if "cuda" in found:
        return placed(found["cuda"])
    if values.device.type == "cuda" or not found:
        return placed(values.device)
    return placed(next(iter(found.values())))


def module_dtype(module: nn.Module, values: Tensor) -> torch.dtype:
    """The type that a module's output is in: that of its weights; the input's, if it casts them."""
    for weight in module.parameters():
        if weight.is_floating_point():
            casts = bool(getattr(weight, "quant_state", None)) or weight.dtype not in _PLAIN or _casts(module)
            return values.dtype if casts else weight.dtype
    return values.dtype


def output_of_module(autoencoder: Autoencoder, stage: Stage, values: Tensor, place: torch.device) -> Tensor:
    """The output of the module's own `decode` or `encode`, or of what the user has put in their place."""
    module = autoencoder.module
    given = values.to(device=place, dtype=module_dtype(autoencoder.module, values))
    if stage == "decode":
        return _plain(own_method(module, "decode")(given), "sample")
    encode = own_method(module, "encode")
    if autoencoder.dialect == "diffusers":
        made: Any = encode(given)
        distribution: Any = getattr(made, "latent_dist", None)
        if distribution is None:
            distribution = made[0]
        return cast(Tensor, distribution.parameters)
    if "unregularized" in inspect.signature(encode).parameters:
        return _plain(encode(given, unregularized=True), "sample")
    try:
        # It gives no moments: what is before the mean is taken is the executor's to make.
        return carry_out(autoencoder, stage, values, Run.of(_whole_plan("", given.dtype), place))
    except PlanError:
        # Nor can the executor: the latents themselves are.
        return _plain(encode(given), "sample")


def record_of_module(
    autoencoder: Autoencoder,
    stage: Stage,
    extents: Extents,
    place: torch.device,
    policy: records.PolicyIdentity,
    aims: Aims,
    note: str,
    peak: Peak,
) -> records.Record:
    """The record of work that nobody decided on."""
    facts = device_of(place).facts
    limit = aims.memory_limit if isinstance(aims.memory_limit, int) else facts.free_bytes * 4 // 5
    request = records.Request(
        model=_model(autoencoder),
        batch=extents.batch,
        frames=extents.frames,
        height=extents.height,
        width=extents.width,
        memory_limit=limit,
        objective=aims.objective,
        hints=(),
        allows_blended=aims.allows_blended,
    )
    return records.Record(
        tilewright=__version__,
        time=datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z"),
        stage=stage,
        request=request,
        device=facts,
        policy=policy,
        plan=_whole_plan(note, next((one.dtype for one in autoencoder.module.parameters()), torch.float32)),
        adjusted=(),
        fallback=records.Fallback(reason="not-answered", detail=note),
        decision_ms=0.0,
        fuel=0,
        attempts=(),
        outcome=records.Outcome(
            elapsed_ms=peak.seconds * 1000,
            load_ms=0.0,
            peak_bytes=peak.bytes or 0,
            attempts=1,
            pool=peak.pool,
        ),
    )


def _whole_plan(reason: str, dtype: torch.dtype) -> records.Plan:
    names: dict[torch.dtype, records.Dtype] = {torch.float16: "f16", torch.bfloat16: "bf16"}
    return records.Plan(
        space=records.WholeSpace(),
        time=records.WholeTime(),
        batch=1,
        precision=records.UniformPrecision(dtype=names.get(dtype, "f32")),
        layout="channels-first",
        release="keep",
        offload=False,
        prefetch=0,
        reason=reason,
    )


def _model(autoencoder: Autoencoder) -> records.Model:
    shapes = autoencoder.shapes()
    weights = list(autoencoder.module.parameters())
    stored: records.Dtype = "f32"
    for dtype, _ in shapes.values():
        if dtype in _RECORDED:
            stored = _RECORDED[dtype]
            break
    return records.Model(
        family=autoencoder.family,
        stored=stored,
        quantized=False,
        parameter_bytes=sum(weight.numel() * weight.element_size() for weight in weights),
        spatial_scale=autoencoder.spatial_scale,
        temporal_scale=autoencoder.temporal_scale,
    )


def _casts(module: nn.Module) -> bool:
    """True if layers of ComfyUI's bring their weights to their input's type."""
    return any(getattr(layer, "comfy_cast_weights", False) for layer in module.modules())


def _plain(made: Any, name: str) -> Tensor:
    found: Any = getattr(made, name, None)
    if found is None:
        found = cast(Any, made)[0] if isinstance(made, tuple) else made
    if not isinstance(found, Tensor):
        kind: str = type(found).__name__
        raise ModelError(f"the module gave {kind} in place of a tensor")
    return found
