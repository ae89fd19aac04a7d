"""Makes one picture with diffusers' FluxPipeline, as a process of its own: the contestant of `generate.py`.

    python generate_worker.py FOLDER PROMPT OUT STEPS SIDE THREADS
"""

import sys

import torch
from diffusers import FluxPipeline


def main():
    folder, prompt, out, steps, side, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    pipeline = FluxPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    size = dict(height=int(side), width=int(side))
    # 24 tokens, as the model was trained with.
    picture = pipeline(prompt, num_inference_steps=int(steps), generator=generator, max_sequence_length=24, **size).images[0]
    picture.save(out)


main()
