"""The training that the bundled picture and video models share: lessons for text encoders, then flow matching.

Versions: torch 2.11.0, safetensors 0.8.0.

A model has `modules()` by name, `condition(prompts)` with the tensors that its transformer is given, `readable(prompts)` with
each text encoder's states [B, tokens, width], `velocity(latents, sigma, *conditions)`, and `arrange(latents)`, which lays latents
out as the transformer takes them.
"""

import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

from optimizer import optimizers


def rate(step, steps):
    """A short rise, a level, and a fall to zero over the last two fifths."""
    return min(1, (step + 1) / 50, max(0, (steps - step) / (0.4 * steps)))


def sigmas(count, shift, generator):
    """Levels of noise to train at. Flat colours show through almost any noise: what the text decides is decided near 1."""
    sigma = torch.sigmoid(1.2 * torch.randn(count, generator=generator))
    shifts = torch.where(torch.rand(count, generator=generator) < 0.5, shift, 8 * shift)
    return shifts * sigma / (1 + (shifts - 1) * sigma)


class Reader(torch.nn.Module):
    """Reads attributes off an encoder's states: one query of attention for each, and a linear layer."""

    def __init__(self, width, classes):
        super().__init__()
        self.queries = torch.nn.Parameter(torch.randn(len(classes), width) / width**0.5)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(width, count) for count in classes)

    def forward(self, states):
        seen = torch.softmax(self.queries @ states.mT, dim=-1) @ states
        return [head(seen[:, index]) for index, head in enumerate(self.heads)]


def teach(model, scenes, steps, seed, batch=192, peak=2e-3):
    """The text encoders learn to tell what a caption says, before the transformer is there to ask."""
    rng = random.Random(seed)
    readers = [Reader(states.shape[-1], scenes.CLASSES) for states in model.readable(["a"])]
    modules = [module for name, module in model.modules().items() if name != "transformer"] + readers
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=peak, betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(steps):
        drawn = [scenes.draw_scene(rng) for _ in range(batch)]
        wanted = torch.tensor([scenes.attributes(scene) for scene in drawn])
        states = model.readable([scenes.caption(rng, scene) for scene in drawn])
        told = [reader(of) for reader, of in zip(readers, states)]
        loss = sum(F.cross_entropy(one, wanted[:, index]) for of in told for index, one in enumerate(of))
        loss.backward()
        optimizer.param_groups[0]["lr"] = peak * rate(step, steps)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step + 1 == steps:
            right = [torch.stack([one.argmax(1) == wanted[:, index] for index, one in enumerate(of)]).all(0) for of in told]
            shares = ", ".join(f"{of.float().mean():.3f}" for of in right)
            print(f"lesson {step} loss {loss.item():.3f}, captions read rightly: {shares}", flush=True)


def load(model, folder):
    """Weights of a packaged model, in f32."""
    for name, module in model.modules().items():
        (path,) = (folder / name).glob("*.safetensors")
        weights = {key: tensor.float() for key, tensor in load_file(path).items()}
        missing, unexpected = module.load_state_dict(weights, strict=False)
        # transformers writes T5's table once, under the name of the two that share it.
        if unexpected or any(not key.endswith("embed_tokens.weight") for key in missing):
            raise SystemExit(f"{path} is of another model: {missing + unexpected}")


def train(model, scenes, drawn, latents, arguments, shift, empty, held_out):
    """Flow matching. `held_out` is asked for a score now and then. The state is kept, so that --resume goes on from it;
    --weights begins another round of rates from a packaged model."""
    rng, state = random.Random(arguments.seed), arguments.out / "state.pt"
    others = [module for name, module in model.modules().items() if name != "transformer"]
    chosen = optimizers(model.transformer, others, arguments.muon, arguments.adam)
    start = 0
    if arguments.resume and state.exists():
        kept = torch.load(state, weights_only=False)
        for name, module in model.modules().items():
            module.load_state_dict(kept[name])
        for optimizer, values in zip(chosen, kept.get("optimizers", [])):
            optimizer.load_state_dict(values)
        start = kept["step"]
    elif arguments.weights:
        load(model, arguments.weights)
    else:
        teach(model, scenes, arguments.lessons, arguments.seed)
    generator = torch.Generator().manual_seed(arguments.seed + start)
    rng.seed(arguments.seed + start)
    mean, began = None, time.time()
    for step in range(start, arguments.steps):
        picked = torch.randint(len(drawn), (arguments.batch,), generator=generator)
        prompts = ["" if rng.random() < empty else scenes.caption(rng, drawn[index]) for index in picked]
        x = model.arrange(latents[picked].float())
        noise = torch.randn(x.shape, generator=generator)
        sigma = sigmas(arguments.batch, shift, generator)
        mixed = x + sigma.view(-1, *[1] * (x.ndim - 1)) * (noise - x)
        with torch.autocast("cpu", torch.bfloat16, enabled=arguments.bf16):
            velocity = model.velocity(mixed, sigma, *model.condition(prompts))
        loss = F.mse_loss(velocity.float(), noise - x)
        loss.backward()
        for optimizer, peak in zip(chosen, [arguments.muon, arguments.adam]):
            for group in optimizer.param_groups:
                group["lr"] = peak * rate(step, arguments.steps)
            optimizer.step()
            optimizer.zero_grad()
        mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
        if step % 20 == 0:
            print(f"{step} loss {mean:.4f}, {(time.time() - began) / (step - start + 1):.2f} s a step", flush=True)
        if step % 200 == 199 or step + 1 == arguments.steps:
            kept = {name: module.state_dict() for name, module in model.modules().items()}
            kept |= {"optimizers": [optimizer.state_dict() for optimizer in chosen], "step": step + 1}
            torch.save(kept, state.with_suffix(".new"))
            state.with_suffix(".new").rename(state)
        if step % 1000 == 999:
            print(f"{step} held out: {held_out()}", flush=True)


def sheet(path, pictures, columns=8):
    """Pictures side by side in rows."""
    rows = [np.concatenate(list(pictures[at:at + columns]), 1) for at in range(0, len(pictures), columns)]
    width = max(row.shape[1] for row in rows)
    rows = [np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0))) for row in rows]
    Image.fromarray(np.concatenate(rows)).save(path)


def add_arguments(parser, seed, steps, pool):
    """The arguments of both trainings."""
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pool", type=int, default=pool)
    parser.add_argument("--lessons", type=int, default=800)
    parser.add_argument("--muon", type=float, default=0.02)
    parser.add_argument("--adam", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="go on from the state in the folder")
    parser.add_argument("--weights", type=Path, help="begin from a packaged model's folder, without lessons")
    parser.add_argument("--bf16", action="store_true", help="products in bf16, on a processor that has them")
    parser.set_defaults(seed=seed)
