"""Memory as ComfyUI manages it: the limit that policies see, and room made before work begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

#: The share of what can be had that a run may take where nobody sets a limit.
SHARE = 0.8

#: The limit of this process in bytes, where a node of this pack has set one.
_session_limit: int | None = None


def set_session_limit(limit: int | None) -> None:
    """Sets the limit that policies see in nodes which name none, in bytes; None takes it back."""
    global _session_limit
    _session_limit = limit


def session_limit() -> int | None:
    """The limit that `set_session_limit` has set."""
    return _session_limit


def named_limit(text: str) -> int | None:
    """The limit that a user has named, in bytes: a node's own, as `8 GiB`, else the process's; None without either.

    Raises:
        TilewrightError: the text is no size.
    """
    from tilewright._toml import SIZE, bytes_of
    from tilewright.errors import TilewrightError

    if not text.strip():
        return _session_limit
    try:
        return bytes_of(text.strip())
    except (TypeError, ValueError):
        raise TilewrightError(f"memory limit: expected {SIZE}, not {text.strip()!r}") from None


def available(device: torch.device, keep: Any = None) -> int:
    """Bytes that a run on the device can have: what is free, and what ComfyUI gives back by unloading models.

    Args:
        device: the device.
        keep: the patcher whose weights have to stay beside the run.
    """
    from comfy import model_management

    free = int(cast(int, model_management.get_free_memory(device)))
    if model_management.is_device_cpu(device):
        return free
    for loaded in model_management.loaded_models():
        if loaded.load_device == device:
            free += int(loaded.loaded_size())
    if keep is not None:
        free -= int(keep.model_size())
    return max(0, free)


def limit_of(text: str, device: torch.device, keep: Any = None) -> int:
    """The limit of a run without its weights, in bytes: what a user has named, else a share of what can be had.

    Raises:
        TilewrightError: the text is no size.
    """
    named = named_limit(text)
    return named if named is not None else int(SHARE * available(device, keep))


def make_room(patcher: Any, needed: int, *, whole: bool = False) -> None:
    """Loads a model's weights, and has ComfyUI unload others until `needed` bytes are free beside them.

    Args:
        patcher: ComfyUI's patcher of the model.
        needed: bytes that the run takes without weights.
        whole: all weights have to be loaded; otherwise ComfyUI may keep a part of them outside the device.
    """
    from comfy import model_management

    model_management.load_models_gpu([patcher], memory_required=needed, force_full_load=whole)
