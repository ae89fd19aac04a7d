"""A decode or an encode as policies are asked about it: its extents, its prices, and the plans that can be carried
out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch

from .. import records
from ..errors import ModelError, PolicyError, TilewrightError
from ..model import Device, VaeQuote
from ..policy import Policy, VaeDecision
from .autoencoders import Autoencoder
from .running import TORCH_DTYPES
from .shapes import model_of_autoencoder, without_file

Stage = Literal["decode", "encode"]

#: The beginning of a reason: a module has other weights than those of its class, as an adapter's.
CHANGED = "the VAE was changed"

#: A limit that no plan reaches.
_NO_LIMIT = 2**62


class InputError(TilewrightError):
    """Latents or pixels are none that the autoencoder takes."""


class NoPrice(ModelError):
    """Nothing is known of what plans for this module and this input would hold and take."""


@dataclass(frozen=True, slots=True)
class Aims:
    """The user's wishes for a decode or an encode.

    Attributes:
        memory_limit: the most that the work may hold beside the weights, in bytes or as `"8GiB"`; None for 80 % of what
            is free.
        objective: what counts most.
        allows_blended: tiles that are cross-faded are allowed where an exact plan fits, too.
        allows_narrower: types narrower than that of the module's weights are allowed.
    """

    memory_limit: int | str | None
    objective: records.Objective
    allows_blended: bool
    allows_narrower: bool = True


@dataclass(frozen=True, slots=True)
class Extents:
    """The size of a decode's output or of an encode's input.

    Attributes:
        batch: samples.
        frames: frames; 1 of pictures.
        height: pixels.
        width: pixels.
    """

    batch: int
    frames: int
    height: int
    width: int


def extents_of(autoencoder: Autoencoder, stage: Stage, shape: Sequence[int]) -> Extents:
    """The extents of latents or pixels of a shape.

    Raises:
        InputError: the autoencoder takes no such shape.
    """
    name = "latents" if stage == "decode" else "pixels"
    sides = "h, w" if stage == "decode" else "H, W"
    channels = autoencoder.latent_channels if stage == "decode" else int(getattr(autoencoder, "image_channels", 3))
    expected = f"[N, {channels}, {'T, ' if autoencoder.is_video else ''}{sides}]"
    said = f"{name}: {list(shape)} where the {autoencoder.family} autoencoder takes {expected}"
    if len(shape) != (5 if autoencoder.is_video else 4):
        lacks_frames = autoencoder.is_video and len(shape) == 4
        advice = "add an axis of frames after the channels" if lacks_frames else "bring them into that form"
        raise InputError(f"{said}: {advice}")
    if shape[1] != channels:
        raise InputError(f"{said}: take the autoencoder that they were made for")
    if 0 in shape:
        raise InputError(f"{said}: at least one of each is needed")
    batch, frames = shape[0], shape[2] if autoencoder.is_video else 1
    height, width = shape[-2:]
    if stage == "encode":
        return Extents(batch, frames, height, width)
    spatial, temporal = autoencoder.spatial_scale, autoencoder.temporal_scale
    return Extents(batch, 1 + (frames - 1) * temporal, height * spatial, width * spatial)


def has_price(autoencoder: Autoencoder, extents: Extents) -> bool:
    """True if sides are multiples of the scales, as all are that plans are priced for."""
    spatial, temporal = autoencoder.spatial_scale, autoencoder.temporal_scale
    is_even = extents.height % spatial == 0 and extents.width % spatial == 0
    return is_even and (extents.frames - 1) % temporal == 0


class Question:
    """A piece of work on a device, that a policy is asked about: at first, and again after each failure."""

    def __init__(self, policy: Policy, quote: VaeQuote, dtype: torch.dtype, *, allows_narrower: bool = True) -> None:
        self.policy = policy
        self.quote = quote
        self.stage: Stage = cast(Stage, quote.stage)
        self.capabilities = _carried_out(quote.capabilities, dtype, allows_narrower)

    @classmethod
    def of(
        cls,
        policy: Policy,
        autoencoder: Autoencoder,
        stage: Stage,
        extents: Extents,
        device: Device,
        dtype: torch.dtype,
        aims: Aims,
    ) -> Question:
        """The question about an input of some extents, in some type.

        Raises:
            NoPrice: plans have none.
            ModelError: not even the leanest plan fits the user's limit.
        """
        try:
            model = model_of_autoencoder(autoencoder)
        except ModelError as error:
            raise NoPrice(str(error)) from error
        # An encode's price is that of one clip; others follow in turn.
        batch = 1 if stage == "encode" and autoencoder.is_video else extents.batch

        def quoted(limit: int | str | None, objective: records.Objective) -> VaeQuote:
            asked = model.decode if stage == "decode" else model.encode
            return asked(
                device,
                width=extents.width,
                height=extents.height,
                frames=extents.frames,
                batch=batch,
                memory_limit=limit,
                objective=objective,
                allows_blended=aims.allows_blended,
            )

        try:
            quote = quoted(aims.memory_limit, aims.objective)
        except ModelError as error:
            try:
                unlimited = quoted(_NO_LIMIT, "leanest")
            except ModelError:
                raise NoPrice(_reason(str(error))) from error
            if aims.memory_limit is not None:
                raise
            # Nobody set a limit: estimates may be too high, and more may be free by then.
            quote = unlimited
        return cls(policy, quote, dtype, allows_narrower=aims.allows_narrower)

    def decide(self, attempts: Sequence[records.FailedAttempt] = (), *, last_resort: bool = False) -> VaeDecision:
        """The policy's decision after attempts that failed, or the host's own.

        Raises:
            PolicyError: no plan is left for the last resort.
        """
        return self.policy.decide(
            self.quote.request,
            attempts,
            stage=self.stage,
            capabilities=self.capabilities,
            device=self.quote.device,
            costs=self.quote,
            last_resort=last_resort,
        )

    def last_resort(self, attempts: Sequence[records.FailedAttempt]) -> VaeDecision | None:
        """The host's own decision; None if no plan is left."""
        try:
            return self.decide(attempts, last_resort=True)
        except PolicyError:
            return None

    def learn(self, plan: records.Plan, outcome: records.Outcome) -> None:
        """Tells the policy what a plan led to.

        Raises:
            PolicyError: it failed at it.
        """
        self.policy.learn(
            self.quote.request,
            plan,
            outcome,
            stage=self.stage,
            capabilities=self.capabilities,
            device=self.quote.device,
        )

    def excess(self, decision: VaeDecision) -> int | None:
        """The bytes that a plan is expected to hold, if they are more than the limit."""
        cost = decision.expected or decision.estimate
        limit = self.quote.request.memory_limit
        return cost.peak_bytes if cost is not None and cost.peak_bytes > limit else None


def _reason(said: str) -> str:
    """The reason why a module has no prices, as its owner knows it: there is no file of its weights."""
    found = without_file(said)
    return found if found == said else f"{CHANGED} ({found.partition(': ')[0]})"


def _carried_out(
    capabilities: records.Capabilities, dtype: torch.dtype, allows_narrower: bool
) -> records.Capabilities:
    """The plans that are carried out here: activations stay on the device, and PyTorch alone computes. A module in f64
    stays so."""
    dtypes = tuple(one for one in capabilities.dtypes if one in TORCH_DTYPES)
    if dtype == torch.float64:
        dtypes = ("f32",)
    elif not allows_narrower:
        # TF32 keeps values in f32 and rounds them on their way into a product.
        dtypes = tuple(one for one in dtypes if one == "f32" or (one != "tf32" and TORCH_DTYPES[one] == dtype))
    return replace(capabilities, dtypes=dtypes, offload=False, prefetch_most=0, options=())
