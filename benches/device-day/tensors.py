"""Tensors of f32 in .safetensors files, in plain Python: the runner imports no library that may be missing or late."""

import array
import json
import math
import random
import struct


def normal(shape, generator):
    return shape, array.array("f", (generator.gauss() for _ in range(math.prod(shape))))


def write(tensors, path):
    """Tensors are a shape and values each."""
    header, at = {}, 0
    for name, (shape, values) in tensors.items():
        end = at + len(values) * values.itemsize
        header[name], at = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}, end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(values.tobytes() for _, values in tensors.values()))


def read(path):
    """→ values by name."""
    file = path.read_bytes()
    body = 8 + struct.unpack_from("<Q", file)[0]
    header = json.loads(file[8:body])
    header.pop("__metadata__", None)
    return {name: values(file[body:], entry) for name, entry in header.items()}


def values(data, entry):
    begin, end = entry["data_offsets"]
    if entry["dtype"] != "F32" or end > len(data):
        raise ValueError(f"not a whole tensor of F32: {entry}")
    return array.array("f", data[begin:end])


def inputs(pixels, seed):
    """Flux's inputs for a square picture."""
    generator, side = random.Random(seed), pixels // 8
    shapes = {"prompt_embeds": (1, 512, 4096), "pooled_prompt_embeds": (1, 768), "noise": (1, 16, side, side)}
    return {name: normal(shape, generator) for name, shape in shapes.items()}


def error(found, reference):
    """The norm of the difference over that of the reference."""
    return math.dist(found, reference) / math.hypot(*reference)
