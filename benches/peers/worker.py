"""One contestant as a process: reads weights once, then decodes on command. Started by turns.py, not by hand.

    python worker.py '{"contestant": …, "vae": …, "latent": …, "threads": …, "device": …, "precision": …, …}'

One command a line on standard input, one JSON object a line on standard output: `decode` answers with elapsed_s of the decode alone,
`output PATH` also keeps the sample and measures memory.
"""

import json
import os
import sys
import time

import torch
from diffusers.utils import logging
from safetensors.torch import save_file

from contestants import CONTESTANTS
from memory import Peak
from network import Unfit, read_latent, read_network

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Worker:
    def __init__(self, options):
        self.device = options["device"]
        torch.set_num_threads(options["threads"])
        torch.set_grad_enabled(False)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        dtype = DTYPES[options["precision"]]
        vae = read_network(options["vae"]).to(self.device, dtype)
        options["scale"] = 2 ** (len(vae.config.block_out_channels) - 1)
        self.latent = read_latent(options["latent"]).to(self.device, dtype)
        self.run = CONTESTANTS[options["contestant"]](vae, options)

    def synchronize(self):
        if self.device != "cpu":
            torch.cuda.synchronize()

    def timed(self):
        self.synchronize()
        start = time.perf_counter()
        sample = self.run(self.latent)
        self.synchronize()
        return sample, time.perf_counter() - start

    def decode(self):
        # The sample is dropped after the clock has stopped: who decodes wants it.
        return {"elapsed_s": self.timed()[1]}

    def output(self, path):
        with Peak(self.device) as memory:
            sample, elapsed = self.timed()
        save_file({"sample": sample.float().cpu().contiguous()}, path)
        return {"elapsed_s": elapsed, "decode_bytes": memory.peak - memory.before, "total_bytes": memory.peak}


def one_line(error):
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return text if isinstance(error, Unfit) else f"{type(error).__name__}: {text}"


def serve(kind, options):
    """Makes a worker and answers its commands, which are its methods' names, until standard input ends."""
    # Answers go out on a descriptor of their own: libraries and compilers print what they like on standard output.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    logging.set_verbosity_error()

    def answer(work, *arguments):
        try:
            result = work(*arguments)
        except Exception as error:  # Any failure of a contestant is a row of the table.
            result = {"error": one_line(error)}
        print(json.dumps(result if isinstance(result, dict) else {}), file=answers)
        return result

    worker = answer(kind, options)
    if not isinstance(worker, kind):
        return
    for line in sys.stdin:
        command, *arguments = line.strip().split(" ", 1)
        answer(getattr(worker, command), *arguments)


if __name__ == "__main__":
    serve(Worker, json.loads(sys.argv[1]))
