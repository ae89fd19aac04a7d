"""The nodes that load by policy: ComfyUI's own loading, with the same outputs."""

from __future__ import annotations

from typing import Any

import folder_paths
from comfy_api.v0_0_2 import io

from .settings import ALLOW_LOSSY, CATEGORY, Choice, policy_inputs, problem

_ABOUT = (
    "A policy decides the type that the network is computed in, where the text encoder runs, and whatever of the "
    "options weight-dtype, compatibility and lora it sets; what it leaves is as ComfyUI has it."
)


class _Loader(io.ComfyNode):
    """The common part of the three nodes."""

    @classmethod
    def validate_inputs(cls, policy: Any = None, memory_limit: Any = None, settings: Any = None) -> bool | str:
        """Refuses a limit that is no size and settings that the policy has not, before anything runs."""
        return problem(Choice(policy=policy, memory_limit=memory_limit, settings=settings), "denoise", "text")


def _choice(policy: str, objective: str, memory_limit: str, allow_lossy: bool, settings: str) -> Choice:
    choice = Choice(
        policy=policy, objective=objective, memory_limit=memory_limit, allows_lossy=allow_lossy, settings=settings
    )
    choice.check("denoise", "text")
    return choice


def _inputs() -> list[io.Input]:
    return policy_inputs(ALLOW_LOSSY)


def _record() -> io.Output:
    return io.String.Output(display_name="record", tooltip="What was decided, as JSON, for the node Decision.")


def _reload() -> io.Input:
    return io.Boolean.Input(
        "force_reload",
        display_name="force reload",
        default=False,
        tooltip="Reads the file again, though it is loaded and has not changed.",
        advanced=True,
    )


class CheckpointByPolicy(_Loader):
    """ComfyUI's Load Checkpoint by policy."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        return io.Schema(
            node_id="TilewrightCheckpoint",
            display_name="Checkpoint by policy",
            category=CATEGORY,
            description=f"Loads a checkpoint through ComfyUI, once as long as its parts are in use. {_ABOUT}",
            search_aliases=["load checkpoint", "ckpt", "tilewright"],
            inputs=[
                io.Combo.Input(
                    "ckpt_name", options=folder_paths.get_filename_list("checkpoints"), tooltip="The checkpoint."
                ),
                _reload(),
                *_inputs(),
            ],
            outputs=[
                io.Model.Output(tooltip="The diffusion model."),
                io.Clip.Output(tooltip="The text encoder."),
                io.Vae.Output(tooltip="The VAE; `VAE by policy` decides for it."),
                _record(),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, force_reload: bool = False, **_: Any) -> Any:
        """A value whose change makes the node run again; NaN is never what it was."""
        return float("nan") if force_reload else 0

    @classmethod
    def execute(
        cls,
        ckpt_name: str,
        force_reload: bool,
        policy: str,
        objective: str,
        memory_limit: str,
        allow_lossy: bool,
        settings: str,
    ) -> io.NodeOutput:
        """Loads; the model, the text encoder, the VAE, and the record as JSON."""
        from .loader_files import load_checkpoint

        choice = _choice(policy, objective, memory_limit, allow_lossy, settings)
        return io.NodeOutput(*load_checkpoint(ckpt_name, choice, is_forced=force_reload))


class DiffusionModelByPolicy(_Loader):
    """ComfyUI's Load Diffusion Model by policy."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        return io.Schema(
            node_id="TilewrightDiffusionModel",
            display_name="Diffusion model by policy",
            category=CATEGORY,
            description="Loads a diffusion model through ComfyUI, a .gguf file through the pack ComfyUI-GGUF, once as "
            f"long as it is in use. {_ABOUT}",
            search_aliases=["unet", "load diffusion model", "gguf", "tilewright"],
            inputs=[
                io.Combo.Input("unet_name", options=_diffusion_models(), tooltip="The diffusion model."),
                _reload(),
                *_inputs(),
            ],
            outputs=[io.Model.Output(tooltip="The diffusion model."), _record()],
        )

    @classmethod
    def fingerprint_inputs(cls, force_reload: bool = False, **_: Any) -> Any:
        """A value whose change makes the node run again; NaN is never what it was."""
        return float("nan") if force_reload else 0

    @classmethod
    def execute(
        cls,
        unet_name: str,
        force_reload: bool,
        policy: str,
        objective: str,
        memory_limit: str,
        allow_lossy: bool,
        settings: str,
    ) -> io.NodeOutput:
        """Loads; the model, and the record as JSON."""
        from .loader_files import load_diffusion_model

        choice = _choice(policy, objective, memory_limit, allow_lossy, settings)
        return io.NodeOutput(*load_diffusion_model(unet_name, choice, is_forced=force_reload))


class LoraByPolicy(_Loader):
    """ComfyUI's Load LoRA by policy."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        strength: dict[str, Any] = {"default": 1.0, "min": -100.0, "max": 100.0, "step": 0.01}
        return io.Schema(
            node_id="TilewrightLora",
            display_name="LoRA by policy",
            category=CATEGORY,
            description="Loads a LoRA through ComfyUI. By the option lora a policy decides whether it is merged into "
            "the weights, as ComfyUI does, or computed beside them, which leaves weights that are kept elsewhere or "
            "packed as they are.",
            search_aliases=["load lora", "tilewright"],
            inputs=[
                io.Model.Input("model", tooltip="The diffusion model."),
                io.Clip.Input("clip", optional=True, tooltip="The text encoder, if the LoRA is to change it, too."),
                io.Combo.Input("lora_name", options=folder_paths.get_filename_list("loras"), tooltip="The LoRA."),
                io.Float.Input("strength_model", tooltip="How much it changes the model.", **strength),
                io.Float.Input("strength_clip", tooltip="How much it changes the text encoder.", **strength),
                *_inputs(),
            ],
            outputs=[
                io.Model.Output(tooltip="The changed model."),
                io.Clip.Output(tooltip="The changed text encoder."),
                _record(),
            ],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        lora_name: str,
        strength_model: float,
        strength_clip: float,
        policy: str,
        objective: str,
        memory_limit: str,
        allow_lossy: bool,
        settings: str,
        clip: Any = None,
    ) -> io.NodeOutput:
        """Applies the LoRA; the model, the text encoder, and the record as JSON."""
        from .loader_files import load_lora

        choice = _choice(policy, objective, memory_limit, allow_lossy, settings)
        return io.NodeOutput(*load_lora(model, clip, lora_name, strength_model, strength_clip, choice))


def _diffusion_models() -> list[str]:
    """Files that can be chosen; GGUF files are there without the pack that reads them, too."""
    from .loader_gguf import gguf_files

    return [*folder_paths.get_filename_list("diffusion_models"), *gguf_files()]


NODES: list[type[io.ComfyNode]] = [CheckpointByPolicy, DiffusionModelByPolicy, LoraByPolicy]
