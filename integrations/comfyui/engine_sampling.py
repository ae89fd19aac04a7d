"""The nodes Sample and Generate on Tilewright."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comfy_api.v0_0_2 import io

from .engine_inputs import (
    OWN,
    RECORD,
    REMOTE,
    SEED,
    chosen_loras,
    keep,
    lora_inputs,
    make_room,
    options,
    problem,
    vae_input,
)
from .engine_models import IN_MODEL, NONE, choices, model_parts
from .settings import ALLOW_BLENDED, CATEGORY, Choice, policy_inputs

if TYPE_CHECKING:
    from torch import Tensor

#: Stages of a prompt.
STAGES = ("text", "encode", "denoise", "decode")


def _model_inputs() -> list[io.Input]:
    return [
        io.Combo.Input(
            "model",
            options=choices("diffusion_models", "checkpoints", "diffusers"),
            tooltip="The diffusion model's file, GGUF included, or a checkpoint or folder that holds one: Flux.1 or "
            "WAN.",
        ),
    ]


def _low_noise_input() -> io.Input:
    return io.Combo.Input(
        "low_noise_model",
        display_name="low noise model",
        options=choices("diffusion_models", none=NONE),
        default=NONE,
        optional=True,
        advanced=True,
        tooltip="The second expert of WAN 2.2, for low noise; the model above is the one for high noise then.",
    )


def _samplers(own: str | None) -> tuple[list[str], list[str]]:
    """ComfyUI's samplers and schedulers, which the engine knows by the same names."""
    import comfy.samplers

    first = [] if own is None else [own]
    return first + list(comfy.samplers.KSampler.SAMPLERS), first + list(comfy.samplers.KSampler.SCHEDULERS)


class SampleOnTilewright(io.ComfyNode):
    """A latent of conditionings, by the engine."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        samplers, schedulers = _samplers(None)
        return io.Schema(
            node_id="TilewrightSample",
            display_name="Sample on Tilewright",
            category=CATEGORY,
            description="KSampler in Tilewright's engine, a process of its own, for Flux.1 and WAN: the same noise, "
            "sigmas and "
            "samplers, with weights where a policy puts them: resident, read ahead block by block, or packed as a GGUF "
            "file has "
            "them. It can be cancelled at any time.",
            search_aliases=["KSampler", "engine", "sampler"],
            inputs=[
                *_model_inputs(),
                io.Conditioning.Input("positive", tooltip="The conditioning to lead to: one, for the whole way."),
                io.Latent.Input(
                    "latent_image",
                    tooltip="The latent to begin from; its noise mask says which part is made again. An empty one of "
                    "any kind "
                    "gets the model's channels.",
                ),
                SEED,
                io.Int.Input("steps", default=20, min=1, max=10000, tooltip="Steps."),
                io.Float.Input(
                    "cfg", default=1.0, min=0.0, max=100.0, step=0.1, round=0.01,
                    tooltip="The factor of guidance away from the negative conditioning; 1 leaves it out, as Flux.1 "
                    "wants it.",
                ),  # fmt: skip
                io.Combo.Input("sampler_name", options=samplers, default="euler", tooltip="The sampler."),
                io.Combo.Input("scheduler", options=schedulers, default="simple", tooltip="The scheduler of the "
                "sigmas."),
                io.Float.Input(
                    "denoise", default=1.0, min=0.01, max=1.0, step=0.01,
                    tooltip="The share of the way from noise that is gone: less keeps more of the latent.",
                ),  # fmt: skip
                io.Conditioning.Input("negative", optional=True, tooltip="The conditioning to lead away from, if cfg "
                "is not 1."),
                io.Float.Input(
                    "shift", default=-1.0, min=-1.0, max=100.0, step=0.01, optional=True, advanced=True,
                    tooltip="The shift of the sigmas; -1 for the model's own.",
                ),  # fmt: skip
                vae_input(
                    "preview_vae",
                    NONE,
                    "A VAE that previews take their colours from. None: no previews.",
                    optional=True,
                ),
                _low_noise_input(),
                *lora_inputs(),
                *policy_inputs(),
                REMOTE,
            ],
            outputs=[
                io.Latent.Output("latent", display_name="LATENT", tooltip="The latent, in the VAE's own space."),
                RECORD,
            ],
        )

    @classmethod
    def validate_inputs(cls, memory_limit: str | None = None, settings: str | None = None) -> bool | str:
        """Refuses a limit that is no size and lines that are no settings, before anything runs."""
        return problem(memory_limit, settings, "denoise")

    @classmethod
    def execute(
        cls,
        model: str,
        positive: list[Any],
        latent_image: dict[str, Any],
        seed: int,
        steps: int,
        cfg: float,
        sampler_name: str,
        scheduler: str,
        denoise: float,
        policy: str,
        objective: str,
        memory_limit: str,
        negative: list[Any] | None = None,
        shift: float = -1.0,
        preview_vae: str = NONE,
        low_noise_model: str = NONE,
        settings: str = "",
        model_on_server: str = "",
        **more: Any,
    ) -> io.NodeOutput:
        """A latent of the shape of the one to begin from.

        Raises:
            TilewrightError: there is no engine, it refuses the job, or ended in the middle of it.
        """
        from tilewright.errors import TilewrightError

        from .engine_jobs import run, wants_previews
        from .latents import read_latent

        if cfg != 1.0 and negative is None:
            raise TilewrightError("negative: cfg is not 1, so that one is needed: connect it, or set cfg to 1")
        choice = Choice(policy, objective, memory_limit, settings=settings)
        parts = model_parts(model, low_noise_model, vae=preview_vae, remote=model_on_server)
        previews = preview_vae not in (NONE, IN_MODEL) and wants_previews()
        settled: dict[str, Any] = {
            "seed": seed,
            "steps": steps,
            "sampler": sampler_name,
            "scheduler": scheduler,
            "denoise": denoise,
            "preview": previews,
        }
        # Without guidance the engine wants no negative conditioning.
        if cfg != 1.0:
            settled["cfg"] = cfg
        if shift >= 0.0:
            settled["shift"] = shift

        def submit(session: Any) -> Any:
            name = session.model(parts)
            session.take_policy(choice, "denoise")
            away = None if cfg == 1.0 else negative
            files, guidance = _files(session.known(name), latent_image, positive, away, seed)
            if guidance is not None:
                settled["guidance"] = guidance
            return session.client.sample(
                model=name, sample=settled, loras=chosen_loras(more), **files, **options(choice)
            )

        make_room()
        made = run(submit, read_latent, steps=steps, previews=previews)
        kept = {key: value for key, value in latent_image.items() if not key.startswith("downscale_ratio_")}
        return io.NodeOutput({**kept, "samples": made.result}, keep("TilewrightSample", made.record))


def _files(
    model: Any, latent: dict[str, Any], positive: list[Any], negative: list[Any] | None, seed: int
) -> tuple[dict[str, Any], float | None]:
    """The files of a sample by the parts that they are, and the guidance that the positive conditioning has set."""
    import comfy.sample

    from tilewright.errors import TilewrightError

    from .conditionings import conditioning_of
    from .latents import FORMATS, fitted, mask_of, places_of

    family = str((model.transformer or {}).get("family", ""))
    if family not in FORMATS:
        found = family or model.family
        raise TilewrightError(f"model: it has no transformer that the engine samples with, but is {found}")
    begun = fitted(latent, FORMATS[family])
    shape = tuple(begun.shape)
    lead = conditioning_of("positive", positive, shape)
    files: dict[str, Any] = {"conditioning": lead.data, "latent": begun}
    if negative is not None:
        files["negative"] = conditioning_of("negative", negative, shape).data
    if latent.get("noise_mask") is not None:
        files["mask"] = mask_of(latent["noise_mask"], shape)
    places = places_of(latent)
    if places is not None:
        files["noise"] = comfy.sample.prepare_noise(begun, seed, places)
    return files, lead.guidance


class GenerateOnTilewright(io.ComfyNode):
    """Pictures of a prompt, by the engine."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        samplers, schedulers = _samplers(OWN)
        encoders = choices("text_encoders", none=IN_MODEL)
        return io.Schema(
            node_id="TilewrightGenerate",
            display_name="Generate on Tilewright",
            category=CATEGORY,
            description="A picture or clip of a prompt in Tilewright's engine, from text to pixels in a process of its "
            "own, with "
            "Flux.1 or WAN. What is left at its default is the model's own. A policy decides each stage.",
            search_aliases=["txt2img", "img2img", "text to image", "text to video", "engine"],
            inputs=[
                *_model_inputs(),
                io.String.Input(
                    "prompt", multiline=True, dynamic_prompts=True, default="",
                    tooltip="The prompt, with weights as ComfyUI has them: (word:1.2).",
                ),  # fmt: skip
                io.String.Input(
                    "negative_prompt", display_name="negative prompt", multiline=True, dynamic_prompts=True, default="",
                    tooltip="The prompt to lead away from; it counts if cfg is not 1.",
                ),  # fmt: skip
                io.Int.Input(
                    "width", default=0, min=0, max=16384, step=8, tooltip="Width in pixels; 0 for the model's own."
                ),
                io.Int.Input(
                    "height", default=0, min=0, max=16384, step=8, tooltip="Height in pixels; 0 for the model's own."
                ),
                io.Int.Input(
                    "frames", default=0, min=0, max=4096, tooltip="Frames of a clip; 0 for the model's own, 1 for a "
                    "picture."
                ),
                io.Int.Input("batch_size", display_name="batch size", default=1, min=1, max=64, tooltip="Pictures or "
                "clips."),
                SEED,
                io.Int.Input("steps", default=0, min=0, max=10000, tooltip="Steps; 0 for the model's own."),
                io.Float.Input(
                    "cfg", default=-1.0, min=-1.0, max=100.0, step=0.1, round=0.01,
                    tooltip="The factor of guidance away from the negative prompt; -1 for the model's own, 1 leaves it "
                    "out.",
                ),  # fmt: skip
                io.Float.Input(
                    "guidance", default=-1.0, min=-1.0, max=100.0, step=0.1,
                    tooltip="The guidance of a model that has it as an input, as Flux.1 dev; -1 for the model's own.",
                ),  # fmt: skip
                io.Combo.Input("sampler_name", options=samplers, default=OWN, tooltip="The sampler."),
                io.Combo.Input("scheduler", options=schedulers, default=OWN, tooltip="The scheduler of the sigmas."),
                io.Float.Input(
                    "denoise", default=1.0, min=0.01, max=1.0, step=0.01,
                    tooltip="Of a picture to begin with: the share that is made again.",
                ),  # fmt: skip
                io.Combo.Input(
                    "text_encoder_1", display_name="text encoder 1", options=encoders, default=IN_MODEL,
                    tooltip="A text encoder's file; the order does not matter. In the model: that of the checkpoint or "
                    "folder.",
                ),  # fmt: skip
                io.Combo.Input(
                    "text_encoder_2", display_name="text encoder 2", options=encoders, default=IN_MODEL,
                    tooltip="The second text encoder's file: Flux.1 has CLIP-L and T5-XXL, WAN has one.",
                ),  # fmt: skip
                vae_input("vae", IN_MODEL, "The VAE's file. In the model: that of the checkpoint or folder."),
                io.Image.Input("image", optional=True, tooltip="A picture to begin with; it gives the size. Not for "
                "clips."),
                io.Mask.Input("mask", optional=True, tooltip="The part of the picture that is made again: 1 there."),
                io.Float.Input(
                    "shift", default=-1.0, min=-1.0, max=100.0, step=0.01, optional=True, advanced=True,
                    tooltip="The shift of the sigmas; -1 for the model's own.",
                ),  # fmt: skip
                _low_noise_input(),
                *lora_inputs(),
                *policy_inputs(ALLOW_BLENDED),
                REMOTE,
            ],
            outputs=[
                io.Image.Output("image", display_name="IMAGE", tooltip="The pictures; of a clip its frames."),
                RECORD,
            ],
        )

    @classmethod
    def validate_inputs(cls, memory_limit: str | None = None, settings: str | None = None) -> bool | str:
        """Refuses a limit that is no size and lines that are no settings, before anything runs."""
        return problem(memory_limit, settings, *STAGES)

    @classmethod
    def execute(
        cls,
        model: str,
        prompt: str,
        negative_prompt: str,
        width: int,
        height: int,
        frames: int,
        batch_size: int,
        seed: int,
        steps: int,
        cfg: float,
        guidance: float,
        sampler_name: str,
        scheduler: str,
        denoise: float,
        text_encoder_1: str,
        text_encoder_2: str,
        vae: str,
        policy: str,
        objective: str,
        memory_limit: str,
        allow_blended: bool,
        image: Tensor | None = None,
        mask: Tensor | None = None,
        shift: float = -1.0,
        low_noise_model: str = NONE,
        settings: str = "",
        model_on_server: str = "",
        **more: Any,
    ) -> io.NodeOutput:
        """Pictures [N, H, W, 3] in 0…1.

        Raises:
            TilewrightError: there is no engine, it refuses the job, or ended in the middle of it.
        """
        from tilewright.errors import TilewrightError

        from .engine_jobs import run, wants_previews
        from .latents import cropped, mask_of, png_of, read_image

        if mask is not None and image is None:
            raise TilewrightError("mask: there is no picture that it is of: connect image, too")
        choice = Choice(policy, objective, memory_limit, allow_blended, False, settings)
        parts = model_parts(model, low_noise_model, (text_encoder_1, text_encoder_2), vae, model_on_server)
        previews = wants_previews()
        # A value at its default is left to the model.
        given = {
            "width": width or None,
            "height": height or None,
            "frames": frames or None,
            "steps": steps or None,
            "cfg": None if cfg < 0.0 else cfg,
            "guidance": None if guidance < 0.0 else guidance,
            "shift": None if shift < 0.0 else shift,
            "sampler": None if sampler_name == OWN else sampler_name,
            "scheduler": None if scheduler == OWN else scheduler,
            "denoise": None if image is None else denoise,
        }
        settled: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        settled.update(batch=batch_size, seed=seed, preview=previews)

        def submit(session: Any) -> Any:
            name = session.model(parts)
            session.take_policy(choice, *STAGES)
            files: dict[str, Any] = {}
            if image is not None:
                scale = session.known(name).spatial_scale
                whole = cropped(image[:1], scale)
                files["image"] = png_of(whole)
                settled.pop("width", None)
                settled.pop("height", None)
                if mask is not None:
                    # The mask is of the whole picture, of which the middle is taken.
                    middle = cropped(mask.reshape(-1, *mask.shape[-2:])[..., None], scale)[..., 0]
                    files["mask"] = mask_of(middle, (1, 1, *(side // scale for side in whole.shape[1:3])))
            return session.client.generate(
                prompt,
                model=name,
                negative_prompt=negative_prompt or None,
                sample=settled,
                loras=chosen_loras(more),
                **files,
                **options(choice),
            )

        make_room()
        made = run(submit, read_image, previews=previews)
        return io.NodeOutput(made.result, keep("TilewrightGenerate", made.record))
