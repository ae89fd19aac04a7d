"""The nodes that have the engine do the work: a child process of ComfyUI's, or a server that the user has named."""

from __future__ import annotations

from comfy_api.v0_0_2 import io

from .engine_codec import DecodeOnTilewright, EncodeOnTilewright
from .engine_sampling import GenerateOnTilewright, SampleOnTilewright

NODES: list[type[io.ComfyNode]] = [GenerateOnTilewright, SampleOnTilewright, DecodeOnTilewright, EncodeOnTilewright]
