"""The nodes Decode and Encode on Tilewright."""

from __future__ import annotations

from typing import Any

from comfy_api.v0_0_2 import io

from .engine_inputs import RECORD, REMOTE, keep, make_room, options, problem, vae_input
from .engine_models import vae_parts
from .settings import ALLOW_BLENDED, CATEGORY, Choice, policy_inputs


class DecodeOnTilewright(io.ComfyNode):
    """A latent to pictures, by the engine."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        return io.Schema(
            node_id="TilewrightDecode",
            display_name="Decode on Tilewright",
            category=CATEGORY,
            description="Decodes a latent in Tilewright's engine, a process of its own: a crash there leaves ComfyUI "
            "alone. A "
            "policy decides tiles, chunks and types; the limit on memory is kept. In f32 the pictures equal VAE "
            "Decode's.",
            search_aliases=["VAE decode", "engine", "tiled decode"],
            inputs=[
                io.Latent.Input("samples", tooltip="The latent, of the VAE's own kind."),
                vae_input("vae", None, "The VAE's file; it may be in a checkpoint or in a folder that diffusers has "
                "saved."),
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
        return problem(memory_limit, settings, "decode")

    @classmethod
    def execute(
        cls,
        samples: dict[str, Any],
        vae: str,
        policy: str,
        objective: str,
        memory_limit: str,
        allow_blended: bool,
        settings: str = "",
        model_on_server: str = "",
    ) -> io.NodeOutput:
        """Pictures [N, H, W, 3] in 0…1.

        Raises:
            TilewrightError: there is no engine, it refuses the latent, or ended in the middle of the job.
        """
        from .engine_jobs import run
        from .latents import read_image, samples_of

        choice = Choice(policy, objective, memory_limit, allow_blended, False, settings)
        parts = vae_parts(vae, model_on_server)
        latent = samples_of(samples)

        def submit(session: Any) -> Any:
            name = session.model(parts)
            session.take_policy(choice, "decode")
            return session.client.decode(latent, model=name, **options(choice))

        make_room()
        made = run(submit, read_image)
        return io.NodeOutput(made.result, keep("TilewrightDecode", made.record))


class EncodeOnTilewright(io.ComfyNode):
    """Pictures to a latent, by the engine."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        return io.Schema(
            node_id="TilewrightEncode",
            display_name="Encode on Tilewright",
            category=CATEGORY,
            description="Encodes pictures in Tilewright's engine, a process of its own. With a video VAE the pictures "
            "are the "
            "frames of one clip. In f32 the latent equals VAE Encode's.",
            search_aliases=["VAE encode", "engine"],
            inputs=[
                io.Image.Input("pixels", tooltip="The pictures. Of sides that are no multiples of the VAE's scale the "
                "middle is taken."),
                vae_input("vae", None, "The VAE's file; it may be in a checkpoint or in a folder that diffusers has "
                "saved."),
                *policy_inputs(ALLOW_BLENDED),
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
        return problem(memory_limit, settings, "encode")

    @classmethod
    def execute(
        cls,
        pixels: Any,
        vae: str,
        policy: str,
        objective: str,
        memory_limit: str,
        allow_blended: bool,
        settings: str = "",
        model_on_server: str = "",
    ) -> io.NodeOutput:
        """A latent [N, C, h, w] or [1, C, T, h, w].

        Raises:
            TilewrightError: there is no engine, it refuses the pictures, or ended in the middle of the job.
        """
        from .engine_jobs import run
        from .latents import cropped, pixels_of, read_latent

        choice = Choice(policy, objective, memory_limit, allow_blended, False, settings)
        parts = vae_parts(vae, model_on_server)

        def submit(session: Any) -> Any:
            name = session.model(parts)
            session.take_policy(choice, "encode")
            model = session.known(name)
            image = pixels_of(cropped(pixels, model.spatial_scale), model.temporal_scale > 1)
            return session.client.encode(image, model=name, **options(choice))

        make_room()
        made = run(submit, read_latent)
        return io.NodeOutput({"samples": made.result}, keep("TilewrightEncode", made.record))
