"""The network and the latent that every contestant gets, read and made by tests/judge/networks.py."""

import json
import sys
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from unfit import Unfit

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "judge"))
from networks import check_versions, random_latent, read_vae, vae_config  # noqa: E402

__all__ = ["ROOT", "Unfit", "check_versions", "generated_latent", "read_latent", "read_network", "weights_file"]

WEIGHTS = "diffusion_pytorch_model.safetensors"


def weights_file(path):
    """The file of weights at `path`, which may be the folder that diffusers saved them to."""
    path = Path(path)
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise Unfit(f"no weights at {file}: give a .safetensors file, or a folder that holds {WEIGHTS}")
    return file


def ldm_config(path):
    """The configuration of a decoder in LDM's layout, read off its tensors' shapes."""
    try:
        with safe_open(path, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}
    except SafetensorError as error:
        raise Unfit(f"{path.name} is not a whole .safetensors file: {error}") from None
    levels = 0
    while f"decoder.up.{levels}.block.0.conv1.weight" in shapes:
        levels += 1
    if not levels or "decoder.conv_in.weight" not in shapes:
        raise Unfit(f"{path.name} is neither in diffusers' layout with its config.json beside it, nor in LDM's or BFL's own")
    widths = [shapes[f"decoder.up.{level}.block.0.conv1.weight"][0] for level in range(levels)]
    blocks = sum(f"decoder.up.0.block.{block}.conv1.weight" in shapes for block in range(16))
    quant = "post_quant_conv.weight" in shapes
    config = vae_config("sd" if quant else "flux", widths, layers=blocks - 1, attention="decoder.mid.attn_1.q.weight" in shapes)
    return config | {"latent_channels": shapes["decoder.conv_in.weight"][1]}


def read_config(path):
    """diffusers' configuration of the network stored at `path`, and whether its tensors have LDM's names."""
    beside = path.parent / "config.json"
    if beside.is_file():
        stored = json.loads(beside.read_text())
        return {name: value for name, value in stored.items() if not name.startswith("_")}, False
    return ldm_config(path), True


def read_network(path, encoder=False):
    """diffusers' AutoencoderKL, in f32; without its encoder, which would count as memory that decoding doesn't need."""
    file = weights_file(path)
    config, ldm = read_config(file)
    vae = read_vae(file, config, ldm)
    if not encoder:
        vae.encoder = vae.quant_conv = None
    return vae


def scale_of(path):
    """Pixels to a latent's side."""
    config, _ = read_config(weights_file(path))
    return 2 ** (len(config["block_out_channels"]) - 1), config["latent_channels"]


def generated_latent(path, side):
    """[1, C, side / scale, side / scale], from a seed, for the network stored at `path`; `side` in pixels."""
    scale, channels = scale_of(path)
    if side < scale or side % scale:
        raise Unfit(f"size {side} does not fit this network: give a multiple of {scale}")
    return random_latent(f"peers-{side // scale}x{side // scale}", (1, channels, side // scale, side // scale))


def read_latent(path):
    """The one tensor of a .latent or .safetensors file as [N, C, H, W] in f32, in the network's own space."""
    path = Path(path)
    if not path.is_file():
        raise Unfit(f"no latent at {path}: give a .latent or .safetensors file")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise Unfit(f"{path.name} is not a whole .latent or .safetensors file: {error}") from None
    marked = "latent_format_version_0" in tensors
    found = [value for name, value in tensors.items() if name != "latent_format_version_0"]
    if len(found) != 1 or found[0].ndim != 4:
        raise Unfit(f"{path.name} does not hold exactly one tensor [N, C, H, W]: give a file that does")
    latent = found[0].to(torch.float32)
    # ComfyUI's own rule for files that it wrote before the marker.
    return latent / 0.18215 if path.suffix == ".latent" and not marked else latent
