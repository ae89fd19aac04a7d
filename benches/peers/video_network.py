"""The video network and the latent that every contestant of video.py gets, read and made by tests/judge/video_networks.py."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from network import Unfit, weights_file  # also puts tests/judge on the path
from video_networks import config_of, random_video_latent, read_video_vae


def read_config(path):
    """diffusers' configuration of the network stored at `path`, and whether its tensors have WAN's own names."""
    beside = path.parent / "config.json"
    if beside.is_file():
        stored = json.loads(beside.read_text())
        return {name: value for name, value in stored.items() if not name.startswith("_")}, False
    try:
        with safe_open(path, "pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    except SafetensorError as error:
        raise Unfit(f"{path.name} is not a whole .safetensors file: {error}") from None
    if "decoder.middle.0.residual.0.gamma" not in shapes:
        raise Unfit(f"{path.name} is neither in diffusers' layout with its config.json beside it, nor in WAN's own")
    return config_of(shapes), True


def read_network(path):
    """diffusers' AutoencoderKLWan, in f32; without its encoder, which would count as memory that decoding doesn't need."""
    file = weights_file(path)
    config, original = read_config(file)
    vae = read_video_vae(file, config, original)
    vae.encoder = vae.quant_conv = None
    return vae.requires_grad_(False)


def generated_latent(path, frames, height, width):
    """[1, C, T, h, w] from a seed, for the network stored at `path`; sizes are those of the output."""
    config, _ = read_config(weights_file(path))
    scale, rate = config["scale_factor_spatial"], config["scale_factor_temporal"]
    if height % scale or width % scale or (frames - 1) % rate:
        raise Unfit(f"{frames} frames of {width}x{height} don't fit this network: give multiples of {scale}, and 1 + a multiple of {rate} frames")
    shape = (1, config["z_dim"], 1 + (frames - 1) // rate, height // scale, width // scale)
    return random_video_latent(f"peers-{shape}", shape)


def read_latent(path):
    """The one tensor of a .latent or .safetensors file as [N, C, T, h, w] in f32, in the network's own space."""
    path = Path(path)
    if not path.is_file():
        raise Unfit(f"no latent at {path}: give a .latent or .safetensors file")
    try:
        found = [value for name, value in load_file(path).items() if name != "latent_format_version_0"]
    except SafetensorError as error:
        raise Unfit(f"{path.name} is not a whole .latent or .safetensors file: {error}") from None
    if len(found) != 1 or found[0].ndim not in (4, 5):
        raise Unfit(f"{path.name} does not hold exactly one tensor [N, C, T, h, w] or [N, C, h, w]: give a file that does")
    latent = found[0].to(torch.float32)
    return latent if latent.ndim == 5 else latent[:, :, None]
