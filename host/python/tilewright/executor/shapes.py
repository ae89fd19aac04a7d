"""Prices of a module: `tilewright.Model` of the shapes of its weights, of which none is copied."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ModelError
from ..model import Model

if TYPE_CHECKING:
    import torch

    from .autoencoders import Autoencoder

#: Bits of a value, by the names that safetensors has for types.
_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8,
}  # fmt: skip

#: The names of PyTorch's types in safetensors.
_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip

#: The file of weights in a folder as diffusers writes it.
_FILES = {
    "vae": "diffusion_pytorch_model.safetensors",
    "transformer": "diffusion_pytorch_model.safetensors",
    "text-encoder": "model.safetensors",
}

#: The beginning of the names of folders that hold such a file.
_PREFIX = "tilewright-shapes-"

#: Models of modules, with the shapes that they are of.
_known: weakref.WeakKeyDictionary[torch.nn.Module, tuple[Any, Model]] = weakref.WeakKeyDictionary()
_finding = threading.Lock()


def dtype_name(dtype: torch.dtype) -> str:
    """The name that safetensors has for a type; bytes stand for one that it has no name for."""
    return _NAMES.get(str(dtype).removeprefix("torch."), "U8")


def model_of(
    shapes: Mapping[str, tuple[str, tuple[int, ...]]],
    *,
    part: Literal["vae", "transformer", "text-encoder"],
    family: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Model:
    """The model of these weights. It is read from a file that has their names, types and shapes and no values, which
    lies in a private folder meanwhile.

    Args:
        shapes: for each weight its type as safetensors names it, as `BF16`, and its shape.
        part: the part of a model that it is.
        family: the family of a VAE, where shapes can't tell.
        config: the module's `config.json`, as diffusers writes it beside the weights.

    Raises:
        ModelError: it is no model that there are prices for, or there is no room for the file.
    """
    header, size = _header(shapes)
    folder: str | None = None
    try:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        path = Path(folder, _FILES[part])
        _write(path, header, size)
        if config is not None:
            Path(folder, "config.json").write_text(json.dumps(config, default=str), encoding="utf-8")
        return Model(folder if config is not None else path, part=part, family=family)
    except OSError as error:
        raise ModelError(
            f"the shapes of a module can't be written to a temporary file ({error.strerror or error}): "
            "make room, or name another folder by TMPDIR"
        ) from error
    except ModelError as error:
        raise ModelError(without_file(str(error))) from None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def without_file(said: str) -> str:
    """A line without the path that it begins with, if that is of a module's shapes: the file is gone, and nobody knows
    it."""
    before, found, after = said.partition(_PREFIX)
    if not found:
        return said
    _, colon, rest = after.partition(": ")
    is_at_front = ": " not in before
    return rest if colon and is_at_front else f"{before}the module{colon}{rest}"


def model_of_autoencoder(autoencoder: Autoencoder) -> Model:
    """The model of an autoencoder's weights; made again only if these have changed.

    Raises:
        ModelError: there are no prices for it.
    """
    shapes = autoencoder.shapes()
    family = None if autoencoder.is_video else autoencoder.family
    config = _config(autoencoder)
    key = (family, tuple(shapes.items()), None if config is None else json.dumps(config, default=str, sort_keys=True))
    with _finding:
        known = _known.get(autoencoder.module)
        if known is not None and known[0] == key:
            return known[1]
    model = model_of(shapes, part="vae", family=family, config=config)
    with _finding:
        _known[autoencoder.module] = key, model
    return model


def _config(autoencoder: Autoencoder) -> dict[str, Any] | None:
    """The configuration of a module of diffusers, which says what shapes don't, as the groups of norms."""
    if autoencoder.dialect != "diffusers":
        return None
    config: Any = getattr(autoencoder.module, "config", None)
    return {"_class_name": type(autoencoder.module).__name__, **config} if isinstance(config, Mapping) else None


def _header(shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, int]:
    """The header of a file of these weights, and the bytes of their values."""
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in shapes.items():
        bits = _BITS.get(dtype)
        if bits is None:
            raise ModelError(f"{name}: a type {dtype} is none of safetensors': expected one of {', '.join(_BITS)}")
        count = bits // 8
        for extent in shape:
            count *= extent
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + count]}
        end += count
    text = json.dumps(header).encode()
    # Values begin at a multiple of eight bytes.
    return text + b" " * (-len(text) % 8), end


def _write(path: Path, header: bytes, size: int) -> None:
    """Writes a header, and a hole in place of values. The last byte alone is there: a file that ends in zeros counts as
    a download that broke off."""
    with open(path, "xb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        if size > 0:
            file.seek(size - 1, os.SEEK_CUR)
            file.write(b"\x01")
