"""Writes the transformers of Flux.1 and WAN 2.1 at their published sizes, with generated weights under BFL's and WAN's own names.

    python transformer_files.py flux-dev|flux-schnell|wan-1.3b|wan-14b|flux-dev-block|wan-1.3b-block|wan-14b-block q8_0|q4_k|bf16|f16|f32|fp8 OUT
    python transformer_files.py conditioning flux|wan OUT

q8_0 and q4_k are GGUF files with types as ComfyUI-GGUF's tools choose them: tensors of one dimension or at most 1024 elements, and WAN's
modulation, head and patch_embedding, in F32; the layers around the blocks in F16; the rest quantised. The other precisions are
.safetensors files in that type throughout, but in fp8 (e4m3, without scales) only matrices are, the rest is bf16. Reading one back
needs nothing from here.

Nothing is trained: speed and memory can be measured with these files, and contestants compared, but they make no pictures. The same seed
gives the same bytes. One pool of normal values is made (for GGUF, also quantised) and each tensor is a window into it, scaled, so that
writing is as fast as the disk and takes some 0.9 GB of memory whatever the file's size.
"""

import argparse
import json
import math
import os
import shutil
import struct
import sys
import time
import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy
import torch
from safetensors.torch import save_file

# Values are handled in blocks of 256, Q4_K's, whatever the type. The number of blocks in the pool is a prime, so that rows of a matrix
# larger than the pool don't repeat, and above that of the largest matrices but those of wan-14b's ffn.
BLOCK = 256
POOL_BLOCKS = 262139
PIECE_BLOCKS = 1 << 15

FLUX = {"width": 3072, "head": 128, "mlp": 4 * 3072, "double": 19, "single": 38, "text": 4096, "pooled": 768, "channels": 64, "time": 256}
WAN = {"text": 4096, "time": 256, "channels": 16, "patch": (1, 2, 2)}
MODELS = {
    "flux-dev": FLUX | {"guidance": True},
    "flux-schnell": FLUX | {"guidance": False},
    "wan-1.3b": WAN | {"width": 1536, "ffn": 8960, "layers": 30},
    "wan-14b": WAN | {"width": 5120, "ffn": 13824, "layers": 40},
    # One block of each kind at its published width: what agreement and the errors of types are measured on.
    "flux-dev-block": FLUX | {"double": 1, "single": 1, "guidance": True},
    # What ../device-day measures: few of the blocks at full width, and a trial's.
    "flux-dev-part": FLUX | {"double": 3, "single": 6, "guidance": True},
    "flux-dev-narrow": FLUX | {"width": 256, "mlp": 1024, "double": 1, "single": 2, "guidance": True},
    "wan-1.3b-block": WAN | {"width": 1536, "ffn": 8960, "layers": 1},
    "wan-14b-block": WAN | {"width": 5120, "ffn": 13824, "layers": 1},
}
CONDITIONING = {
    "flux": {"prompt_embeds": (1, 256, 4096), "pooled_prompt_embeds": (1, 768)},
    "wan": {"prompt_embeds": (1, 512, 4096)},
}

# Layers that ComfyUI-GGUF's tools don't quantise, by the beginning of their names.
PLAIN = {
    "flux": ("img_in.", "time_in.", "vector_in.", "guidance_in.", "txt_in.", "final_layer."),
    "wan": ("text_embedding.", "time_embedding.", "time_projection."),
}


@dataclass
class Stored:
    gguf: int | None  # ggml's number of the type
    safetensors: str | None
    torch: torch.dtype | None
    block: int  # elements
    bytes: int  # of a block


TYPES = {
    "f32": Stored(0, "F32", torch.float32, 1, 4),
    "f16": Stored(1, "F16", torch.float16, 1, 2),
    "bf16": Stored(30, "BF16", torch.bfloat16, 1, 2),
    "fp8": Stored(None, "F8_E4M3", torch.float8_e4m3fn, 1, 1),
    "q8_0": Stored(8, None, None, 32, 34),
    "q4_k": Stored(12, None, None, 256, 144),
}
# general.file_type of llama.cpp.
FILE_TYPES = {"q8_0": 7, "q4_k": 14}
Q8_0 = numpy.dtype([("d", "<f2"), ("q", "i1", 32)])
Q4_K = numpy.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)])


def linear(name, inputs, outputs):
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def flux_shapes(width, head, mlp, double, single, text, pooled, channels, time, guidance):
    shapes = linear("img_in", channels, width) | linear("txt_in", text, width)
    for name, inputs in [("time_in", time), ("vector_in", pooled)] + [("guidance_in", time)] * guidance:
        shapes |= linear(f"{name}.in_layer", inputs, width) | linear(f"{name}.out_layer", width, width)
    for number in range(double):
        for side in ("img", "txt"):
            block = f"double_blocks.{number}.{side}"
            shapes |= linear(f"{block}_mod.lin", width, 6 * width) | linear(f"{block}_attn.qkv", width, 3 * width)
            shapes |= {f"{block}_attn.norm.{which}_norm.scale": (head,) for which in ("query", "key")}
            shapes |= linear(f"{block}_attn.proj", width, width)
            shapes |= linear(f"{block}_mlp.0", width, mlp) | linear(f"{block}_mlp.2", mlp, width)
    for number in range(single):
        block = f"single_blocks.{number}"
        shapes |= linear(f"{block}.modulation.lin", width, 3 * width) | linear(f"{block}.linear1", width, 3 * width + mlp)
        shapes |= {f"{block}.norm.{which}_norm.scale": (head,) for which in ("query", "key")}
        shapes |= linear(f"{block}.linear2", width + mlp, width)
    return shapes | linear("final_layer.adaLN_modulation.1", width, 2 * width) | linear("final_layer.linear", width, channels)


def wan_shapes(width, ffn, layers, text, time, channels, patch):
    shapes = {"patch_embedding.weight": (width, channels, *patch), "patch_embedding.bias": (width,)}
    shapes |= linear("text_embedding.0", text, width) | linear("text_embedding.2", width, width)
    shapes |= linear("time_embedding.0", time, width) | linear("time_embedding.2", width, width)
    shapes |= linear("time_projection.1", width, 6 * width)
    for number in range(layers):
        block = f"blocks.{number}"
        shapes |= {f"{block}.modulation": (1, 6, width), f"{block}.norm3.weight": (width,), f"{block}.norm3.bias": (width,)}
        for attention in ("self_attn", "cross_attn"):
            for part in "qkvo":
                shapes |= linear(f"{block}.{attention}.{part}", width, width)
            shapes |= {f"{block}.{attention}.norm_{part}.weight": (width,) for part in "qk"}
        shapes |= linear(f"{block}.ffn.0", width, ffn) | linear(f"{block}.ffn.2", ffn, width)
    return shapes | {"head.modulation": (1, 2, width)} | linear("head.head", width, channels * math.prod(patch))


@dataclass
class Tensor:
    name: str
    shape: tuple
    stored: str

    @property
    def count(self):
        return math.prod(self.shape)

    @property
    def bytes(self):
        return self.count // TYPES[self.stored].block * TYPES[self.stored].bytes

    @property
    def is_scale(self):
        return self.name.endswith("_norm.scale") or "norm" in self.name and self.name.endswith(".weight")

    @property
    def gain(self):
        """What normal values are multiplied by. Small modulation and gates leave the network finite however deep it is."""
        if self.is_scale:
            return 0.25
        if self.name.endswith(".bias"):
            return 0.05
        if self.name.endswith("modulation"):
            return 0.2
        spread = 0.7 if any(part in self.name for part in ("_mod.lin", "modulation.lin", "adaLN_modulation", "time_projection")) else 1.0
        return spread / math.sqrt(math.prod(self.shape[1:]))

    def values(self, normal):
        """The tensor's values, or a piece's, from normal ones."""
        if self.is_scale:
            # tanh bounds it, so that no channel vanishes; for queries and keys it stands above 1, for attention with peaks.
            middle = 1.0 if "norm3" in self.name else 1.5
            return middle + self.gain * normal.tanh()
        values = normal * self.gain
        if self.name in ("time_in.in_layer.weight", "guidance_in.in_layer.weight", "time_embedding.0.weight"):
            # Phases reach 3500, where bf16 is out by up to 8: little weight on the fast ones, as trained networks have it.
            half = self.shape[1] // 2
            slow = 1 / (1 + 30 * torch.exp(-math.log(10000) * torch.arange(half) / half))
            values = (values.view(-1, self.shape[1]) * slow.repeat(2)).flatten()
        return values


def stored_type(family, precision, name, shape):
    if precision == "fp8":
        return "fp8" if len(shape) == 2 else "bf16"
    if precision not in FILE_TYPES:
        return precision
    if len(shape) != 2 or math.prod(shape) <= 1024 or name.startswith("head."):
        return "f32"
    return "f16" if name.startswith(PLAIN[family]) else precision


def tensors_of(model, precision):
    family = model.split("-")[0]
    shapes = {"flux": flux_shapes, "wan": wan_shapes}[family](**MODELS[model])
    return [Tensor(name, shape, stored_type(family, precision, name, shape)) for name, shape in shapes.items()]


def quantized_q8_0(values):
    blocks = numpy.empty(len(values) // 32, Q8_0)
    values = values.reshape(-1, 32)
    d = numpy.abs(values).max(axis=1) / 127
    blocks["d"] = d
    blocks["q"] = numpy.rint(values / d[:, None])
    return blocks


def quantized_q4_k(values):
    """From the minimum and maximum of each 32 values, without llama.cpp's search for better ones."""
    blocks = numpy.empty(len(values) // 256, Q4_K)
    values = values.reshape(-1, 8, 32)
    low = numpy.maximum(-values.min(axis=2), 0)
    step = (values.max(axis=2) + low) / 15
    d, dmin = step.max(axis=1) / 63, low.max(axis=1) / 63
    steps, lows = (numpy.rint(part / whole[:, None]).astype(numpy.uint8) for part, whole in ((step, d), (low, dmin)))
    blocks["d"], blocks["dmin"] = d, dmin
    # Six bits each: those of the first four whole; of the last four, four bits, and two at the top of the first ones' bytes.
    blocks["scales"][:, 0:4] = steps[:, :4] | steps[:, 4:] >> 4 << 6
    blocks["scales"][:, 4:8] = lows[:, :4] | lows[:, 4:] >> 4 << 6
    blocks["scales"][:, 8:12] = steps[:, 4:] & 15 | (lows[:, 4:] & 15) << 4
    q = (values + (dmin[:, None] * lows)[:, :, None]) / numpy.maximum(d[:, None] * steps, 1e-9)[:, :, None]
    q = numpy.clip(numpy.rint(q), 0, 15).astype(numpy.uint8).reshape(-1, 4, 2, 32)
    blocks["q"] = (q[:, :, 0] | q[:, :, 1] << 4).reshape(-1, 128)
    return blocks


class Pool:
    def __init__(self, seed):
        self.seed = seed
        self.normal = numpy.random.default_rng(seed).standard_normal(POOL_BLOCKS * BLOCK, dtype=numpy.float32)

    def quantized(self, quantize, dtype):
        per_block = BLOCK // (32 if dtype is Q8_0 else 256)
        whole = numpy.empty(POOL_BLOCKS * per_block, dtype)
        for begin in range(0, POOL_BLOCKS, PIECE_BLOCKS // 4):
            end = min(begin + PIECE_BLOCKS // 4, POOL_BLOCKS)
            whole[begin * per_block:end * per_block] = quantize(self.normal[begin * BLOCK:end * BLOCK])
        return whole

    @cached_property
    def q8_0(self):
        return self.quantized(quantized_q8_0, Q8_0)

    @cached_property
    def q4_k(self):
        return self.quantized(quantized_q4_k, Q4_K)

    @lru_cache
    def scaled(self, stored, field, gain):
        """The blocks' factors for weights of another size; there are few sizes."""
        return (getattr(self, stored)[field].astype(numpy.float32) * gain).astype(numpy.float16)

    def pieces(self, tensor):
        """The tensor's bytes, a few MB at a time."""
        at = int(numpy.random.default_rng([self.seed, zlib.crc32(tensor.name.encode())]).integers(POOL_BLOCKS))
        left = tensor.count
        while left:
            end = min(at + PIECE_BLOCKS, POOL_BLOCKS, at + -(-left // BLOCK))
            count = min(left, (end - at) * BLOCK)
            yield self.piece(tensor, at, count)
            left -= count
            at = end % POOL_BLOCKS

    def piece(self, tensor, at, count):
        stored = TYPES[tensor.stored]
        if stored.torch is not None:
            normal = torch.from_numpy(self.normal[at * BLOCK:at * BLOCK + count])
            return tensor.values(normal).to(stored.torch).view(torch.uint8).numpy()
        place = slice(at * BLOCK // stored.block, (at * BLOCK + count) // stored.block)
        blocks = getattr(self, tensor.stored)[place].copy()
        for field in ("d", "dmin")[:1 if tensor.stored == "q8_0" else 2]:
            blocks[field] = self.scaled(tensor.stored, field, tensor.gain)[place]
        return blocks.view(numpy.uint8)


def gguf_header(tensors, family, precision):
    """→ (the header, the bytes that tensors begin at multiples of)."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    keys = text("general.architecture") + struct.pack("<I", 8) + text(family)
    for key, value in [("general.quantization_version", 2), ("general.file_type", FILE_TYPES[precision])]:
        keys += text(key) + struct.pack("<II", 4, value)
    header, at = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 3) + keys, 0
    for tensor in tensors:
        header += text(tensor.name) + struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        header += struct.pack("<IQ", TYPES[tensor.stored].gguf, at)
        at += -(-tensor.bytes // 32) * 32
    return header + bytes(-len(header) % 32), 32


def safetensors_header(tensors):
    entries, at = {}, 0
    for tensor in tensors:
        end = at + tensor.bytes
        entries[tensor.name] = {"dtype": TYPES[tensor.stored].safetensors, "shape": tensor.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, 1


def write(model, precision, path, seed):
    tensors = tensors_of(model, precision)
    if precision in FILE_TYPES:
        header, alignment = gguf_header(tensors, model.split("-")[0], precision)
    else:
        header, alignment = safetensors_header(tensors)
    size = len(header) + sum(-(-tensor.bytes // alignment) * alignment for tensor in tensors)
    parameters = sum(tensor.count for tensor in tensors)
    print(f"{model} {precision}: {len(tensors)} tensors, {parameters:,} parameters, {size:,} bytes", flush=True)
    if size > shutil.disk_usage(path.parent).free:
        sys.exit(f"{path.parent} has no room for {size / 1e9:.1f} GB: give another folder")
    pool = Pool(seed)
    # A name of its own until it is whole.
    partial = path.with_name(f"{path.name}.part")
    with open(partial, "wb") as file:
        file.write(header)
        for tensor in tensors:
            for piece in pool.pieces(tensor):
                file.write(piece)
            file.write(bytes(-tensor.bytes % alignment))
        assert file.tell() == size
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def write_conditioning(family, path, seed):
    generator = numpy.random.default_rng([seed, zlib.crc32(f"conditioning {family}".encode())])
    normal = {name: generator.standard_normal(shape, dtype=numpy.float32) for name, shape in CONDITIONING[family].items()}
    save_file({name: torch.from_numpy(values) for name, values in normal.items()}, path)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("what", choices=[*MODELS, "conditioning"])
    add("how", help=f"{', '.join(TYPES)}; of conditioning: {', '.join(CONDITIONING)}")
    add("out", type=Path, metavar="OUT", help="a .gguf file for q8_0 and q4_k, otherwise a .safetensors file")
    add("--seed", type=int, default=1, metavar="N", help="default: 1")
    args = parser.parse_args()
    known = CONDITIONING if args.what == "conditioning" else TYPES
    if args.how not in known:
        parser.error(f"{args.how} is not one of {', '.join(known)}")
    suffix = ".gguf" if args.how in FILE_TYPES else ".safetensors"
    if args.out.suffix != suffix:
        parser.error(f"{args.out.name} does not end in {suffix}")
    return args


def main():
    args = arguments()
    start = time.perf_counter()
    if args.what == "conditioning":
        write_conditioning(args.how, args.out, args.seed)
    else:
        write(args.what, args.how, args.out, args.seed)
    size = args.out.stat().st_size
    print(f"{args.out}: {size:,} bytes in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
