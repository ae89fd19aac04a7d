"""A VAE of ComfyUI whose decodes and encodes a policy decides."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from comfy import model_management
from comfy.utils import ProgressBar
from tilewright.errors import ModelError
from tilewright.executor.autoencoders import find_autoencoder
from tilewright.executor.governor import VaeGovernor

from . import comfy_memory, interruption, vae_ungoverned
from .settings import Choice

if TYPE_CHECKING:
    from tilewright import records
    from tilewright.executor.autoencoders import Autoencoder
    from tilewright.policy import VaeDecision

log = logging.getLogger("tilewright")

#: The node's id, for records.
NODE = "TilewrightVAE"

Stage = Literal["decode", "encode"]


def govern(vae: Any, choice: Choice) -> Any:
    """Another handle on a VAE's weights, whose decodes and encodes a policy decides. The VAE given stays as it is.

    Args:
        vae: ComfyUI's VAE; one that is governed already gets the new choice.
        choice: the policy and its bounds.
    """
    governed = copy.copy(vae)
    if Governed not in type(vae).__mro__:
        governed.__class__ = _governed_class(type(vae))
    governed.governance = Governance(vae.first_stage_model, choice)
    return governed


class Governed:
    """The methods of a governed VAE that stand before those of ComfyUI's."""

    governance: Governance

    def decode(self, samples_in: torch.Tensor, vae_options: dict[str, Any] | None = None) -> torch.Tensor:
        """Latents [N, C, h, w] or [N, C, T, h, w] to pixels [N, H, W, 3] or [N, T, H, W, 3], as ComfyUI's own does."""
        return self.governance.decode(self, samples_in, vae_options or {})

    def decode_tiled(self, samples: torch.Tensor, *args: Any, **tiles: Any) -> torch.Tensor:
        """As `decode`: the policy decides on tiles, and those that the caller names are left."""
        return self.governance.decode(self, samples, {}, (args, tiles))

    def encode(self, pixel_samples: torch.Tensor) -> torch.Tensor:
        """Pixels [N, H, W, 3], or frames, to latents, as ComfyUI's own does."""
        return self.governance.encode(self, pixel_samples)

    def encode_tiled(self, pixel_samples: torch.Tensor, *args: Any, **tiles: Any) -> torch.Tensor:
        """As `encode`: the policy decides on tiles, and those that the caller names are left."""
        return self.governance.encode(self, pixel_samples, (args, tiles))


@functools.cache
def _governed_class(of: type) -> type:
    about = "A VAE whose decodes and encodes a policy decides."
    return type(f"Governed{of.__name__}", (Governed, of), {"__doc__": about})


class Governance:
    """Decides for one VAE.

    Args:
        module: the VAE's module.
        choice: the policy and its bounds.
    """

    def __init__(self, module: torch.nn.Module | None, choice: Choice) -> None:
        self.choice = choice
        #: None if plans can't be carried out on it.
        self.autoencoder: Autoencoder | None = None if module is None else find_autoencoder(module)
        self._governors: dict[Stage, VaeGovernor] = {}

    def decode(
        self,
        vae: Any,
        latents: torch.Tensor,
        options: dict[str, Any],
        tiles: vae_ungoverned.Tiles | None = None,
    ) -> torch.Tensor:
        """Latents to pixels, channels last, on ComfyUI's intermediate device.

        Args:
            vae: the governed VAE.
            latents: latents.
            options: options of the VAE's own decode; one that has any decides itself.
            tiles: tiles that the caller names, for a VAE that no plan can be carried out on.
        """
        vae.throw_exception_if_invalid()
        if vae.latent_dim == 2 and latents.ndim == 5:
            latents = latents[:, :, 0]
        if options or not self._fits(latents):
            return vae_ungoverned.decode(vae, self.choice, latents, options, tiles)
        try:
            pixels = self._run(vae, self._governor("decode", vae).decode, latents)
        except ModelError as error:
            self._check_limit(error)
            return vae_ungoverned.decode(vae, self.choice, latents, options, tiles)
        pixels = pixels.to(device=vae.output_device, dtype=vae.vae_output_dtype())
        return vae.process_output(pixels).movedim(1, -1)

    def encode(self, vae: Any, pixels: torch.Tensor, tiles: vae_ungoverned.Tiles | None = None) -> torch.Tensor:
        """Pixels, channels last, to latents on ComfyUI's intermediate device.

        Args:
            vae: the governed VAE.
            pixels: pixels in 0 … 1.
            tiles: tiles that the caller names, for a VAE that no plan can be carried out on.
        """
        vae.throw_exception_if_invalid()
        given = pixels
        if self.autoencoder is None or vae.output_channels != 3:
            return vae_ungoverned.encode(vae, self.choice, given, tiles)
        pixels = vae.vae_encode_crop_pixels(pixels).movedim(-1, 1)
        if vae.latent_dim == 3 and pixels.ndim < 5:
            pixels = pixels.unsqueeze(2) if vae.not_video else pixels.movedim(1, 0).unsqueeze(0)
        if self.autoencoder.is_video:
            # Frames beyond the last whole group have no latent.
            pixels = pixels[:, :, : vae.upscale_ratio[0](vae.downscale_ratio[0](pixels.shape[2]))]
        try:
            moments = self._run(vae, self._governor("encode", vae).encode, vae.process_input(pixels))
        except ModelError as error:
            self._check_limit(error)
            return vae_ungoverned.encode(vae, self.choice, given, tiles)
        latents = _latents_of(vae.first_stage_model, moments, self.autoencoder.latent_channels)
        latents = latents.to(device=vae.output_device, dtype=vae.vae_output_dtype())
        return latents if vae.format_encoded is None else vae.format_encoded(latents)

    def _fits(self, latents: torch.Tensor) -> bool:
        found = self.autoencoder
        return (
            found is not None
            and latents.ndim == (5 if found.is_video else 4)
            and latents.shape[1] == found.latent_channels
        )

    def _check_limit(self, error: ModelError) -> None:
        """Keeps a limit that a user has named; where there is none, ComfyUI's own way is still open.

        Raises:
            ModelError: a user has named it.
        """
        if comfy_memory.named_limit(self.choice.memory_limit) is not None:
            raise error
        log.warning("%s", error)

    def _governor(self, stage: Stage, vae: Any) -> VaeGovernor:
        found = self._governors.get(stage)
        if found is None:
            assert self.autoencoder is not None
            policy = self.choice.policy_of(stage)
            found = self._governors[stage] = VaeGovernor(self.autoencoder, policy, on_record=_note)
        found.aim(
            # The memory that is free changes from run to run.
            memory_limit=comfy_memory.limit_of(self.choice.memory_limit, vae.device, vae.patcher),
            objective=cast(Any, self.choice.objective),
            allows_blended=self.choice.allows_blended,
            # A user who names a type allows it.
            allows_narrower=self.choice.allows_lossy or "precision" in self.choice.settings_of(stage),
        )
        return found

    def _run(self, vae: Any, work: Callable[..., torch.Tensor], values: torch.Tensor) -> torch.Tensor:
        """One decode or encode on the VAE's device."""
        progress: list[ProgressBar] = []

        def advance(done: int, total: int) -> None:
            if not progress:
                progress.append(ProgressBar(total))
            progress[0].update_absolute(done, total)

        def prepare(decision: VaeDecision) -> None:
            cost = decision.expected or decision.estimate
            needed = 0 if cost is None else cost.peak_bytes
            log.info("%s: %s; %s of memory", _stage_of(decision), decision.plan.reason, _size(needed))
            if not self.choice.allows_blended and "blended" in (decision.plan.space.kind, decision.plan.time.kind):
                log.warning(
                    "%s: no exact plan fits the memory: tiles are cross-faded, which changes the picture a little; a "
                    "higher limit avoids it",
                    _stage_of(decision),
                )
            comfy_memory.make_room(vae.patcher, needed, whole=vae.disable_offload)

        def run(interruption: interruption.Interruption) -> torch.Tensor:
            with model_management.cuda_device_context(vae.device):
                return work(
                    values, device=vae.device, on_progress=advance, is_cancelled=interruption, on_decision=prepare
                )

        return interruption.call(run, vae.first_stage_model, vae.device)


def _latents_of(module: torch.nn.Module, moments: torch.Tensor, channels: int) -> torch.Tensor:
    """The latents that a module's own encode makes of its moments; WAN's gives the mean alone."""
    if moments.shape[1] == channels:
        return moments
    regularization = getattr(module, "regularization", None)
    return moments.chunk(2, dim=1)[0] if regularization is None else regularization(moments)[0]


def _stage_of(decision: VaeDecision) -> str:
    return decision.record.stage or "decode"


def _size(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _note(record: records.Record) -> None:
    from . import history

    history.add(record.to_dict(), node=NODE)
