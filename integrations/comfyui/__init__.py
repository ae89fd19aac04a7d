"""Tilewright in ComfyUI: policies decide how VAEs, samplers and loaders do their work, here or on the engine.

Nothing heavy is imported at ComfyUI's start: a node imports what it needs when it runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging

from comfy_api.v0_0_2 import ComfyExtension, io

log = logging.getLogger("tilewright")

#: Served to the browser: each node's help, `docs/<id>.md`.
WEB_DIRECTORY = "./web"

#: The modules that have nodes, in the order of ComfyUI's menu; each has a list `NODES`.
MODULES = ("loading", "vae", "sampling", "engine", "decision", "monitor", "benchmark", "memory")


class TilewrightExtension(ComfyExtension):
    """The nodes of this pack."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """The nodes; none where the package `tilewright` is missing. A module that can't be imported leaves others."""
        if importlib.util.find_spec("tilewright") is None:
            log.warning("Tilewright's nodes are left out: the package is missing: run `pip install tilewright`")
            return []
        found: list[type[io.ComfyNode]] = []
        for name in MODULES:
            try:
                found.extend(importlib.import_module(f".{name}", __name__).NODES)
            except Exception as error:
                log.warning("Tilewright's nodes of %s are left out: %s: %s", name, type(error).__name__, error)
        return found


async def comfy_entrypoint() -> TilewrightExtension:
    """ComfyUI's way in."""
    return TilewrightExtension()
