"""Seeded random KL autoencoders, the names that files give their tensors, and diffusers as the judge of what they decode to.

Used by tests/fixtures/make_fixtures.py and tests/judge/real_size.py. Nothing here knows Tilewright.

Pinned, and asserted by `check_versions`: the references in the tree were made with exactly these.
"""

import json
import math
import re
import zlib
from pathlib import Path

import diffusers
import numpy as np
import safetensors
import torch
from diffusers import AutoencoderKL
from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint
from safetensors.torch import load_file, save_file

VERSIONS = {"torch": "2.11.0", "diffusers": "0.42.1", "safetensors": "0.8.0", "numpy": "2.4.6"}

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}

# Scaling and shift between a model's sampling space and its VAE's own, as published with each family.
FAMILIES = {
    "sd": {"latent_channels": 4, "quant_conv": True, "scaling_factor": 0.18215, "shift_factor": None},
    "sdxl": {"latent_channels": 4, "quant_conv": True, "scaling_factor": 0.13025, "shift_factor": None},
    "sd3": {"latent_channels": 16, "quant_conv": False, "scaling_factor": 1.5305, "shift_factor": 0.0609},
    "flux": {"latent_channels": 16, "quant_conv": False, "scaling_factor": 0.3611, "shift_factor": 0.1159},
}

# The names of the linear layers before diffusers 0.17, as in the first uploads of SD 1.5.
OLD_ATTENTION = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}


def check_versions():
    found = {"torch": torch.__version__.split("+")[0], "diffusers": diffusers.__version__,
             "safetensors": safetensors.__version__, "numpy": np.__version__}
    wrong = [f"{name} {found[name]}, not {version}" for name, version in VERSIONS.items() if found[name] != version]
    if wrong:
        raise SystemExit("the references are made with pinned versions; found " + "; ".join(wrong))


def plain_f32(threads):
    """No TF32, no reduced precision anywhere; deterministic algorithms."""
    diffusers.utils.logging.set_verbosity_error()
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def vae_config(family, widths, layers, groups=32, attention=True, sample_size=512):
    """The arguments of diffusers' AutoencoderKL for a family; `widths` from the picture's side inwards."""
    facts = FAMILIES[family]
    return {
        "down_block_types": ["DownEncoderBlock2D"] * len(widths),
        "up_block_types": ["UpDecoderBlock2D"] * len(widths),
        "block_out_channels": list(widths),
        "layers_per_block": layers,
        "latent_channels": facts["latent_channels"],
        "norm_num_groups": groups,
        "sample_size": sample_size,
        "scaling_factor": facts["scaling_factor"],
        "shift_factor": facts["shift_factor"],
        "use_quant_conv": facts["quant_conv"],
        "use_post_quant_conv": facts["quant_conv"],
        "mid_block_add_attention": attention,
    }


def of_decoder(name):
    return name.startswith(("decoder.", "post_quant_conv."))


def random_values(seed, name, shape):
    """f32 values that depend on the seed and the tensor's name alone."""
    rng = np.random.Generator(np.random.PCG64([zlib.crc32(seed.encode()), zlib.crc32(name.encode())]))
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))


def random_weight(seed, name, shape):
    """Norms and biases that are not ones and zeros, convolutions that keep activations near 1, attention with clear peaks."""
    values = random_values(seed, name, shape)
    if "norm" in name:
        # tanh bounds the scale to 0.5 … 1.5, so that no channel vanishes.
        return 1 + 0.5 * torch.tanh(values) if name.endswith("weight") else 0.2 * values
    if name.endswith("bias"):
        return 0.1 * values
    gain = 1.5
    if "quant_conv" in name or "conv_in" in name or "conv_shortcut" in name:
        gain = 1.0
    elif "decoder.conv_out" in name:
        gain = 0.8
    return values * (gain / math.sqrt(math.prod(shape[1:])))


def random_weights(config, seed, dtype, encoder):
    """A state dict in diffusers' names, rounded to the type that will be stored."""
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in AutoencoderKL(**config).state_dict().items()}
    return {name: random_weight(seed, name, shape).to(DTYPES[dtype])
            for name, shape in shapes.items() if encoder or of_decoder(name)}


def random_latent(seed, shape, spread=1.5):
    """[N, C, H, W] f32: noise around a centre of its own for each channel, on a slope, so that no two tiles look alike."""
    values = spread * random_values(seed, "latent", shape)
    centre = random_values(seed, "centre", (1, shape[1], 1, 1))
    slope = torch.linspace(-1, 1, shape[3]) + torch.linspace(-1, 1, shape[2])[:, None]
    return values + centre + slope


def unscaled(latent, config):
    """From the sampling space to the VAE's own, as diffusers' pipelines do before `decode`."""
    return latent / config["scaling_factor"] + (config["shift_factor"] or 0.0)


def ldm_name(name, levels):
    """diffusers' name of a tensor → that of LDM and BFL."""
    name = re.sub(r"up_blocks\.(\d+)\.", lambda m: f"up.{levels - 1 - int(m[1])}.", name)
    name = re.sub(r"down_blocks\.(\d+)\.", r"down.\1.", name)
    name = re.sub(r"mid_block\.resnets\.(\d+)\.", lambda m: f"mid.block_{int(m[1]) + 1}.", name)
    name = re.sub(r"\.resnets\.(\d+)\.", r".block.\1.", name)
    for new, old in [("upsamplers.0.", "upsample."), ("downsamplers.0.", "downsample."), ("conv_shortcut.", "nin_shortcut."),
                     ("conv_norm_out.", "norm_out."), ("mid_block.attentions.0.", "mid.attn_1."), (".group_norm.", ".norm."),
                     (".to_q.", ".q."), (".to_k.", ".k."), (".to_v.", ".v."), (".to_out.0.", ".proj_out.")]:
        name = name.replace(new, old)
    return name


def to_ldm(weights, config):
    """The weights under LDM's names; diffusers' own converter has to map them back onto exactly the same tensors."""
    levels = len(config["block_out_channels"])
    renamed = {}
    for name, value in weights.items():
        linear = ".attentions." in name and value.ndim == 2
        renamed[ldm_name(name, levels)] = value[:, :, None, None] if linear else value
    back = convert_ldm_vae_checkpoint(renamed, config)
    assert back.keys() == weights.keys(), back.keys() ^ weights.keys()
    assert all(torch.equal(back[name], value) for name, value in weights.items())
    return renamed


def to_old_attention(weights):
    renamed = {}
    for name, value in weights.items():
        for new, old in OLD_ATTENTION.items():
            if ".attentions." in name:
                name = name.replace(f".{new}.", f".{old}.")
        renamed[name] = value
    return renamed


def save(tensors, path, metadata=None):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in tensors.items()}, path, metadata=metadata)
    if len(metadata or {}) > 1:
        order_metadata(path, metadata)


def order_metadata(path, metadata):
    """safetensors writes the metadata in an order that changes from run to run; here it is always the one given."""
    file = path.read_bytes()
    length = int.from_bytes(file[:8], "little")
    header = json.loads(file[8:8 + length])
    header["__metadata__"] = metadata
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + file[8 + length:])


def read_vae(path, config, ldm):
    """diffusers' network, in f32, from a stored file in any layout, through diffusers' own converter."""
    stored = load_file(path)
    if ldm:
        stored = convert_ldm_vae_checkpoint(stored, config)
    vae = AutoencoderKL(**config).eval()
    vae._fix_state_dict_keys_on_load(stored)
    missing, unexpected = vae.load_state_dict({name: value.float() for name, value in stored.items()}, strict=False)
    assert not unexpected, unexpected
    assert not any(map(of_decoder, missing)), missing
    return vae


def decode(vae, latent):
    """[N, C, H, W] → [N, 3, H·s, W·s], unclamped, in the type of the network."""
    return vae.decode(latent.to(vae.dtype)).sample


def encode(vae, picture):
    """[N, 3, H, W] in −1…1 → the posterior's mean [N, C, H/s, W/s], not scaled, in the type of the network."""
    return vae.encode(picture.to(vae.dtype)).latent_dist.mode()
