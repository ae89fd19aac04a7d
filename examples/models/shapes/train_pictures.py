"""Trains the bundled picture model: Flux's layout with its two text encoders, small, on captioned shapes.

    python train_pictures.py --out ../flux-shapes --steps 4000

Versions: torch 2.11.0, diffusers 0.42.1, transformers 5.23.0, sentencepiece 0.2.3, numpy 2.4.6, pillow 13.0.0, safetensors 0.8.0.

Flow matching on the latents of ../flux-tiny: the network sees (1 - sigma) latent + sigma noise and learns noise - latent. Both
text encoders learn along. On these pictures flux-tiny's encoder is a linear map of 8x8 pixels to within 0.3 % of its variance,
so a map fitted on 300 scenes stands for it in training; decodes are always flux-tiny's own.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint
from PIL import Image
from safetensors.torch import load_file
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

import scenes
from optimizer import optimizers
from vocabulary import clip_tokenizer, save_clip, save_t5, t5_tokenizer

SEED = 20261125
TOKENS, SIDE = 24, scenes.SIZE // 8
SHIFT, STEPS = 3.0, 12
SCALING, MEAN = 0.3611, 0.1159
VAE = Path(__file__).parent.parent / "flux-tiny" / "ae.safetensors"


def autoencoder():
    vae = AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=16, norm_num_groups=32, layers_per_block=1,
        block_out_channels=(64, 64, 96, 96), down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, use_quant_conv=False, use_post_quant_conv=False,
        scaling_factor=SCALING, shift_factor=MEAN)
    weights = {name: tensor.float() for name, tensor in load_file(VAE).items()}
    vae.load_state_dict(convert_ldm_vae_checkpoint(weights, vae.config))
    return vae.eval().requires_grad_(False)


def networks():
    """The transformer, CLIP's and T5's encoders."""
    _, vocabulary, _ = clip_tokenizer()
    clip = CLIPTextModel(CLIPTextConfig(
        vocab_size=len(vocabulary), hidden_size=64, num_attention_heads=2, intermediate_size=192, num_hidden_layers=2,
        projection_dim=64, bos_token_id=len(vocabulary) - 2, eos_token_id=len(vocabulary) - 1,
        pad_token_id=len(vocabulary) - 1))
    t5 = T5EncoderModel(T5Config(
        vocab_size=len(t5_tokenizer()[1].pieces), d_model=96, d_kv=24, d_ff=256, num_layers=2, num_heads=4,
        feed_forward_proj="gated-gelu", dropout_rate=0.0))
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=64, num_layers=2, num_single_layers=4, attention_head_dim=32, num_attention_heads=4,
        joint_attention_dim=96, pooled_projection_dim=64, axes_dims_rope=[8, 12, 12], guidance_embeds=False)
    with torch.no_grad():
        # Blocks begin by doing nothing: their modulation, and the last projection, start from zero.
        for name, parameter in transformer.named_parameters():
            if any(part in name for part in ("norm1.linear", "norm1_context.linear", "norm.linear", "norm_out.linear", "proj_out.")) \
                    and not ("single" in name and "proj_out" in name):
                parameter.zero_()
    return transformer, clip, t5


def pack(latents):
    """[B, 16, H, W] as tokens [B, H/2 * W/2, 64], as Flux packs them."""
    batch, channels, height, width = latents.shape
    latents = latents.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return latents.reshape(batch, height // 2 * (width // 2), channels * 4)


def unpack(tokens, side=SIDE):
    half = side // 2
    latents = tokens.view(len(tokens), half, half, 16, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return latents.reshape(len(tokens), 16, side, side)


def patches(pictures):
    """[B, H, W, 3] of bytes as rows of 8x8 pixels, [B, H/8 * W/8, 192]."""
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1
    return F.unfold(pixels, 8, stride=8).permute(0, 2, 1)


class Encoder:
    """The linear map that stands for the autoencoder's encoder."""

    def __init__(self, vae, rng, count=300):
        drawn = [scenes.draw_scene(rng) for _ in range(count)]
        pictures = [scenes.picture(scene.background, scenes.placed(rng, scene)) for scene in drawn]
        rows = self.rows(pictures).flatten(0, 1)
        pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1
        with torch.no_grad():
            latents = torch.cat([vae.encode(part).latent_dist.mean for part in pixels.split(4)])
        wanted = ((latents - MEAN) * SCALING).flatten(2).permute(0, 2, 1).flatten(0, 1)
        square = (rows.T @ rows).double() + 0.1 * torch.eye(rows.shape[1]).double()
        self.map = torch.linalg.solve(square, (rows.T @ wanted).double()).float()

    @staticmethod
    def rows(pictures):
        rows = patches(pictures)
        return torch.cat([rows, torch.ones(*rows.shape[:2], 1)], dim=-1)

    def latents(self, pictures):
        return (self.rows(pictures) @ self.map).permute(0, 2, 1).reshape(len(pictures), 16, SIDE, SIDE)


class Text:
    """Prompts as both encoders' input."""

    def __init__(self):
        self.clip, self.t5 = clip_tokenizer()[0], t5_tokenizer()[0]

    def __call__(self, prompts):
        clip = self.clip(prompts, padding="max_length", truncation=True, max_length=77, return_tensors="pt").input_ids
        last = (clip == self.clip.eos_token_id).int().argmax(1)
        t5 = self.t5(prompts, padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt").input_ids
        return clip[:, :int(last.max()) + 1], t5


class Model:
    def __init__(self):
        torch.manual_seed(SEED)
        self.transformer, self.clip, self.t5 = networks()
        self.text = Text()
        self.run = self.transformer

    def modules(self):
        return {"transformer": self.transformer, "text_encoder": self.clip, "text_encoder_2": self.t5}

    def condition(self, prompts):
        clip, t5 = self.text(prompts)
        return self.t5(t5)[0], self.clip(clip).pooler_output

    def velocity(self, tokens, sigma, states, pooled):
        half = SIDE // 2
        places = torch.zeros(half, half, 3)
        places[..., 1] += torch.arange(half)[:, None]
        places[..., 2] += torch.arange(half)[None]
        return self.run(
            hidden_states=tokens, timestep=sigma, encoder_hidden_states=states, pooled_projections=pooled,
            img_ids=places.view(-1, 3), txt_ids=torch.zeros(states.shape[1], 3), return_dict=False)[0]

    @torch.no_grad()
    def sample(self, prompts, seed=0, steps=STEPS, cfg=1.0):
        """Normalised latents [B, 16, H, W], by Euler steps."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(len(prompts), SIDE * SIDE // 4, 64, generator=generator)
        states, pooled = self.condition(prompts)
        empty = self.condition([""] * len(prompts)) if cfg != 1 else None
        sigmas = torch.linspace(1, 1 / steps, steps)
        sigmas = torch.cat([SHIFT * sigmas / (1 + (SHIFT - 1) * sigmas), torch.zeros(1)])
        for now, then in zip(sigmas[:-1], sigmas[1:]):
            velocity = self.velocity(x, now.expand(len(x)), states, pooled)
            if empty:
                other = self.velocity(x, now.expand(len(x)), *empty)
                velocity = other + cfg * (velocity - other)
            x = x + (then - now) * velocity
        return unpack(x)


def decoded(vae, latents):
    with torch.no_grad():
        pixels = torch.cat([vae.decode(part).sample for part in (latents / SCALING + MEAN).split(4)])
    return ((pixels.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()


def score(model, vae, prompts, **given):
    latents = torch.cat([model.sample([text for text, _ in prompts[at:at + 50]], seed=at, **given)
                         for at in range(0, len(prompts), 50)])
    pictures = decoded(vae, latents)
    return pictures, [scenes.judge(scene, picture) for (_, scene), picture in zip(prompts, pictures)]


def sheet(path, pictures, columns=8):
    rows = [np.concatenate(list(pictures[at:at + columns]), 1) for at in range(0, len(pictures), columns)]
    width = max(row.shape[1] for row in rows)
    rows = [np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0))) for row in rows]
    Image.fromarray(np.concatenate(rows)).save(path)


def pool(encoder, rng, count):
    """Scenes drawn ahead, and their latents in f16."""
    drawn, latents = [], []
    for _ in range(count // 500):
        part = [scenes.draw_scene(rng) for _ in range(500)]
        pictures = [scenes.picture(scene.background, scenes.placed(rng, scene)) for scene in part]
        drawn += part
        latents.append(encoder.latents(pictures).half())
    return drawn, torch.cat(latents)


def attributes(scene):
    """What a caption says, as a class each: the targets of the text encoders' first lessons."""
    first, second = (*scene.shapes, None)[:2]
    details = [None, *scenes.PLACES, *scenes.RELATIONS]
    return [
        ["one", "on", "beside"].index(scene.kind), scenes.COLOURS.index(first.colour), scenes.FORMS.index(first.form),
        list(scenes.RADII).index(first.size), scenes.COLOURS.index(second.colour) if second else len(scenes.COLOURS),
        scenes.FORMS.index(second.form) if second else len(scenes.FORMS), details.index(scene.detail),
        scenes.COLOURS.index(scene.background),
    ]


CLASSES = [3, 8, 4, 3, 9, 5, 14, 8]


class Reader(torch.nn.Module):
    """Reads the attributes off an encoder's states: one query of attention for each, and a linear layer."""

    def __init__(self, width):
        super().__init__()
        self.queries = torch.nn.Parameter(torch.randn(len(CLASSES), width) / width**0.5)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(width, count) for count in CLASSES)

    def forward(self, states):
        seen = torch.softmax(self.queries @ states.mT, dim=-1) @ states
        return [head(seen[:, index]) for index, head in enumerate(self.heads)]


def teach(model, steps, batch=192):
    """Both text encoders learn to tell what a caption says, before the transformer is there to ask."""
    rng = random.Random(SEED)
    readers = [Reader(96), Reader(64)]
    modules = [model.t5, model.clip, *readers]
    optimizer = torch.optim.AdamW([p for module in modules for p in module.parameters()], lr=2e-3, betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(steps):
        drawn = [scenes.draw_scene(rng) for _ in range(batch)]
        wanted = torch.tensor([attributes(scene) for scene in drawn])
        states, pooled = model.condition([scenes.caption(rng, scene) for scene in drawn])
        told = [readers[0](states), readers[1](pooled[:, None])]
        loss = sum(F.cross_entropy(one, wanted[:, index]) for of in told for index, one in enumerate(of))
        loss.backward()
        optimizer.param_groups[0]["lr"] = 2e-3 * rate(step, steps)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0 or step + 1 == steps:
            right = [torch.stack([one.argmax(1) == wanted[:, index] for index, one in enumerate(of)]).all(0).float().mean() for of in told]
            print(f"lesson {step} loss {loss.item():.3f}, all right: T5 {right[0]:.3f}, CLIP {right[1]:.3f}", flush=True)


def rate(step, steps):
    """A short rise, a level, and a fall to zero over the last two fifths."""
    return min(1, (step + 1) / 50, max(0, (steps - step) / (0.4 * steps)))


def train(model, drawn, latents, arguments):
    rng, state = random.Random(SEED), arguments.out / "state.pt"
    chosen = optimizers(model.transformer, [model.clip, model.t5], arguments.muon, arguments.adam)
    start = 0
    if arguments.resume and state.exists():
        kept = torch.load(state, weights_only=False)
        for name, module in model.modules().items():
            module.load_state_dict(kept[name])
        for optimizer, values in zip(chosen, kept.get("optimizers", [])):
            optimizer.load_state_dict(values)
        start = kept["step"]
    else:
        teach(model, arguments.lessons)
    generator = torch.Generator().manual_seed(SEED + start)
    rng.seed(SEED + start)
    peaks = [[arguments.muon], [arguments.adam]]
    mean, began = None, time.time()
    for step in range(start, arguments.steps):
        picked = torch.randint(len(drawn), (arguments.batch,), generator=generator)
        prompts = ["" if rng.random() < 0.06 else scenes.caption(rng, drawn[index]) for index in picked]
        x = pack(latents[picked].float())
        noise = torch.randn(x.shape, generator=generator)
        sigma = torch.sigmoid(torch.randn(arguments.batch, generator=generator))
        sigma = SHIFT * sigma / (1 + (SHIFT - 1) * sigma)
        mixed = x + sigma[:, None, None] * (noise - x)
        velocity = model.velocity(mixed, sigma, *model.condition(prompts))
        loss = F.mse_loss(velocity, noise - x)
        loss.backward()
        for optimizer, rates in zip(chosen, peaks):
            for group, peak in zip(optimizer.param_groups, rates):
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
            wrong = score(model, arguments.vae, scenes.held_out_prompts(48, seed=1))[1]
            print(f"{step} held out: {sum(not one for one in wrong)} of 48", flush=True)


def save(model, out):
    """The pipeline as diffusers reads it, weights in f16, without the autoencoder."""
    clip, vocabulary, merges = clip_tokenizer()
    t5, pieces = t5_tokenizer()
    scheduler = FlowMatchEulerDiscreteScheduler(shift=SHIFT, use_dynamic_shifting=False)
    modules = {name: module.half() for name, module in model.modules().items()}
    pipeline = FluxPipeline(scheduler=scheduler, vae=autoencoder().half(), tokenizer=clip, tokenizer_2=t5, **modules)
    pipeline.save_pretrained(out)
    save_clip(out / "tokenizer", vocabulary, merges)
    save_t5(out / "tokenizer_2", t5, pieces)
    index = json.loads((out / "model_index.json").read_text())
    index |= {"max_sequence_length": TOKENS}
    (out / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lessons", type=int, default=800)
    parser.add_argument("--pool", type=int, default=40000)
    parser.add_argument("--muon", type=float, default=0.02)
    parser.add_argument("--adam", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="go on from the state in the folder")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.vae, model, rng = autoencoder(), Model(), random.Random(SEED)
    sizes = {name: sum(p.numel() for p in module.parameters()) for name, module in model.modules().items()}
    print({name: f"{size:,}" for name, size in sizes.items()}, f"{2 * sum(sizes.values()) / 1e6:.2f} MB in f16", flush=True)
    kept = arguments.out / "pool.pt"
    if kept.exists():  # Drawn by an earlier run.
        drawn, latents = torch.load(kept, weights_only=False)
    else:
        drawn, latents = pool(Encoder(arguments.vae, rng), rng, arguments.pool)
        torch.save((drawn, latents), kept)
    if arguments.compile:
        model.run = torch.compile(model.transformer)
    train(model, drawn, latents, arguments)
    pictures, wrong = score(model, arguments.vae, scenes.held_out_prompts())
    print(f"held out: {sum(not one for one in wrong)} of {len(wrong)}")
    sheet(arguments.out / "sheet.png", pictures[:40])
    save(model, arguments.out)


if __name__ == "__main__":
    main()
