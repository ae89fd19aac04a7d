"""Trains the bundled video model: WAN's layout with its text encoder, small, on captioned clips of shapes.

    python train_clips.py --out FOLDER
    python package.py --clips FOLDER/state.pt ../wan-shapes

Versions: torch 2.11.0, diffusers 0.42.1, transformers 5.23.0, sentencepiece 0.2.3, numpy 2.4.6,
pillow 13.0.0, safetensors 0.8.0.

Flow matching on the latents of ../wan-tiny: the network sees (1 - sigma) latent + sigma noise and learns noise - latent. The
text encoder learns along, after lessons of its own. Latents are wan-tiny's own, encoded once for a fixed pool of clips that is kept in OUT/pool.pt.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from safetensors.torch import load_file
from transformers import UMT5Config, UMT5EncoderModel

import clips
import training
from vocabulary import save_t5, t5_tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "judge"))
from video_networks import original_name, wan_config  # noqa: E402

SEED = 20261126
TOKENS, SIDE, LATENT_FRAMES = 24, clips.SIZE // 8, (clips.FRAMES - 1) // 4 + 1
# As ComfyUI has it for WAN: these latents are large, and show through more noise than pictures of photographs.
SHIFT, STEPS = 8.0, 12
EMPTY, CFG = 0.1, 1.0  # the share of empty prompts, and the factor of guidance against them
VAE = Path(__file__).resolve().parent.parent / "wan-tiny" / "Wan2.1_VAE.safetensors"
VAE_CONFIG = wan_config("2.1", z=16, base=16, blocks=1)
MEAN, DEVIATION = (torch.tensor(VAE_CONFIG[key]).view(1, 16, 1, 1, 1) for key in ("latents_mean", "latents_std"))


def autoencoder():
    vae, weights = AutoencoderKLWan(**VAE_CONFIG), load_file(VAE)
    vae.load_state_dict({name: weights[original_name(name, VAE_CONFIG)].float() for name in vae.state_dict()})
    return vae.eval().requires_grad_(False)


def networks():
    """The transformer and UMT5's encoder."""
    t5 = UMT5EncoderModel(UMT5Config(
        vocab_size=len(t5_tokenizer()[1].pieces), d_model=96, d_kv=24, d_ff=256, num_layers=2, num_heads=4,
        feed_forward_proj="gated-gelu", dropout_rate=0.0))
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=4, attention_head_dim=32, in_channels=16, out_channels=16, text_dim=96,
        freq_dim=256, ffn_dim=512, num_layers=5, cross_attn_norm=True,
        qk_norm="rms_norm_across_heads", rope_max_seq_len=64)
    with torch.no_grad():
        # Blocks begin by doing nothing: their gates, the text attention's output and the last projection start from zero.
        for block in transformer.blocks:
            block.scale_shift_table.zero_()
            block.attn2.to_out[0].weight.zero_()
        for linear in (transformer.condition_embedder.time_proj, transformer.proj_out):
            linear.weight.zero_()
            linear.bias.zero_()
    return transformer, t5


class Model:
    def __init__(self):
        torch.manual_seed(SEED)
        self.transformer, self.t5 = networks()
        self.tokenizer = t5_tokenizer()[0]

    def modules(self):
        return {"transformer": self.transformer, "text_encoder": self.t5}

    def condition(self, prompts):
        """The states as WanPipeline gives them: the encoder sees the mask, and what lies beyond it becomes zero."""
        given = self.tokenizer(prompts, padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt")
        states = self.t5(given.input_ids, attention_mask=given.attention_mask).last_hidden_state
        return (states * given.attention_mask[..., None],)

    def readable(self, prompts):
        return self.condition(prompts)

    def arrange(self, latents):
        return latents

    def velocity(self, latents, sigma, states):
        return self.transformer(
            hidden_states=latents, timestep=1000 * sigma, encoder_hidden_states=states, return_dict=False)[0]

    @torch.no_grad()
    def sample(self, prompts, seed=0, steps=STEPS, cfg=CFG):
        """Normalised latents [B, 16, T, H, W], by Euler steps."""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(len(prompts), 16, LATENT_FRAMES, SIDE, SIDE, generator=generator)
        states = self.condition(prompts)
        empty = self.condition([""] * len(prompts)) if cfg != 1 else None
        sigmas = torch.linspace(1, 1 / steps, steps)
        sigmas = torch.cat([SHIFT * sigmas / (1 + (SHIFT - 1) * sigmas), torch.zeros(1)])
        for now, then in zip(sigmas[:-1], sigmas[1:]):
            velocity = self.velocity(x, now.expand(len(x)), *states)
            if empty is not None:
                other = self.velocity(x, now.expand(len(x)), *empty)
                velocity = other + cfg * (velocity - other)
            x = x + (then - now) * velocity
        return x


def encoded(vae, frames):
    """Normalised latents [B, 16, T, H, W] of clips [T, H, W, 3] of bytes."""
    pixels = torch.from_numpy(np.stack(frames)).permute(0, 4, 1, 2, 3).float() / 127.5 - 1
    with torch.no_grad():
        # Two at a time: on one thread a single clip takes a slower convolution.
        latents = torch.cat([vae.encode(part).latent_dist.mean for part in pixels.split(2)])
    return (latents - MEAN) / DEVIATION


def decoded(vae, latents):
    """Clips [B, T, H, W, 3] of bytes."""
    with torch.no_grad():
        pixels = torch.cat([vae.decode(part).sample for part in (latents * DEVIATION + MEAN).split(2)])
    return ((pixels.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1).numpy()


def score(model, vae, prompts, **given):
    latents = torch.cat([model.sample([text for text, _ in prompts[at:at + 50]], seed=at, **given)
                         for at in range(0, len(prompts), 50)])
    made = decoded(vae, latents)
    return made, [clips.judge(scene, frames) for (_, scene), frames in zip(prompts, made)]


def round_trip(vae, count=60, seed=SEED + 1):
    """How many clips are read rightly as drawn, and after wan-tiny's encoder and decoder: the bound of any score."""
    rng = random.Random(seed)
    drawn = [clips.draw_scene(rng) for _ in range(count)]
    frames = [clips.clip(rng, scene) for scene in drawn]
    back = decoded(vae, encoded(vae, frames))
    for name, given in (("drawn", frames), ("round trip", back)):
        wrong = [(clips.judge(scene, one), scene) for scene, one in zip(drawn, given)]
        print(f"{name}: {sum(not one for one, _ in wrong)} of {count}", *[one for one in wrong if one[0]], sep="\n", flush=True)


def pool(vae, rng, count, out):
    """Scenes drawn ahead, and their latents in f16. What is encoded is kept every 200 clips, as this takes minutes."""
    drawn, latents = [], []
    partial = out / "pool.part.pt"
    if partial.exists():
        drawn, latents, state = torch.load(partial, weights_only=False)
        rng.setstate(state)
    began, first = time.time(), len(drawn)
    while len(drawn) < count:
        part = [clips.draw_scene(rng) for _ in range(min(200, count - len(drawn)))]
        latents.append(encoded(vae, [clips.clip(rng, scene) for scene in part]).half())
        drawn += part
        torch.save((drawn, latents, rng.getstate()), partial)
        print(f"pool: {len(drawn)}, {(time.time() - began) / (len(drawn) - first):.2f} s a clip", flush=True)
    partial.unlink(missing_ok=True)
    return drawn[:count], torch.cat(latents)[:count]


def save(model, out):
    """The pipeline as diffusers reads it, weights in f16."""
    tokenizer, pieces = t5_tokenizer()
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=SHIFT)
    modules = {name: module.half() for name, module in model.modules().items()}
    pipeline = WanPipeline(scheduler=scheduler, vae=autoencoder().half(), tokenizer=tokenizer, **modules)
    pipeline.save_pretrained(out)
    save_t5(out / "tokenizer", tokenizer, pieces)
    index = json.loads((out / "model_index.json").read_text())
    index |= {"max_sequence_length": TOKENS}
    (out / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    training.add_arguments(parser, seed=SEED, steps=5000, pool=4000)
    parser.add_argument("--cfg", type=float, default=CFG, help="guidance for the held-out scores")
    parser.add_argument("--round-trip", action="store_true", help="only measure the judge, before and after wan-tiny")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    arguments.vae = autoencoder()
    if arguments.round_trip:
        return round_trip(arguments.vae)
    arguments.out.mkdir(parents=True, exist_ok=True)
    model, rng = Model(), random.Random(SEED)
    sizes = {name: sum(p.numel() for p in module.parameters()) for name, module in model.modules().items()}
    print({name: f"{size:,}" for name, size in sizes.items()}, f"{2 * sum(sizes.values()) / 1e6:.2f} MB in f16", flush=True)
    kept = arguments.out / "pool.pt"
    if kept.exists():  # Drawn by an earlier run.
        drawn, latents = torch.load(kept, weights_only=False)
    else:
        drawn, latents = pool(arguments.vae, rng, arguments.pool, arguments.out)
        torch.save((drawn, latents), kept)

    def held_out():
        wrong = score(model, arguments.vae, clips.held_out_prompts(40, seed=1), cfg=arguments.cfg)[1]
        return f"{sum(not one for one in wrong)} of {len(wrong)}"

    training.train(model, clips, drawn, latents, arguments, SHIFT / 2, EMPTY, held_out)
    made, wrong = score(model, arguments.vae, clips.held_out_prompts(), cfg=arguments.cfg)
    print(f"held out: {sum(not one for one in wrong)} of {len(wrong)}", *[one for one in wrong if one][:10], sep="\n")
    training.sheet(arguments.out / "sheet.png", [frame for frames in made[:10] for frame in frames[::4]], columns=5)
    save(model, arguments.out)


if __name__ == "__main__":
    main()
