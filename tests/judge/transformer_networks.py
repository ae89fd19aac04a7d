"""Seeded random Flux.1 and WAN transformers, the names that files give their tensors, and diffusers as the judge of what they compute.

Used by tests/fixtures/make_transformer_fixtures.py. Nothing here knows Tilewright. (This file cannot be called transformers.py: it would
hide the package of that name, which diffusers imports.)
"""

import contextlib
import inspect
import math
import re
from unittest import mock

import torch
from diffusers import FluxTransformer2DModel, WanTransformer3DModel
from diffusers.loaders.single_file_utils import convert_flux_transformer_checkpoint_to_diffusers, convert_wan_transformer_to_diffusers
from diffusers.models import embeddings

from networks import DTYPES, FAMILIES, random_values, unscaled
from video_networks import DEVIATIONS, MEANS, unscaled_video

CLASSES = {"flux": FluxTransformer2DModel, "wan": WanTransformer3DModel}

# What a single file's names may begin with.
PREFIX = "model.diffusion_model."

# BFL's modules → the modules of diffusers, stacked by rows, that they are.
FLUX_ENDS = {
    "img_in": ["x_embedder"],
    "txt_in": ["context_embedder"],
    "time_in.in_layer": ["time_text_embed.timestep_embedder.linear_1"],
    "time_in.out_layer": ["time_text_embed.timestep_embedder.linear_2"],
    "guidance_in.in_layer": ["time_text_embed.guidance_embedder.linear_1"],
    "guidance_in.out_layer": ["time_text_embed.guidance_embedder.linear_2"],
    "vector_in.in_layer": ["time_text_embed.text_embedder.linear_1"],
    "vector_in.out_layer": ["time_text_embed.text_embedder.linear_2"],
    "final_layer.adaLN_modulation.1": ["norm_out.linear"],
    "final_layer.linear": ["proj_out"],
}
FLUX_DOUBLE = {
    "img_mod.lin": ["norm1.linear"],
    "txt_mod.lin": ["norm1_context.linear"],
    "img_attn.qkv": ["attn.to_q", "attn.to_k", "attn.to_v"],
    "txt_attn.qkv": ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"],
    "img_attn.norm.query_norm": ["attn.norm_q"],
    "img_attn.norm.key_norm": ["attn.norm_k"],
    "txt_attn.norm.query_norm": ["attn.norm_added_q"],
    "txt_attn.norm.key_norm": ["attn.norm_added_k"],
    "img_attn.proj": ["attn.to_out.0"],
    "txt_attn.proj": ["attn.to_add_out"],
    "img_mlp.0": ["ff.net.0.proj"],
    "img_mlp.2": ["ff.net.2"],
    "txt_mlp.0": ["ff_context.net.0.proj"],
    "txt_mlp.2": ["ff_context.net.2"],
}
FLUX_SINGLE = {
    "modulation.lin": ["norm.linear"],
    "linear1": ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"],
    "linear2": ["proj_out"],
    "norm.query_norm": ["attn.norm_q"],
    "norm.key_norm": ["attn.norm_k"],
}

# diffusers' parts of names → WAN's own, in the network and in its blocks.
WAN_ENDS = {
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "condition_embedder.image_embedder.norm1": "img_emb.proj.0",
    "condition_embedder.image_embedder.ff.net.0.proj": "img_emb.proj.1",
    "condition_embedder.image_embedder.ff.net.2": "img_emb.proj.3",
    "condition_embedder.image_embedder.norm2": "img_emb.proj.4",
    "patch_embedding": "patch_embedding",
    "proj_out": "head.head",
}
WAN_BLOCK = {
    "attn1": "self_attn", "attn2": "cross_attn", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "o", "norm_q": "norm_q",
    "norm_k": "norm_k", "add_k_proj": "k_img", "add_v_proj": "v_img", "norm_added_k": "norm_k_img", "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2", "norm2": "norm3",
}


def flux_config(heads, head_dim, axes, double, single, guidance, text=32, pooled=24):
    """The arguments of diffusers' FluxTransformer2DModel, with 16 latent channels."""
    return {
        "patch_size": 1, "in_channels": 64, "num_layers": double, "num_single_layers": single, "attention_head_dim": head_dim,
        "num_attention_heads": heads, "joint_attention_dim": text, "pooled_projection_dim": pooled, "guidance_embeds": guidance,
        "axes_dims_rope": list(axes),
    }


def wan_transformer_config(heads, head_dim, ffn, layers, channels=16, inputs=None, text=16, image=None):
    """The arguments of diffusers' WanTransformer3DModel; `inputs` where the condition stands beside the noise, `image` where CLIP's
    rows come before the text."""
    return {
        "patch_size": [1, 2, 2], "num_attention_heads": heads, "attention_head_dim": head_dim, "in_channels": inputs or channels,
        "out_channels": channels, "text_dim": text, "freq_dim": 256, "ffn_dim": ffn, "num_layers": layers, "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads", "eps": 1e-6, "image_dim": image, "added_kv_proj_dim": heads * head_dim if image else None,
        "rope_max_seq_len": 1024,
    }


def kind_of(config):
    return "flux" if "joint_attention_dim" in config else "wan"


def random_transformer_weight(seed, name, shape):
    """Norm scales and biases that are not ones and zeros, modulation and gates of order one, attention with clear peaks, and an output
    about as large as the noise."""
    values = random_values(seed, name, shape)
    if name.endswith("scale_shift_table"):
        return 0.5 * values
    if re.search(r"norm\d?(_added)?(_[qk])?\.(weight|bias)$", name):
        # tanh bounds the scale, so that no channel vanishes; for queries and keys it stands above 1, for peaks.
        middle = 1.5 if re.search(r"norm(_added)?_[qk]\.", name) else 1.0
        return middle + 0.5 * torch.tanh(values) if name.endswith("weight") else 0.2 * values
    if name.endswith("bias"):
        return 0.2 * values
    gain = 1.5
    if re.search(r"norm\d?(_context|_out)?\.linear|time_proj", name):
        gain = 0.7
    elif name in ("proj_out.weight", "x_embedder.weight", "patch_embedding.weight"):
        gain = 0.8
    if re.search(r"(time|timestep|guidance)_embedder\.linear_1\.weight", name):
        # Phases reach 3500, where f32 is out by up to 2e-4: little weight on the fast ones, or f64 sinusoids would lead elsewhere.
        slow = 1 / (1 + 30 * torch.exp(-math.log(10000) * torch.arange(shape[1] // 2) / (shape[1] // 2)))
        values = values * slow.repeat(2)
    return values * (gain / math.sqrt(math.prod(shape[1:])))


def random_transformer_weights(config, seed, stored, quiet=(), also_f32=False):
    """A state dict in diffusers' names, rounded to the type that will be stored.

    `quiet` modules give so little that the epsilon of the norm behind them shows. With `also_f32`, norms, biases and modulation tables
    stay in f32.
    """
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in CLASSES[kind_of(config)](**config).state_dict().items()}
    weights = {}
    for name, shape in shapes.items():
        value = random_transformer_weight(seed, name, shape)
        if name.rpartition(".")[0] in quiet:
            value = value * 1e-3
        plain = also_f32 and (len(shape) == 1 or name.endswith("scale_shift_table"))
        weights[name] = value.to(torch.float32 if plain else DTYPES[stored])
    return weights


def flux_modules(config):
    """BFL's modules → those of diffusers."""
    modules = dict(FLUX_ENDS)
    if not config["guidance_embeds"]:
        modules = {name: parts for name, parts in modules.items() if not name.startswith("guidance_in")}
    for theirs, ours, names, count in [("double_blocks", "transformer_blocks", FLUX_DOUBLE, config["num_layers"]),
                                       ("single_blocks", "single_transformer_blocks", FLUX_SINGLE, config["num_single_layers"])]:
        for number in range(count):
            modules |= {f"{theirs}.{number}.{name}": [f"{ours}.{number}.{part}" for part in parts] for name, parts in names.items()}
    return modules


def to_bfl(weights, config):
    """The weights under BFL's names."""
    renamed = {}
    for name, parts in flux_modules(config).items():
        for kind in ("weight", "bias"):
            tensors = [weights[f"{part}.{kind}"] for part in parts if f"{part}.{kind}" in weights]
            if not tensors:
                continue
            if name == "final_layer.adaLN_modulation.1":
                # diffusers has scale before shift, BFL shift before scale.
                tensors = reversed(tensors[0].chunk(2))
            kind = "scale" if name.endswith("_norm") else kind
            renamed[f"{name}.{kind}"] = torch.cat(list(tensors))
    return renamed


def wan_name(name):
    """diffusers' name of a tensor → WAN's own."""
    if name == "scale_shift_table":
        return "head.modulation"
    if match := re.fullmatch(r"(blocks\.\d+)\.(.*)", name):
        block, rest = match.groups()
        if rest == "scale_shift_table":
            return f"{block}.modulation"
        module, _, kind = rest.rpartition(".")
        attention = re.fullmatch(r"(attn[12])\.(.*)", module)
        module = ".".join(WAN_BLOCK[part] for part in attention.groups()) if attention else WAN_BLOCK[module]
        return f"{block}.{module}.{kind}"
    module, _, kind = name.rpartition(".")
    return f"{WAN_ENDS[module]}.{kind}"


def to_original_transformer(weights, config):
    """The weights under BFL's or WAN's names; diffusers' own converter has to map them back onto exactly the same tensors."""
    if kind_of(config) == "flux":
        renamed = to_bfl(weights, config)
    else:
        renamed = {wan_name(name): value for name, value in weights.items()}
    assert sum(value.numel() for value in renamed.values()) == sum(value.numel() for value in weights.values())
    back = from_original_transformer(renamed, config)
    assert back.keys() == weights.keys(), back.keys() ^ weights.keys()
    assert all(torch.equal(back[name], value) for name, value in weights.items())
    return renamed


def from_original_transformer(tensors, config):
    """diffusers' reading of a file in BFL's or WAN's names, with or without prefix."""
    if kind_of(config) == "wan":
        return convert_wan_transformer_to_diffusers(dict(tensors))
    # diffusers' converter has the published width written into it.
    source = inspect.getsource(convert_flux_transformer_checkpoint_to_diffusers)
    published = "inner_dim = 3072\n"
    assert source.count(published) == 1
    scope = {"torch": torch}
    exec(source.replace(published, f"inner_dim = {config['num_attention_heads'] * config['attention_head_dim']}\n"), scope)
    return scope["convert_flux_transformer_checkpoint_to_diffusers"](dict(tensors))


@contextlib.contextmanager
def all_in_f64():
    """diffusers does norms, modulation, rotary tables and sinusoids in f32 whatever the network's type; in here it does them in f64."""

    def sinusoid(timesteps, dim, flip_sin_to_cos, downscale_freq_shift, scale):
        assert flip_sin_to_cos and downscale_freq_shift == 0 and scale == 1
        half = dim // 2
        angles = timesteps.double()[:, None] * torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float64) / half)
        return torch.cat([angles.cos(), angles.sin()], dim=-1)

    with mock.patch.object(torch.Tensor, "float", torch.Tensor.double), mock.patch.object(embeddings, "get_timestep_embedding", sinusoid):
        yield


class Judge:
    """diffusers' network with the weights as stored (tensors in diffusers' names), in f32 or, with `exact`, in f64 throughout."""

    def __init__(self, weights, config, exact=False):
        self.kind, self.exact = kind_of(config), exact
        self.dtype = torch.float64 if exact else torch.float32
        with self.precision():
            self.net = CLASSES[self.kind](**config).eval()
        self.net.load_state_dict({name: value.to(torch.float32) for name, value in weights.items()}, strict=True)
        self.net.to(self.dtype)

    def precision(self):
        return all_in_f64() if self.exact else contextlib.nullcontext()

    def velocity(self, latent, sigma, conditioning, guidance=None, mask=None):
        """[N, 16, h, w] or [N, C, T, h, w] → the same shape: the network's output at `sigma`.

        `mask` [1, 1, T, h, w] is 0 on frames that are held: their tokens get the time 0.
        """
        given = {name: value.to(self.dtype) for name, value in conditioning.items()}
        latent = latent.to(self.dtype)
        sigma = torch.tensor(sigma, dtype=self.dtype)
        with self.precision():
            return (self.flux if self.kind == "flux" else self.wan)(latent, sigma, given, guidance, mask)

    def flux(self, latent, sigma, given, guidance, mask):
        # Here, as it imports the package transformers, which takes seconds and is not on every machine that reads the networks.
        from diffusers import FluxPipeline

        count, channels, height, width = latent.shape
        tokens = self.net(
            hidden_states=FluxPipeline._pack_latents(latent, count, channels, height, width),
            timestep=sigma.expand(count),
            guidance=None if guidance is None else torch.full((count,), guidance, dtype=self.dtype),
            pooled_projections=given["pooled_prompt_embeds"],
            encoder_hidden_states=given["prompt_embeds"],
            txt_ids=torch.zeros(given["prompt_embeds"].shape[1], 3),
            img_ids=FluxPipeline._prepare_latent_image_ids(count, height // 2, width // 2, "cpu", torch.float32),
        ).sample
        return FluxPipeline._unpack_latents(tokens, height * 8, width * 8, 8)

    def wan(self, latent, sigma, given, guidance, mask):
        if "condition" in given:
            latent = torch.cat([latent, given["condition"]], dim=1)
        timestep = sigma * 1000
        if mask is None:
            timestep = timestep.expand(latent.shape[0])
        else:
            timestep = (mask[0, 0, :, ::2, ::2] * timestep).flatten()[None].expand(latent.shape[0], -1)
        return self.net(latent, timestep, given["prompt_embeds"], given.get("image_embeds")).sample


def held_in(latent, held):
    """The latent with its held frames in place."""
    return latent if held is None else (1 - held["mask"]) * held["given"] + held["mask"] * latent


def euler(judge_at, noise, sigmas, conditioning, guidance=None, held=None):
    """Euler's steps from the noise down the sigmas → (the first velocity, the sample). `judge_at` tells the network for a sigma."""
    mask = None if held is None else held["mask"]
    sample, first = noise.to(judge_at(sigmas[0]).dtype), None
    for sigma, after in zip(sigmas, sigmas[1:]):
        velocity = judge_at(sigma).velocity(held_in(sample, held), sigma, conditioning, guidance, mask)
        first = velocity if first is None else first
        sample = sample + (after - sigma) * velocity
    return first, held_in(sample, held)


def to_vae(sample):
    """From the sampling space to the VAE's own, as diffusers' pipelines do before they decode."""
    if sample.ndim == 4:
        return unscaled(sample, FAMILIES["flux"])
    channels = sample.shape[1]
    return unscaled_video(sample, {"latents_mean": MEANS[channels], "latents_std": DEVIATIONS[channels]})
