"""Inputs that the engine's nodes share, and what they mean to a job."""

from __future__ import annotations

import json
from typing import Any

from comfy_api.v0_0_2 import io

from .engine_models import NONE, choices, loras_of, names_in
from .settings import Choice

#: A choice that leaves a setting to the model.
OWN = "(the model's own)"

#: LoRAs that a node has menus for.
LORAS = 3

SEED = io.Int.Input(
    "seed",
    default=0,
    min=0,
    max=0xFFFFFFFFFFFFFFFF,
    control_after_generate=True,
    tooltip="The seed of the noise: the same as that of ComfyUI's own sampler gives the same noise.",
)

REMOTE = io.String.Input(
    "model_on_server",
    display_name="model on server",
    default="",
    placeholder="the file's name without its ending",
    tooltip="The model's name on the server, if you have named one in tilewright.toml or TILEWRIGHT_SERVER. It has no "
    "effect on "
    "an engine of this machine.",
    optional=True,
    advanced=True,
)

RECORD = io.String.Output(
    "record", display_name="record", tooltip="What was decided and measured, as JSON, for the node Decision."
)


def vae_input(name: str, none: str | None, tooltip: str, *, optional: bool = False) -> io.Combo.Input:
    return io.Combo.Input(
        name, options=choices("vae", "checkpoints", "diffusers", none=none), tooltip=tooltip, optional=optional
    )


def lora_inputs() -> list[io.Input]:
    """Menus of LoRAs with their strengths."""
    found: list[io.Input] = []
    names = [NONE, *names_in("loras")]
    for number in range(1, LORAS + 1):
        found.append(
            io.Combo.Input(
                f"lora_{number}", display_name=f"LoRA {number}", options=names, default=NONE, optional=True,
                advanced=True,
                tooltip="A LoRA on the transformer. Its product is added beside each layer's: quantized weights stay "
                "as they are.",
            )  # fmt: skip
        )
        found.append(
            io.Float.Input(
                f"strength_{number}", display_name=f"strength {number}", default=1.0, min=-10.0, max=10.0, step=0.05,
                optional=True, advanced=True, tooltip="The factor of the LoRA's changes; 0 leaves it out.",
            )  # fmt: skip
        )
    return found


def chosen_loras(more: dict[str, Any]) -> list[dict[str, Any]]:
    """The LoRAs of a node's menus, as a request has them."""
    chosen = [
        (str(more.get(f"lora_{number}", NONE)), float(more.get(f"strength_{number}", 1.0)))
        for number in range(1, LORAS + 1)
    ]
    return [{"name": lora.name, "strength": lora.strength} for lora in loras_of(chosen)]


def problem(memory_limit: str | None, settings: str | None, *stages: str) -> bool | str:
    """ComfyUI's answer on inputs before a prompt is queued: True, or what is wrong in one line. None is what another
    node will give. The policy is looked for by the engine, and a server has its own."""
    from tilewright.errors import TilewrightError

    from .comfy_memory import named_limit

    try:
        named_limit(memory_limit or "")
        for stage in stages:
            Choice(settings=settings or "").settings_of(stage)
    except TilewrightError as error:
        return str(error)
    return True


def options(choice: Choice) -> dict[str, Any]:
    """The options of a job that a user's choice names."""
    from .comfy_memory import named_limit

    found: dict[str, Any] = {"objective": choice.objective, "format": "safetensors"}
    limit = named_limit(choice.memory_limit)
    if limit is not None:
        found["memory_limit_bytes"] = limit
    if choice.allows_blended:
        found["allow"] = ["blended"]
    return found


def make_room() -> None:
    """Has ComfyUI's models leave a GPU that the engine is about to use."""
    from comfy import model_management

    from .engine_session import session

    device = model_management.get_torch_device()
    if session().engine is not None and not model_management.is_device_cpu(device):
        model_management.free_memory(1e30, device)
        model_management.soft_empty_cache()


def keep(node: str, record: dict[str, Any]) -> str:
    """Adds a record to the history, and returns it as text."""
    from . import history

    history.add(record, node=node)
    return json.dumps(record)
