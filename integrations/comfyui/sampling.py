"""The nodes that sample by policy: ComfyUI's own sampling, with the same inputs and outputs."""

from __future__ import annotations

from typing import Any

from comfy.samplers import KSampler
from comfy_api.v0_0_2 import io

from .settings import ALLOW_LOSSY, CATEGORY, Choice, policy_inputs, problem

_ABOUT = (
    "The same latents as ComfyUI's own node. A policy decides how they are computed: how many samples at once, both "
    "conditionings together or in turn, attention, and, if it is allowed, narrower types and reuse of steps. Where a "
    "plan runs out of memory, the sample goes on by the next one."
)


def _inputs() -> list[io.Input]:
    return policy_inputs(
        ALLOW_LOSSY,
        io.Float.Input(
            "step_reuse",
            display_name="step reuse",
            default=0.0,
            min=0.0,
            max=1.0,
            step=0.01,
            tooltip="The change of the network's output, over its size, up to which the last output may serve once "
            "more. 0 computes every step.",
            advanced=True,
        ),
    )


def _outputs(*names: str) -> list[io.Output]:
    return [
        *[io.Latent.Output(display_name=name) for name in names],
        io.String.Output(
            display_name="record", tooltip="What was decided and measured, as JSON, for the node Decision."
        ),
    ]


def _seed(name: str) -> io.Input:
    return io.Int.Input(
        name,
        default=0,
        min=0,
        max=0xFFFFFFFFFFFFFFFF,
        control_after_generate=True,
        tooltip="The seed of the noise.",
    )


def _guided() -> list[io.Input]:
    """Inputs that both KSamplers have, from the steps to the latent."""
    return [
        io.Int.Input("steps", default=20, min=1, max=10000, tooltip="Steps."),
        io.Float.Input(
            "cfg", default=8.0, min=0.0, max=100.0, step=0.1, round=0.01,
            tooltip="How far the positive conditioning counts over the negative one; 1 leaves the negative one out.",
        ),
        io.Combo.Input("sampler_name", options=list(KSampler.SAMPLERS), tooltip="The sampler."),
        io.Combo.Input("scheduler", options=list(KSampler.SCHEDULERS), tooltip="The scheduler of the noise levels."),
        io.Conditioning.Input("positive", tooltip="What the picture is to have."),
        io.Conditioning.Input("negative", tooltip="What it is not to have."),
        io.Latent.Input("latent_image", tooltip="The latent to begin with."),
    ]  # fmt: skip


class _Sampler(io.ComfyNode):
    """The common part of the three nodes."""

    @classmethod
    def validate_inputs(cls, policy: Any = None, memory_limit: Any = None, settings: Any = None) -> bool | str:
        """Refuses a limit that is no size and settings that the policy has not, before anything runs."""
        return problem(Choice(policy=policy, memory_limit=memory_limit, settings=settings), "denoise")


def _choice(policy: str, objective: str, memory_limit: str, allow_lossy: bool, settings: str) -> Choice:
    choice = Choice(
        policy=policy, objective=objective, memory_limit=memory_limit, allows_lossy=allow_lossy, settings=settings
    )
    choice.check("denoise")
    return choice


class KSamplerByPolicy(_Sampler):
    """ComfyUI's KSampler by policy."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        return io.Schema(
            node_id="TilewrightKSampler",
            display_name="KSampler by policy",
            category=CATEGORY,
            description=f"KSampler by policy. {_ABOUT}",
            search_aliases=["sampler", "sample", "denoise", "tilewright"],
            inputs=[
                io.Model.Input("model", tooltip="The model."),
                _seed("seed"),
                *_guided(),
                io.Float.Input(
                    "denoise", default=1.0, min=0.0, max=1.0, step=0.01,
                    tooltip="The share of the way from noise that is gone; less keeps more of the latent.",
                ),
                *_inputs(),
            ],
            outputs=_outputs("LATENT"),
        )  # fmt: skip

    @classmethod
    def execute(
        cls,
        model: Any,
        seed: int,
        steps: int,
        cfg: float,
        sampler_name: str,
        scheduler: str,
        positive: Any,
        negative: Any,
        latent_image: dict[str, Any],
        denoise: float,
        policy: str,
        objective: str,
        memory_limit: str,
        allow_lossy: bool,
        step_reuse: float,
        settings: str,
    ) -> io.NodeOutput:
        """Samples; the latents, and the record as JSON."""
        from .sampler_nodes import KSample, sample_guided

        asked = KSample(seed, steps, cfg, sampler_name, scheduler, positive, negative, latent_image, denoise=denoise)
        choice = _choice(policy, objective, memory_limit, allow_lossy, settings)
        return io.NodeOutput(*sample_guided(model, asked, choice, step_reuse, cls.define_schema().node_id))


class KSamplerAdvancedByPolicy(_Sampler):
    """ComfyUI's KSampler (Advanced) by policy."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        return io.Schema(
            node_id="TilewrightKSamplerAdvanced",
            display_name="KSampler (Advanced) by policy",
            category=CATEGORY,
            description=f"KSampler (Advanced) by policy. {_ABOUT}",
            search_aliases=["sampler", "sample", "denoise", "tilewright"],
            inputs=[
                io.Model.Input("model", tooltip="The model."),
                io.Combo.Input(
                    "add_noise", options=["enable", "disable"], tooltip="Noise is added to the latent.", advanced=True
                ),
                _seed("noise_seed"),
                *_guided(),
                io.Int.Input(
                    "start_at_step", default=0, min=0, max=10000, tooltip="The first step that is made.", advanced=True
                ),
                io.Int.Input(
                    "end_at_step",
                    default=10000,
                    min=0,
                    max=10000,
                    tooltip="The step before which it ends.",
                    advanced=True,
                ),
                io.Combo.Input(
                    "return_with_leftover_noise", options=["disable", "enable"],
                    tooltip="The noise that is left at the end stays in the latent.", advanced=True,
                ),
                *_inputs(),
            ],
            outputs=_outputs("LATENT"),
        )  # fmt: skip

    @classmethod
    def execute(
        cls,
        model: Any,
        add_noise: str,
        noise_seed: int,
        steps: int,
        cfg: float,
        sampler_name: str,
        scheduler: str,
        positive: Any,
        negative: Any,
        latent_image: dict[str, Any],
        start_at_step: int,
        end_at_step: int,
        return_with_leftover_noise: str,
        policy: str,
        objective: str,
        memory_limit: str,
        allow_lossy: bool,
        step_reuse: float,
        settings: str,
    ) -> io.NodeOutput:
        """Samples; the latents, and the record as JSON."""
        from .sampler_nodes import KSample, sample_guided

        asked = KSample(
            noise_seed, steps, cfg, sampler_name, scheduler, positive, negative, latent_image,
            disable_noise=add_noise == "disable",
            start_step=start_at_step,
            last_step=end_at_step,
            force_full_denoise=return_with_leftover_noise != "enable",
        )  # fmt: skip
        choice = _choice(policy, objective, memory_limit, allow_lossy, settings)
        return io.NodeOutput(*sample_guided(model, asked, choice, step_reuse, cls.define_schema().node_id))


class SamplerCustomAdvancedByPolicy(_Sampler):
    """ComfyUI's SamplerCustomAdvanced by policy."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        return io.Schema(
            node_id="TilewrightSamplerCustomAdvanced",
            display_name="SamplerCustomAdvanced by policy",
            category=CATEGORY,
            description=f"SamplerCustomAdvanced by policy. {_ABOUT}",
            search_aliases=["sampler", "sample", "denoise", "tilewright"],
            inputs=[
                io.Noise.Input("noise", tooltip="The noise."),
                io.Guider.Input("guider", tooltip="The model with its conditionings."),
                io.Sampler.Input("sampler", tooltip="The sampler."),
                io.Sigmas.Input("sigmas", tooltip="The noise levels."),
                io.Latent.Input("latent_image", tooltip="The latent to begin with."),
                *_inputs(),
            ],
            outputs=_outputs("output", "denoised_output"),
        )

    @classmethod
    def execute(
        cls,
        noise: Any,
        guider: Any,
        sampler: Any,
        sigmas: Any,
        latent_image: dict[str, Any],
        policy: str,
        objective: str,
        memory_limit: str,
        allow_lossy: bool,
        step_reuse: float,
        settings: str,
    ) -> io.NodeOutput:
        """Samples; the latents, those without the noise that is left, and the record as JSON."""
        from .sampler_nodes import sample_custom

        choice = _choice(policy, objective, memory_limit, allow_lossy, settings)
        made = sample_custom(
            noise, guider, sampler, sigmas, latent_image, choice, step_reuse, cls.define_schema().node_id
        )
        return io.NodeOutput(*made)


NODES: list[type[io.ComfyNode]] = [KSamplerByPolicy, KSamplerAdvancedByPolicy, SamplerCustomAdvancedByPolicy]
