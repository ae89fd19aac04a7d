"""One decode of diffusers' AutoencoderKLWan as a process: reads weights, decodes once, says what it took. Started by video.py.

    python video_worker.py '{"contestant": …, "vae": …, "latent": …, "threads": …, "precision": …, "output": …}'

Prints one JSON object: elapsed_s of the decode alone, load_s, and what was resident before it.
"""

import json
import os
import sys
import time

import torch
from diffusers.utils import logging
from safetensors.torch import save_file

from memory import status_bytes
from network import Unfit
from video_network import read_latent, read_network

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def eager(vae):
    """As shipped: latent frame by latent frame, the whole picture at once."""


def channels_last(vae):
    for parameter in vae.parameters():
        if parameter.ndim == 5:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last_3d)
        elif parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def tiled(vae):
    """diffusers' own tiling at its own sizes: tiles of 256 pixels, 192 apart."""
    vae.enable_tiling()


CONTESTANTS = {"eager": eager, "channels-last": channels_last, "tiled": tiled}


def main(options):
    logging.set_verbosity_error()
    torch.set_num_threads(options["threads"])
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("highest")
    start = time.perf_counter()
    vae = read_network(options["vae"]).to(DTYPES[options["precision"]])
    CONTESTANTS[options["contestant"]](vae)
    latent = read_latent(options["latent"]).to(vae.dtype)
    loaded = time.perf_counter()
    before = status_bytes("VmRSS")
    sample = vae.decode(latent, return_dict=False)[0]
    elapsed = time.perf_counter() - loaded
    peak = status_bytes("VmHWM")
    if options["output"]:
        save_file({"sample": sample.float().contiguous()}, options["output"])
    return {"elapsed_s": elapsed, "load_s": loaded - start, "before_bytes": before, "total_bytes": peak}


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        found = main(json.loads(sys.argv[1]))
    except Unfit as error:
        sys.exit(str(error))
    print(json.dumps(found), file=answers)
