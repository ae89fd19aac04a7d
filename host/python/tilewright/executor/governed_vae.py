"""The methods of a VAE of diffusers by policy, and its user's own divisions of their work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..policy import VaeDecision
from .governor import VaeGovernor
from .placement import Placement
from .replacing import Uncopied

#: The attributes by which users divide the work of a VAE of diffusers themselves.
_DIVISIONS = ("use_tiling", "use_slicing")


class _Aside(int, Uncopied):
    """False in the place of a user's own setting, which copies have again."""

    _value: Any

    def __new__(cls, value: Any) -> _Aside:
        """The stand-in for a value."""
        made = super().__new__(cls, 0)
        made._value = value
        return made

    def in_copies(self) -> Any:
        """The user's setting."""
        return self._value

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return bool, (self._value,)

    def __repr__(self) -> str:
        return "False"


class GovernedVae:
    """A VAE's own methods, by policy.

    Args:
        module: the VAE.
        governor: decides and decodes.
        placement: what the pipeline's stages share.
    """

    def __init__(self, module: nn.Module, governor: VaeGovernor, placement: Placement) -> None:
        self._module = module
        self._governor = governor
        self._placement = placement

    def put_aside(self) -> None:
        """The user's own divisions count no more."""
        for name in _DIVISIONS:
            value = getattr(self._module, name, False)
            if value:
                setattr(self._module, name, _Aside(value))

    def give_back(self) -> None:
        """The user's own divisions count again, but for those that were turned on or off meanwhile."""
        for name in _DIVISIONS:
            value = getattr(self._module, name, False)
            if isinstance(value, _Aside):
                setattr(self._module, name, value.in_copies())

    def decode(self, own: Callable[..., Any], z: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The output of `own`: a `DecoderOutput`, or a tuple."""
        if self._is_left_alone(z, args, kwargs, "generator"):
            return own(z, *args, **kwargs)
        self._load()
        values = self._governor.decode(z, on_decision=self._make_room)
        if not _wants_class(args, kwargs):
            return (values,)
        from diffusers.models.autoencoders.vae import DecoderOutput

        return DecoderOutput(sample=values)

    def encode(self, own: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The output of `own`: an `AutoencoderKLOutput` of the same distribution, or a tuple."""
        if self._is_left_alone(x, args, kwargs):
            return own(x, *args, **kwargs)
        self._load()
        moments = self._governor.encode(x, on_decision=self._make_room)
        from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
        from diffusers.models.modeling_outputs import AutoencoderKLOutput

        distribution = DiagonalGaussianDistribution(moments)
        return AutoencoderKLOutput(latent_dist=distribution) if _wants_class(args, kwargs) else (distribution,)

    def _is_left_alone(self, values: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *known: str) -> bool:
        """True of what the module itself has to answer: gradients, and arguments that are none of ours."""
        if not isinstance(values, Tensor) or len(args) > 1 + len(known) or set(kwargs) - {"return_dict", *known}:
            return True
        trains = self._module.training and any(p.requires_grad for p in self._module.parameters())
        asks = values.requires_grad or trains
        return torch.is_grad_enabled() and asks

    def _load(self) -> None:
        """Has Accelerate bring the weights, as it does before the module's own methods."""
        hook = getattr(self._module, "_hf_hook", None)
        if hook is not None and hasattr(hook, "pre_forward"):
            hook.pre_forward(self._module)

    def _make_room(self, decision: VaeDecision) -> None:
        estimate = decision.estimate
        self._placement.free(estimate.peak_bytes if estimate is not None else 0)


def _wants_class(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """The value of `return_dict`, the first argument after the values."""
    return bool(kwargs.get("return_dict", args[0] if args else True))
