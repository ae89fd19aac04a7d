"""Batches over many machines, by Ray: `pip install tilewright[engine,ray]`.

`decode`, `encode`, `generate` and `sample` take a folder, a table or a dataset of Ray's, and write a file for each of its
items, with a record of what was decided. Each worker keeps an engine with its model loaded. A run that was cut off is
started again with the same words: what is there and whole is not made again.

From the command line: `python -m tilewright.ray decode 'latents/*.latent' --vae ae.safetensors -o out/`.
"""

from __future__ import annotations

from .batch import How, Summary, decode, encode, generate, sample

__all__ = ["How", "Summary", "decode", "encode", "generate", "sample"]
