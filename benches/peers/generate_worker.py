"""Makes one picture with diffusers' FluxPipeline, as a process of its own: the contestant of `generate.py`.

    python generate_worker.py FOLDER PROMPT OUT STEPS SIDE THREADS CFG
"""

import sys

import torch
from diffusers import FluxPipeline


def main():
    folder, prompt, out, steps, side, threads, cfg = sys.argv[1:]
    torch.set_num_threads(int(threads))
    pipeline = FluxPipeline.from_pretrained(folder, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    size = dict(height=int(side), width=int(side))
    # Guided against the empty prompt. 24 tokens, as the model was trained with.
    guided = dict(true_cfg_scale=float(cfg), negative_prompt="")
    given = dict(num_inference_steps=int(steps), generator=generator, max_sequence_length=24)
    picture = pipeline(prompt, **given, **guided, **size).images[0]
    picture.save(out)


main()
