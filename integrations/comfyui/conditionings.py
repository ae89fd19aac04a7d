"""ComfyUI's conditionings as the engine's files have them: `prompt_embeds`, `pooled_prompt_embeds`, and what image to
video adds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

#: Keys that a conditioning may hold beside its tensors without an effect on the engine's families.
WITHOUT_EFFECT = {
    "pooled_output", "guidance", "attention_mask", "clip_vision_output", "concat_latent_image", "concat_mask",
    "start_percent", "end_percent", "strength", "set_area_to_bounds", "uuid", "clip_start_percent", "clip_end_percent",
    "width", "height", "crop_w", "crop_h", "target_width", "target_height", "aesthetic_score", "t5xxl_ids",
    "t5xxl_weights",
}  # fmt: skip

#: Channels of a WAN 2.1 latent, and of the mask before it.
LATENT, MASK = 16, 4


@dataclass(frozen=True, slots=True)
class Conditioning:
    """A conditioning as the engine takes it.

    Attributes:
        data: the file: a safetensors with `prompt_embeds` [N, T, D] and what belongs to it, f32.
        guidance: the guidance that FluxGuidance has set; None if there is none.
    """

    data: bytes
    guidance: float | None


def conditioning_of(what: str, conditioning: list[Any], latent_shape: tuple[int, ...]) -> Conditioning:
    """A conditioning's file.

    Args:
        what: the input's name, for errors.
        conditioning: pairs of [N, T, D] and a mapping, as ComfyUI has them.
        latent_shape: shape of the latent that is sampled; a picture that a clip begins with is scaled to it.

    Raises:
        TilewrightError: it says what the engine can't do, as areas, masks, ControlNets and several prompts at once.
    """
    import torch
    from safetensors.torch import save

    from tilewright.errors import TilewrightError

    if len(conditioning) != 1:
        raise TilewrightError(
            f"{what}: it combines {len(conditioning)} conditionings, and the engine takes one: use the sampler by "
            f"policy, "
            "which is ComfyUI's own"
        )
    states, extra = conditioning[0]
    refused = sorted(key for key, value in extra.items() if key not in WITHOUT_EFFECT and value is not None)
    if refused:
        raise TilewrightError(
            f"{what}: the engine does not know its {', '.join(refused)}: use the sampler by policy, which is ComfyUI's "
            f"own"
        )
    is_whole = extra.get("start_percent", 0.0) <= 0.0 and extra.get("end_percent", 1.0) >= 1.0
    if not is_whole or extra.get("strength", 1.0) != 1.0:
        raise TilewrightError(f"{what}: the engine takes it for the whole way and in full: leave range and strength as "
        f"they are")
    attended = extra.get("attention_mask")
    if attended is not None and not bool((attended != 0).all()):
        raise TilewrightError(f"{what}: the engine attends to all of its tokens: encode the text without an attention "
        f"mask")
    tensors: dict[str, Tensor] = {"prompt_embeds": states}
    if extra.get("pooled_output") is not None:
        tensors["pooled_prompt_embeds"] = extra["pooled_output"]
    vision = extra.get("clip_vision_output")
    if vision is not None:
        tensors["image_embeds"] = vision.penultimate_hidden_states
    picture = extra.get("concat_latent_image")
    if picture is not None:
        tensors["condition"] = _condition(what, picture, extra.get("concat_mask"), latent_shape)
    held = {name: value.detach().to(device="cpu", dtype=torch.float32).contiguous() for name, value in tensors.items()}
    guidance = extra.get("guidance")
    return Conditioning(save(held), None if guidance is None else float(guidance))


def _condition(what: str, picture: Tensor, mask: Tensor | None, latent_shape: tuple[int, ...]) -> Tensor:
    """The picture that a clip of WAN begins with, [N, 20, T, h, w]: the mask first, 1 where frames are given, then the
    latent in the network's space."""
    import comfy.latent_formats
    import comfy.utils
    import torch

    from tilewright.errors import TilewrightError

    if picture.ndim != 5 or picture.shape[1] != LATENT or len(latent_shape) != 5:
        raise TilewrightError(f"{what}: a first frame of {list(picture.shape)} is none of WAN 2.1's: expected [N, 16, "
        f"T, h, w]")
    frames, height, width = latent_shape[2:]
    image = picture.to(device="cpu", dtype=torch.float32)
    image = comfy.utils.common_upscale(image, width, height, "bilinear", "center")
    image = comfy.latent_formats.Wan21().process_in(image)
    if mask is None:
        # Without a mask ComfyUI's network is told that no frame is given.
        kept = image.new_zeros((image.shape[0], MASK, *image.shape[2:]))
    else:
        made = mask.to(device="cpu", dtype=torch.float32)
        kept = 1.0 - (made if made.shape[1] == MASK else made.mean(dim=1, keepdim=True))
        kept = comfy.utils.common_upscale(kept, width, height, "bilinear", "center")
        if kept.shape[2] < frames:
            kept = torch.nn.functional.pad(kept, (0, 0, 0, 0, 0, frames - kept.shape[2]))
        kept = kept.expand(-1, MASK, -1, -1, -1) if kept.shape[1] == 1 else kept
        kept = comfy.utils.resize_to_batch_size(kept, image.shape[0])
    return torch.cat((kept, image), dim=1)
