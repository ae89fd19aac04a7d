"""Inputs and outputs of networks: their places, types and sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

import torch
from torch import Tensor

from .failures import check_finite

#: Words in the names of inputs that are no values of a network's type: times, positions and masks.
_EXACT = ("time", "ids", "rotary", "guidance", "mask", "sigma", "freqs", "shapes", "lens")


def moved(value: Any, device: torch.device, types: tuple[torch.dtype, torch.dtype] | None, name: str = "") -> Any:
    """A value with its tensors on a device, and those of the first type in the second; the same object if nothing
    changes."""
    if isinstance(value, Tensor):
        found = value if value.device == device else value.to(device)
        is_cast = types is not None and found.dtype is types[0] and not any(word in name for word in _EXACT)
        return found.to(types[1]) if is_cast and types is not None else found
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        made = {key: moved(one, device, types, f"{name}.{key}") for key, one in items.items()}
        if all(made[key] is one for key, one in items.items()):
            return items
        return _rebuilt(items, made)
    if isinstance(value, (list, tuple)):
        sequence = cast("Sequence[Any]", value)
        parts = [moved(one, device, types, name) for one in sequence]
        if all(one is other for one, other in zip(parts, sequence, strict=True)):
            return sequence
        make = cast(Any, type(sequence))
        return make(*parts) if hasattr(sequence, "_fields") else make(parts)
    return value


def _rebuilt(items: Mapping[Any, Any], made: dict[Any, Any]) -> Any:
    """A mapping of the same class with other values: outputs of diffusers and transformers are dataclasses, too."""
    if is_dataclass(items):
        names = {field.name for field in fields(items)}
        return type(items)(**{key: one for key, one in made.items() if key in names})
    return type(items)(made)  # pyright: ignore[reportCallIssue]


def sizes_of(value: Any) -> Any:
    """The part of an input that decides how much a forward holds."""
    if isinstance(value, Tensor):
        return tuple(value.shape), value.dtype
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        return tuple((str(key), sizes_of(one)) for key, one in items.items())
    if isinstance(value, (list, tuple)):
        return tuple(sizes_of(one) for one in cast("Sequence[Any]", value))
    return value if isinstance(value, (int, bool, str)) else None


def first_tensor(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The first of a forward's inputs that is a tensor."""
    return next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)


def device_of_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.device | None:
    """The device that a forward's inputs lie on, and its caller waits for the output on; None if it has none."""
    first = first_tensor(args, kwargs)
    return None if first is None else first.device


def check_output(output: Any) -> None:
    """Looks at all that a network gave.

    Raises:
        NonFiniteValues: a tensor holds values that are not finite.
    """
    if isinstance(output, Tensor):
        check_finite(output)
    elif isinstance(output, Mapping):
        for one in cast("Mapping[Any, Any]", output).values():
            check_output(one)
    elif isinstance(output, (list, tuple)):
        for one in cast("Sequence[Any]", output):
            check_output(one)
