"""The node VAE by policy: a VAE whose decodes and encodes a policy decides, whatever node asks for them."""

from __future__ import annotations

from typing import Any

from comfy_api.v0_0_2 import io

from .settings import ALLOW_BLENDED, ALLOW_LOSSY, CATEGORY, Choice, policy_inputs, problem

STAGES = ("decode", "encode")


class VaeByPolicy(io.ComfyNode):
    """A VAE that a policy decides for."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        return io.Schema(
            node_id="TilewrightVAE",
            display_name="VAE by policy",
            category=CATEGORY,
            description="Gives a VAE back whose decodes and encodes a policy decides: whole or in tiles that give the "
            "whole picture's output, in what type, in what chunks. It works with every node that takes a VAE. ComfyUI "
            "is told the memory that a plan really needs; where a plan runs out of memory or gives values that are "
            "none, the next one is tried.",
            search_aliases=["tiled VAE", "VAE decode tiled", "tilewright"],
            inputs=[
                io.Vae.Input("vae", tooltip="The VAE. It stays as it is; the output is another handle on its weights."),
                *policy_inputs(ALLOW_BLENDED, ALLOW_LOSSY),
            ],
            outputs=[io.Vae.Output(display_name="VAE", tooltip="The same VAE, by policy.")],
        )

    @classmethod
    def validate_inputs(cls, policy: Any = None, memory_limit: Any = None, settings: Any = None) -> bool | str:
        """Refuses a limit that is no size and settings that the policy has not, before anything runs."""
        return problem(Choice(policy=policy, memory_limit=memory_limit, settings=settings), *STAGES)

    @classmethod
    def execute(
        cls,
        vae: Any,
        policy: str,
        objective: str,
        memory_limit: str,
        allow_blended: bool,
        settings: str,
        allow_lossy: bool = False,
    ) -> io.NodeOutput:
        """The governed VAE.

        Raises:
            TilewrightError: the limit is no size, or the policy or one of its settings is missing.
        """
        from .vae_governed import govern

        choice = Choice(
            policy=policy,
            objective=objective,
            memory_limit=memory_limit,
            allows_blended=allow_blended,
            allows_lossy=allow_lossy,
            settings=settings,
        )
        choice.check(*STAGES)
        return io.NodeOutput(govern(vae, choice))


NODES: list[type[io.ComfyNode]] = [VaeByPolicy]
