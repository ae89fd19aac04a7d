"""Seeded random WAN video autoencoders, the names that files give their tensors, and diffusers as the judge of what they decode to.

Used by tests/fixtures/make_video_fixtures.py, tests/judge/real_size_video.py and benches/peers/video.py. Nothing here knows Tilewright.
Sizes are given as diffusers' AutoencoderKLWan takes them: `base_dim` times `dim_mult` from the picture's side inwards.
"""

import inspect
import math
import re

import torch
from diffusers import AutoencoderKLQwenImage, AutoencoderKLWan
from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers
from safetensors.torch import load_file

from networks import DTYPES, of_decoder, random_values

CLASSES = {"AutoencoderKLWan": AutoencoderKLWan, "AutoencoderKLQwenImage": AutoencoderKLQwenImage}

# What a latent is divided by and shifted with on its way to a sampler, per channel, as published with each model:
# WAN 2.1's are diffusers' defaults, WAN 2.2's are in the config.json of its diffusers repository and in its own code.
DEFAULTS = inspect.signature(AutoencoderKLWan.__init__).parameters
MEANS = {
    16: list(DEFAULTS["latents_mean"].default),
    48: [-0.2289, -0.0052, -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813, 0.0891, 0.1570, -0.0098, 0.0375, -0.1825,
         -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502, -0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.1230,
         -0.0313, -0.1649, 0.0117, 0.0723, -0.2839, -0.2083, -0.0520, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548, -0.1681, -0.0667],
}
DEVIATIONS = {
    16: list(DEFAULTS["latents_std"].default),
    48: [0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.4990, 0.4818, 0.5013, 0.8158, 1.0344, 0.5894, 1.0901, 0.6885, 0.6165, 0.8454, 0.4978,
         0.5759, 0.3523, 0.7135, 0.6804, 0.5833, 1.4146, 0.8986, 0.5659, 0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093,
         0.5709, 0.6065, 0.6415, 0.4944, 0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.0600, 0.3943, 0.5537, 0.5444, 0.4089, 0.7468, 0.7744],
}

# What the original names are for what diffusers calls otherwise; the blocks' numbers aside.
RESIDUAL = {"norm1": "residual.0", "conv1": "residual.2", "norm2": "residual.3", "conv2": "residual.6", "conv_shortcut": "shortcut"}
MIDDLE = {"resnets.0": "0", "attentions.0": "1", "resnets.1": "2"}
ENDS = {"quant_conv": "conv1", "post_quant_conv": "conv2", "conv_in": "conv1", "norm_out": "head.0", "conv_out": "head.2"}


def wan_config(version, z, base, mult=(1, 2, 4, 4), blocks=2, temporal=None, decoder_base=None, means=None, deviations=None):
    """The arguments of diffusers' AutoencoderKLWan. `temporal` says which of the encoder's halvings are in time too."""
    temporal = [False, True, True][:len(mult) - 1] if temporal is None else list(temporal)
    newer = version == "2.2"
    patch = 2 if newer else 1
    return {
        "base_dim": base, "decoder_base_dim": decoder_base, "z_dim": z, "dim_mult": list(mult), "num_res_blocks": blocks,
        "attn_scales": [], "temperal_downsample": temporal, "dropout": 0.0,
        "latents_mean": means or MEANS.get(z, [0.0] * z), "latents_std": deviations or DEVIATIONS.get(z, [1.0] * z),
        "is_residual": newer, "in_channels": 3 * patch**2, "out_channels": 3 * patch**2, "patch_size": patch if newer else None,
        "scale_factor_temporal": 2 ** sum(temporal), "scale_factor_spatial": patch * 2 ** (len(mult) - 1),
    }


def of_class(name, config):
    """The configuration without what the class does not take."""
    known = inspect.signature(CLASSES[name].__init__).parameters
    return {key: value for key, value in config.items() if key in known}


def random_weight(seed, name, shape):
    """Norms and biases that are not ones and zeros, convolutions that keep activations near 1, and a last one that keeps all but
    a few values within the −1…1 that diffusers clamps to."""
    values = random_values(seed, name, shape)
    if name.endswith("gamma"):
        # tanh bounds the scale to 0.5 … 1.5, so that no channel vanishes.
        return 1 + 0.5 * torch.tanh(values)
    if name.endswith("bias"):
        return 0.1 * values
    gain = 1.5
    if re.search(r"quant_conv|conv_in|conv_shortcut|resample|time_conv", name):
        gain = 1.0
    elif "decoder.conv_out" in name:
        gain = 0.42
    return values * (gain / math.sqrt(math.prod(shape[1:])))


def shapes(config, kind="AutoencoderKLWan"):
    with torch.device("meta"):
        return {name: tuple(value.shape) for name, value in CLASSES[kind](**of_class(kind, config)).state_dict().items()}


def random_video_weights(config, seed, dtype, encoder, kind="AutoencoderKLWan"):
    """A state dict in diffusers' names, rounded to the type that will be stored."""
    return {name: random_weight(seed, name, shape).to(DTYPES[dtype])
            for name, shape in shapes(config, kind).items() if encoder or of_decoder(name)}


def random_video_latent(seed, shape, spread=1.5):
    """[N, C, T, h, w] f32: noise around a centre of its own for each channel, on a slope in space and in time."""
    values = spread * random_values(seed, "latent", shape)
    centre = random_values(seed, "centre", (1, shape[1], 1, 1, 1))
    slope = torch.linspace(-1, 1, shape[4]) + torch.linspace(-1, 1, shape[3])[:, None]
    return values + centre + slope + 0.2 * torch.arange(shape[2])[:, None, None]


def random_clip(seed, shape):
    """[N, 3, T, H, W] f32 in −1…1."""
    return torch.tanh(0.5 * random_video_latent(seed, shape, spread=1.0))


def unscaled_video(latent, config):
    """From the sampling space to the VAE's own, as diffusers' pipelines do before `decode`."""
    mean, deviation = (torch.tensor(config[key]).view(1, -1, 1, 1, 1) for key in ("latents_mean", "latents_std"))
    return latent * deviation + mean


def original_name(name, config):
    """diffusers' name of a tensor → that of WAN's own files.

    WAN 2.1 numbers its layers through; WAN 2.2 numbers blocks, and layers within them.
    """
    side, *rest = name.split(".")
    if side in ENDS:
        return ".".join([ENDS[side], *rest])
    rest = ".".join(rest)
    if rest.startswith("mid_block."):
        _, kind, number, *rest = rest.split(".")
        part = MIDDLE[f"{kind}.{number}"]
        rest = [RESIDUAL.get(rest[0], rest[0]), *rest[1:]]
        return ".".join([side, "middle", part, *rest])
    if not rest.startswith(("down_blocks.", "up_blocks.")):
        end, *rest = rest.split(".")
        return ".".join([side, ENDS[end], *rest])

    block, rest = re.fullmatch(r"(?:down|up)_blocks\.(\d+)\.(.*)", rest).groups()
    list_name = "downsamples" if side == "encoder" else "upsamples"
    layers = config["num_res_blocks"] + (side == "decoder")
    if side == "encoder" and not config["is_residual"]:
        # diffusers leaves this list as it is.
        first, *rest = rest.split(".")
        return ".".join([side, list_name, block, RESIDUAL.get(first, first), *rest])
    if match := re.fullmatch(r"resnets\.(\d+)\.(\w+)\.(.*)", rest):
        layer, rest = int(match[1]), f"{RESIDUAL[match[2]]}.{match[3]}"
    else:
        layer, rest = layers, re.sub(r"^(?:downsampler|upsamplers\.0|upsampler)\.", "", rest)
    if config["is_residual"]:
        return f"{side}.{list_name}.{block}.{list_name}.{layer}.{rest}"
    return f"{side}.{list_name}.{int(block) * (layers + 1) + layer}.{rest}"


def to_original(weights, config):
    """The weights under WAN's names, each under one of its own; where diffusers' converter knows the layout (WAN 2.1, four levels
    of two blocks), it has to map them back onto exactly the same tensors."""
    renamed = {original_name(name, config): value for name, value in weights.items()}
    assert len(renamed) == len(weights)
    if converter_knows(config):
        back = convert_wan_vae_to_diffusers(dict(renamed))
        assert back.keys() == weights.keys(), back.keys() ^ weights.keys()
        assert all(torch.equal(back[name], value) for name, value in weights.items())
    return renamed


def converter_knows(config):
    # Its one shortcut in the decoder is that of the second block.
    return not config["is_residual"] and config["dim_mult"] == [1, 2, 4, 4] and config["num_res_blocks"] == 2


def read_video_vae(path, config, original, kind="AutoencoderKLWan"):
    """diffusers' network, in f32, from a stored file in either layout."""
    stored = load_file(path)
    vae = CLASSES[kind](**of_class(kind, config)).eval()
    if original:
        stored = {name: stored[original_name(name, config)] for name in vae.state_dict() if original_name(name, config) in stored}
    missing, unexpected = vae.load_state_dict({name: value.float() for name, value in stored.items()}, strict=False)
    assert not unexpected, unexpected
    assert not any(map(of_decoder, missing)), missing
    return vae


def decode_video(vae, latent):
    """[N, C, T, h, w] → [N, 3, 1 + (T − 1)·4, h·s, w·s], clamped to −1…1, in the type of the network."""
    return vae.decode(latent.to(vae.dtype)).sample


def encode_video(vae, clip):
    """[N, 3, T, H, W] → the posterior's mean [N, C, 1 + (T − 1)/4, H/s, W/s], not scaled, in the type of the network."""
    return vae.encode(clip.to(vae.dtype)).latent_dist.mode()


def config_of(tensors):
    """The arguments of AutoencoderKLWan for a file in WAN's own layout, read off its tensors' shapes (name → shape); the encoder,
    where the file has none, comes as wide as the decoder."""
    newer = "decoder.upsamples.0.upsamples.0.residual.2.weight" in tensors
    # Where each layer stands: (block, layer) in WAN 2.2, one number in WAN 2.1.
    place = re.compile(r"decoder\.upsamples\.(\d+)\.upsamples\.(\d+)\." if newer else r"decoder\.upsamples\.(\d+)\.()")
    found = {}
    for name, shape in tensors.items():
        if match := place.match(name):
            found.setdefault(tuple(int(part or 0) for part in match.groups()), {})[name[match.end():]] = shape
    layers, blocks = [], [[]]
    for _, layer in sorted(found.items()):
        blocks[-1].append(layer)
        if "resample.1.weight" in layer:
            blocks.append([])
    for block in blocks:
        layers.append(sum("residual.2.weight" in layer for layer in block))
    assert len(set(layers)) == 1, f"up blocks of {layers} residual layers"
    widths = [block[0]["residual.2.weight"][0] for block in reversed(blocks)]
    temporal = [any("time_conv.weight" in layer for layer in block) for block in reversed(blocks[:-1])]
    encoder = tensors.get("encoder.conv1.weight")
    return wan_config("2.2" if newer else "2.1", tensors["conv2.weight"][0], encoder[0] if encoder else widths[0],
                      [width // widths[0] for width in widths], layers[0] - 1, temporal, widths[0])
