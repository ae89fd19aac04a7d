"""Models that ComfyUI loads from files, as a policy decides; each once, as long as it is in use."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

import comfy.sd
import comfy.utils
import folder_paths
import torch

from . import loader_gguf
from .loader_policy import NetworkLoad, decide_network, decide_text
from .settings import Choice

log = logging.getLogger("tilewright")

#: Weights' types by the words of the option `weight-dtype`.
WEIGHT_DTYPES = {"f8-e4m3": torch.float8_e4m3fn, "f8-e5m2": torch.float8_e5m2}

#: Keeps the loaded object alive as long as a handle on it is.
_KEPT_BY = "tilewright_loaded"

#: Each model that was loaded, by its file and the way of loading. Nothing is kept that nobody uses.
_loaded: dict[tuple[Any, ...], tuple[weakref.ref[Any] | None, ...]] = {}


def load_checkpoint(name: str, choice: Choice, *, is_forced: bool) -> tuple[Any, Any, Any, str]:
    """A checkpoint's model, text encoder and VAE, and the record as JSON.

    Args:
        name: the file's name in ComfyUI's folders.
        choice: the policy and its bounds.
        is_forced: the file is read again though it is loaded.
    """
    path = folder_paths.get_full_path_or_raise("checkpoints", name)

    def read(options: dict[str, Any]) -> tuple[Any, ...]:
        return comfy.sd.load_checkpoint_guess_config(
            path,
            output_vae=True,
            output_clip=True,
            embedding_directory=folder_paths.get_folder_paths("embeddings"),
            model_options=options,
        )[:3]

    (model, clip, vae), decided = _by_policy(path, read, choice, is_forced)
    if clip is not None and decide_text(clip, choice) == "host":
        clip = _on_host(clip)
    return model, clip, vae, decided.finish("TilewrightCheckpoint")


def load_diffusion_model(name: str, choice: Choice, *, is_forced: bool) -> tuple[Any, str]:
    """A diffusion model, and the record as JSON; the arguments are those of `load_checkpoint`.

    Raises:
        TilewrightError: it is a GGUF file, and the pack that reads it is not installed.
    """
    if name.lower().endswith(".gguf"):
        path = loader_gguf.gguf_path(name) or name

        def read_gguf(_: dict[str, Any]) -> tuple[Any, ...]:
            return (loader_gguf.load(name),)

        (model,), decided = _by_policy(path, read_gguf, choice, is_forced)
        return model, decided.finish("TilewrightDiffusionModel")
    path = folder_paths.get_full_path_or_raise("diffusion_models", name)

    def read(options: dict[str, Any]) -> tuple[Any, ...]:
        return (comfy.sd.load_diffusion_model(path, model_options=options),)

    (model,), decided = _by_policy(path, read, choice, is_forced)
    return model, decided.finish("TilewrightDiffusionModel")


def load_lora(
    model: Any, clip: Any, name: str, strength_model: float, strength_clip: float, choice: Choice
) -> tuple[Any, Any, str]:
    """A model and a text encoder with a LoRA, and the record as JSON.

    Args:
        model: ComfyUI's patcher of the model.
        clip: ComfyUI's text encoder, or None.
        name: the file's name in ComfyUI's folders.
        strength_model: the LoRA's strength in the model.
        strength_clip: its strength in the text encoder.
        choice: the policy and its bounds.
    """
    if clip is None:
        strength_clip = 0.0
    if strength_model == 0 and strength_clip == 0:
        return model, clip, "{}"
    path = folder_paths.get_full_path_or_raise("loras", name)
    lora, metadata = comfy.utils.load_torch_file(path, safe_load=True, return_metadata=True)
    decided = decide_network(model, choice)
    if decided.option("lora") == "beside":
        changed = comfy.sd.load_bypass_lora_for_models(model, clip, lora, strength_model, strength_clip)
    else:
        changed = comfy.sd.load_lora_for_models(
            model, clip, lora, strength_model, strength_clip, lora_metadata=metadata
        )
    return changed[0], changed[1], decided.finish("TilewrightLora")


def forget() -> None:
    """Lets go of what was loaded: the next time, files are read again."""
    _loaded.clear()


def _by_policy(
    path: str, read: Callable[[dict[str, Any]], tuple[Any, ...]], choice: Choice, is_forced: bool
) -> tuple[tuple[Any, ...], NetworkLoad]:
    """The parts that a file has in it, the model first, loaded as a policy decides."""
    parts = _read_once(path, "", lambda: read({}), is_forced)
    if parts[0] is None:
        return parts, NetworkLoad.nothing()
    decided = decide_network(parts[0], choice)
    words = decided.option("weight-dtype")
    dtype = WEIGHT_DTYPES.get(str(words))
    if dtype is not None:
        del parts
        parts = _read_once(path, str(words), lambda: read({"dtype": dtype}), is_forced)
    if decided.compute is not None:
        model = parts[0].clone()
        model.set_model_compute_dtype(decided.compute)
        # The handle that was loaded lives as long as this one.
        model.set_attachments(_KEPT_BY, parts[0])
        parts = (model, *parts[1:])
    return parts, decided


def _read_once(
    path: str, way: str, read: Callable[[], tuple[Any, ...]], is_forced: bool
) -> tuple[Any, ...]:
    try:
        stat = os.stat(path)
        key = (path, stat.st_size, stat.st_mtime_ns, way)
    except OSError:
        return read()
    known = _loaded.get(key)
    if known is not None and not is_forced:
        parts = tuple(None if one is None else one() for one in known)
        if all((one is None) == (part is None) for one, part in zip(known, parts, strict=True)):
            log.info("loaded already: the file has not changed")
            return parts
    parts = read()
    for other in [one for one, refs in _loaded.items() if all(ref is None or ref() is None for ref in refs)]:
        del _loaded[other]
    _loaded[key] = tuple(None if part is None else weakref.ref(part) for part in parts)
    return parts


def _on_host(clip: Any) -> Any:
    """The same text encoder, run by the host's processor."""
    cpu = torch.device("cpu")
    moved = clip.clone()
    moved.patcher.load_device = cpu
    moved.patcher.offload_device = cpu
    return moved
