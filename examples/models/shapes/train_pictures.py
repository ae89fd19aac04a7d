"""Trains the bundled picture model: Flux's layout with its two text encoders, small, on captioned shapes.

    python train_pictures.py --out FOLDER
    python package.py FOLDER/state.pt ../flux-shapes

Versions: torch 2.11.0, diffusers 0.42.1, transformers 5.23.0, sentencepiece 0.2.3, numpy 2.4.6, pillow 13.0.0, safetensors 0.8.0.

Flow matching on the latents of ../flux-tiny: the network sees (1 - sigma) latent + sigma noise and learns noise - latent. Both
text encoders learn along, after lessons of their own. On these pictures flux-tiny's encoder is a linear map of 8x8 pixels to within 0.3 % of its variance,
so a map fitted on 300 scenes stands for it in training; decodes are always flux-tiny's own.
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint
from safetensors.torch import load_file
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

import scenes
import training
from vocabulary import clip_tokenizer, save_clip, save_t5, t5_tokenizer

SEED = 20261125
TOKENS, SIDE = 24, scenes.SIZE // 8
SHIFT, STEPS = 3.0, 12
EMPTY, CFG = 0.06, 2.0  # the share of empty prompts, and the factor of guidance against them
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

    def modules(self):
        return {"transformer": self.transformer, "text_encoder": self.clip, "text_encoder_2": self.t5}

    def condition(self, prompts):
        clip, t5 = self.text(prompts)
        return self.t5(t5)[0], self.clip(clip).pooler_output

    def readable(self, prompts):
        states, pooled = self.condition(prompts)
        return [states, pooled[:, None]]

    def arrange(self, latents):
        return pack(latents)

    def velocity(self, tokens, sigma, states, pooled):
        half = SIDE // 2
        places = torch.zeros(half, half, 3)
        places[..., 1] += torch.arange(half)[:, None]
        places[..., 2] += torch.arange(half)[None]
        return self.transformer(
            hidden_states=tokens, timestep=sigma, encoder_hidden_states=states, pooled_projections=pooled,
            img_ids=places.view(-1, 3), txt_ids=torch.zeros(states.shape[1], 3), return_dict=False)[0]

    @torch.no_grad()
    def sample(self, prompts, seed=0, steps=STEPS, cfg=CFG):
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


def pool(encoder, rng, count):
    """Scenes drawn ahead, and their latents in f16."""
    drawn, latents = [], []
    for _ in range(count // 500):
        part = [scenes.draw_scene(rng) for _ in range(500)]
        pictures = [scenes.picture(scene.background, scenes.placed(rng, scene)) for scene in part]
        drawn += part
        latents.append(encoder.latents(pictures).half())
    return drawn, torch.cat(latents)


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
    training.add_arguments(parser, seed=SEED, steps=5500, pool=40000)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.out.mkdir(parents=True, exist_ok=True)
    vae, model, rng = autoencoder(), Model(), random.Random(SEED)
    sizes = {name: sum(p.numel() for p in module.parameters()) for name, module in model.modules().items()}
    print({name: f"{size:,}" for name, size in sizes.items()}, f"{2 * sum(sizes.values()) / 1e6:.2f} MB in f16", flush=True)
    kept = arguments.out / "pool.pt"
    if kept.exists():  # Drawn by an earlier run.
        drawn, latents = torch.load(kept, weights_only=False)
    else:
        drawn, latents = pool(Encoder(vae, rng), rng, arguments.pool)
        torch.save((drawn, latents), kept)

    def held_out():
        wrong = score(model, vae, scenes.held_out_prompts(48, seed=1))[1]
        return f"{sum(not one for one in wrong)} of {len(wrong)}"

    training.train(model, scenes, drawn, latents, arguments, SHIFT, EMPTY, held_out)
    pictures, wrong = score(model, vae, scenes.held_out_prompts())
    print(f"held out: {sum(not one for one in wrong)} of {len(wrong)}")
    training.sheet(arguments.out / "sheet.png", pictures[:40])
    save(model, arguments.out)


if __name__ == "__main__":
    main()
