"""ComfyUI's samplers, called with a handle on the model that a plan is carried out on."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from comfy.samplers import KSampler

from .denoise import Governed
from .sampler_request import Sample
from .settings import Choice


@dataclass(frozen=True)
class KSample:
    """The values that a KSampler is asked for; the fields are its inputs."""

    seed: int
    steps: int
    cfg: float
    sampler_name: str
    scheduler: str
    positive: Any
    negative: Any
    latent: dict[str, Any]
    denoise: float = 1.0
    disable_noise: bool = False
    start_step: int | None = None
    last_step: int | None = None
    force_full_denoise: bool = False


def sample_guided(
    model: Any, asked: KSample, choice: Choice, reuse: float, node: str
) -> tuple[dict[str, Any], str]:
    """The latents of a KSampler, and the record as JSON.

    Args:
        model: ComfyUI's patcher of the model.
        asked: what is asked for.
        choice: the policy and its bounds.
        reuse: the change up to which outputs may serve again.
        node: the node's id.
    """
    from nodes import common_ksampler  # ComfyUI's own

    sigmas = KSampler(
        model, asked.steps, torch.device("cpu"), asked.sampler_name, asked.scheduler, asked.denoise, model.model_options
    ).sigmas
    if asked.last_step is not None:
        sigmas = sigmas[: asked.last_step + 1]
    if asked.start_step is not None:
        sigmas = sigmas[asked.start_step :]
    is_alone = math.isclose(asked.cfg, 1.0) and not model.model_options.get("disable_cfg1_optimization", False)

    def work(own: Any, _: dict[str, Any]) -> dict[str, Any]:
        return common_ksampler(
            own, asked.seed, asked.steps, asked.cfg, asked.sampler_name, asked.scheduler, asked.positive,
            asked.negative, asked.latent, denoise=asked.denoise, disable_noise=asked.disable_noise,
            start_step=asked.start_step, last_step=asked.last_step, force_full_denoise=asked.force_full_denoise,
        )[0]  # fmt: skip

    if len(sigmas) < 2 or asked.latent["samples"].is_nested:
        # Nothing is computed, or several kinds of latents that no policy knows.
        return work(model, model.model_options), "{}"
    sample = Sample(
        patcher=model,
        shape=_shape(model, asked.latent["samples"]),
        sigmas=tuple(float(one) for one in sigmas),
        sampler=asked.sampler_name,
        passes=1 if is_alone else 2,
        text_tokens=_text_tokens(asked.positive, asked.negative),
        reuse=reuse,
        allows_lossy=choice.allows_lossy,
    )
    return Governed(sample, choice, node).run(work, lambda made: made["samples"])


def sample_custom(
    noise: Any,
    guider: Any,
    sampler: Any,
    sigmas: torch.Tensor,
    latent: dict[str, Any],
    choice: Choice,
    reuse: float,
    node: str,
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The latents of SamplerCustomAdvanced, those without the noise that is left, and the record as JSON.

    Args:
        noise: ComfyUI's noise.
        guider: ComfyUI's guider. It stays as it is.
        sampler: ComfyUI's sampler.
        sigmas: the noise levels.
        latent: the latent to begin with.
        choice: the policy and its bounds.
        reuse: the change up to which outputs may serve again.
        node: the node's id.
    """
    from comfy_extras.nodes_custom_sampler import SamplerCustomAdvanced

    def work(own: Any, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        governed = copy.copy(guider)
        governed.model_patcher = own
        governed.model_options = options
        made = SamplerCustomAdvanced.execute(noise, governed, sampler, sigmas, latent)
        return made.args[0], made.args[1]

    patcher = guider.model_patcher
    if sigmas.shape[-1] < 2 or latent["samples"].is_nested:
        made = SamplerCustomAdvanced.execute(noise, guider, sampler, sigmas, latent)
        return made.args[0], made.args[1], "{}"
    conds: dict[str, Any] = guider.original_conds
    cfg = float(getattr(guider, "cfg", 1.0))
    leaves_out = math.isclose(cfg, 1.0) and not guider.model_options.get("disable_cfg1_optimization", False)
    function = getattr(sampler, "sampler_function", None)
    sample = Sample(
        patcher=patcher,
        shape=_shape(patcher, latent["samples"]),
        sigmas=tuple(float(one) for one in sigmas),
        sampler=getattr(function, "__name__", type(sampler).__name__).removeprefix("sample_"),
        passes=1 if set(conds) == {"positive", "negative"} and leaves_out else max(1, len(conds)),
        text_tokens=_text_tokens_of_states(one.get("cross_attn") for each in conds.values() for one in each),
        reuse=reuse,
        allows_lossy=choice.allows_lossy,
    )
    (output, denoised), record = Governed(sample, choice, node).run(work, lambda made: made[0]["samples"])
    return output, denoised, record


def _shape(model: Any, latents: torch.Tensor) -> tuple[int, ...]:
    """The shape of latents as the network gets them."""
    latent_format = model.get_model_object("latent_format")
    shape = (latents.shape[0], latent_format.latent_channels, *latents.shape[2:])
    if latent_format.latent_dimensions == 3 and latents.ndim == 4:
        shape = (*shape[:2], 1, *shape[2:])
    return shape


def _text_tokens(*conditionings: Any) -> int:
    return _text_tokens_of_states(one[0] for conditioning in conditionings for one in conditioning)


def _text_tokens_of_states(states: Any) -> int:
    return max((int(one.shape[1]) for one in states if isinstance(one, torch.Tensor) and one.ndim > 1), default=0)
