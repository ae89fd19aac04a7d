"""GGUF files, which the pack ComfyUI-GGUF reads."""

from __future__ import annotations

import os
import sys
from typing import Any

import folder_paths

#: The folder's name that the pack registers, and its node.
FOLDER, NODE = "unet_gguf", "UnetLoaderGGUF"


def gguf_files() -> list[str]:
    """GGUF files in the folders of diffusion models, by their names."""
    if FOLDER in folder_paths.folder_names_and_paths:
        return list(folder_paths.get_filename_list(FOLDER))
    found: set[str] = set()
    for folder in folder_paths.get_folder_paths("diffusion_models"):
        for place, _, names in os.walk(folder, followlinks=True):
            files = (os.path.join(place, name) for name in names if name.lower().endswith(".gguf"))
            found.update(os.path.relpath(file, folder) for file in files)
    return sorted(found)


def gguf_path(name: str) -> str | None:
    """The path of a GGUF file; None if there is none of that name."""
    folder = FOLDER if FOLDER in folder_paths.folder_names_and_paths else "diffusion_models"
    for place in folder_paths.get_folder_paths(folder):
        path = os.path.join(place, name)
        if os.path.isfile(path):
            return path
    return None


def load(name: str) -> Any:
    """A diffusion model from a GGUF file.

    Raises:
        TilewrightError: the pack ComfyUI-GGUF is not installed.
    """
    from tilewright.errors import TilewrightError

    # ComfyUI's own module of nodes.
    loader: Any = getattr(sys.modules.get("nodes"), "NODE_CLASS_MAPPINGS", {}).get(NODE)
    if loader is None:
        raise TilewrightError(
            f"{name}: a GGUF file is read by the pack ComfyUI-GGUF: install it, and start ComfyUI again"
        )
    return loader().load_unet(name)[0]
