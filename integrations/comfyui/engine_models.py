"""Models that the engine can be given, out of ComfyUI's own folders, and the names that it knows them by."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: A choice of no file.
NONE = "(none)"
IN_MODEL = "(in the model)"

#: The words before the names of files in further folders.
FURTHER = ("checkpoints", "diffusers")

#: Quantized models, which ComfyUI's own lists leave out.
GGUF = ".gguf"


@dataclass(frozen=True, slots=True)
class Lora:
    """A LoRA by its name as the engine has it, its path below ComfyUI's folder without the ending."""

    name: str
    strength: float


@dataclass(frozen=True, slots=True)
class Parts:
    """The files of a model.

    Attributes:
        model: a file or folder that all parts are found in which are not named.
        transformers: transformers' files; of two experts the one for high noise first.
        text_encoders: text encoders' files.
        vae: the VAE's file or folder.
        remote: the model's name on a server; empty for the name of its first file without the ending.
    """

    model: str | None = None
    transformers: tuple[str, ...] = ()
    text_encoders: tuple[str, ...] = ()
    vae: str | None = None
    remote: str = ""

    def table(self) -> dict[str, Any]:
        """The model's table in the engine's configuration."""
        found: dict[str, Any] = {
            "model": self.model,
            "transformer": list(self.transformers),
            "text-encoder": list(self.text_encoders),
            "vae": self.vae,
        }
        if self.model or self.transformers:
            found["loras"] = lora_folders()
        return {key: value for key, value in found.items() if value}

    def files(self) -> list[str]:
        """All that is named."""
        return [path for path in (self.model, *self.transformers, *self.text_encoders, self.vae) if path]

    def name(self) -> str:
        """The name in the engine of this process: it tells no file's."""
        return f"comfyui-{hashlib.sha256(repr(self.table()).encode()).hexdigest()[:16]}"

    def version(self) -> tuple[tuple[int, int], ...]:
        """The sizes and times of the files: others in their place are another model."""
        found = [os.stat(path) for path in self.files()]
        return tuple((status.st_size, status.st_mtime_ns) for status in found)

    def remote_name(self) -> str:
        """The name on a server."""
        return self.remote.strip() or Path(self.files()[0]).name.removesuffix(GGUF).removesuffix(".safetensors")


def names_in(kind: str) -> list[str]:
    """The models in a folder of ComfyUI's, GGUF files and diffusers' folders included, as its menus name them."""
    import folder_paths

    if kind == "diffusers":
        return sorted(_pipelines())
    found = set(folder_paths.get_filename_list(kind)) if kind in folder_paths.folder_names_and_paths else set[str]()
    if kind in ("diffusion_models", "text_encoders"):
        for folder in folder_paths.get_folder_paths(kind):
            if os.path.isdir(folder):
                names, _ = folder_paths.recursive_search(folder, excluded_dir_names=[".git"])
                found.update(name for name in names if name.lower().endswith(GGUF))
    return sorted(found)


def choices(kind: str, *further: str, none: str | None = None) -> list[str]:
    """The options of a menu: the files of a folder, then those of further folders with their folder before them."""
    found = [] if none is None else [none]
    found += names_in(kind)
    for other in further:
        found += [f"{other}: {name}" for name in names_in(other)]
    return found


def path_of(kind: str, choice: str) -> str | None:
    """The file or folder of an option; None of one that names nothing.

    Raises:
        TilewrightError: it is not there any more.
    """
    import folder_paths

    from tilewright.errors import TilewrightError

    if choice in ("", NONE, IN_MODEL):
        return None
    before, colon, name = choice.partition(": ")
    if colon and before in FURTHER:
        kind = before
    else:
        name = choice
    if kind == "diffusers":
        found = _pipelines().get(name)
    else:
        found = folder_paths.get_full_path(kind, name)
    if found is None:
        raise TilewrightError(f"{name}: it is not in ComfyUI's folder {kind} any more: choose another, or refresh the "
        f"page")
    return found


def vae_parts(choice: str, remote: str) -> Parts:
    """The parts of a model that decodes and encodes alone."""
    path = path_of("vae", choice)
    within = None if path is None else os.path.join(path, "vae")
    return Parts(vae=within if within is not None and os.path.isdir(within) else path, remote=remote)


def model_parts(
    choice: str, low_noise: str = NONE, encoders: Iterable[str] = (), vae: str = NONE, remote: str = ""
) -> Parts:
    """The parts of a model that samples: a pipeline's folder or a checkpoint gives those that are not named.

    Raises:
        TilewrightError: a low-noise model is named beside a whole model.
    """
    from tilewright.errors import TilewrightError

    path = path_of("diffusion_models", choice)
    second = path_of("diffusion_models", low_noise)
    named = [found for found in (path_of("text_encoders", encoder) for encoder in encoders) if found is not None]
    is_whole = choice.partition(": ")[0] in FURTHER
    if is_whole and second is not None:
        raise TilewrightError(
            f"low noise model: {low_noise} would take the place of the transformer of {choice}: leave it out, or choose "
            "the two transformers as files and name the other parts"
        )
    transformers = [found for found in (None if is_whole else path, second) if found is not None]
    vae_path = vae_parts(vae, "").vae
    return Parts(path if is_whole else None, tuple(transformers), tuple(named), vae_path, remote)


def loras_of(chosen: Sequence[tuple[str, float]]) -> tuple[Lora, ...]:
    """The LoRAs of a node's menus; those of no strength are left out."""
    return tuple(
        Lora(os.path.splitext(name)[0].replace(os.sep, "/"), strength)
        for name, strength in chosen
        if name not in ("", NONE) and strength != 0.0
    )


def lora_folders() -> list[str]:
    """ComfyUI's folders of LoRAs."""
    import folder_paths

    return [folder for folder in folder_paths.get_folder_paths("loras") if os.path.isdir(folder)]


def _pipelines() -> dict[str, str]:
    """The folders that diffusers has saved, by their paths below ComfyUI's folder."""
    import folder_paths

    found: dict[str, str] = {}
    for base in folder_paths.get_folder_paths("diffusers"):
        for folder, below, names in os.walk(base, followlinks=True):
            if "model_index.json" in names:
                found.setdefault(os.path.relpath(folder, base), folder)
                below.clear()
    return found
