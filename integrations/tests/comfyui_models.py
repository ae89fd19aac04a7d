"""Models of real sizes with weights from a seed, in single files as ComfyUI loads them.

Run as a program, it writes one: `comfyui_models.py KIND FILE`. It imports ComfyUI for the shapes, which tests do not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: Width, layers and the text's width of the small transformer that samplers run.
WIDTH, LAYERS, TEXT_WIDTH = 256, 2, 4096


def make(kind: str, file: Path) -> Path:
    """A model's file, made unless it is there.

    Args:
        kind: `sdxl`, `flux`, `wan`, `wan-22` (VAEs); `transformer`, `expert` (of WAN, small), `flux-transformer` (a
            block of each kind, at full width); `clip-l`, `t5xxl`, `umt5xxl` (text encoders); `checkpoint` or `lora`.
        file: the file.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        subprocess.run([sys.executable, __file__, kind, str(part)], check=True, timeout=900)
        part.rename(file)
    return file


def _picture_vae(channels: int, *, is_quantized: bool) -> torch.nn.Module:
    from comfy.ldm.models.autoencoder import AutoencoderKL, AutoencodingEngine

    config = {
        "double_z": True, "z_channels": channels, "resolution": 256, "in_channels": 3, "out_ch": 3, "ch": 128,
        "ch_mult": [1, 2, 4, 4], "num_res_blocks": 2, "attn_resolutions": [], "dropout": 0.0,
    }  # fmt: skip
    if is_quantized:
        return AutoencoderKL(ddconfig=config, embed_dim=channels)
    of = "comfy.ldm.modules.diffusionmodules.model"
    return AutoencodingEngine(
        regularizer_config={"target": "comfy.ldm.models.autoencoder.DiagonalGaussianRegularizer"},
        encoder_config={"target": f"{of}.Encoder", "params": config},
        decoder_config={"target": f"{of}.Decoder", "params": config},
    )


def _wan_vae() -> torch.nn.Module:
    from comfy.ldm.wan.vae import WanVAE

    return WanVAE(
        dim=96, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
        temperal_downsample=[False, True, True], image_channels=3, conv_out_channels=3, dropout=0.0,
    )  # fmt: skip


def _wan_22_vae() -> torch.nn.Module:
    from comfy.ldm.wan.vae2_2 import WanVAE

    return WanVAE(
        dim=160, z_dim=48, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
        temperal_downsample=[False, True, True], dropout=0.0,
    )  # fmt: skip


def _transformer() -> torch.nn.Module:
    import comfy.ops
    from comfy.ldm.wan.model import WanModel

    return WanModel(
        model_type="t2v", patch_size=(1, 2, 2), text_len=512, in_dim=16, dim=WIDTH, ffn_dim=2 * WIDTH, freq_dim=256,
        text_dim=TEXT_WIDTH, out_dim=16, num_heads=WIDTH // 128, num_layers=LAYERS, qk_norm=True, cross_attn_norm=True,
        eps=1e-6, operations=comfy.ops.disable_weight_init,
    )  # fmt: skip


def _flux_transformer() -> torch.nn.Module:
    import comfy.ops
    from comfy.ldm.flux.model import Flux

    return Flux(
        in_channels=16, out_channels=16, vec_in_dim=768, context_in_dim=TEXT_WIDTH, hidden_size=3072, mlp_ratio=4.0,
        num_heads=24, depth=1, depth_single_blocks=1, axes_dim=[16, 56, 56], theta=10000, patch_size=2, qkv_bias=True,
        guidance_embed=True, txt_ids_dims=[], device="meta", operations=comfy.ops.disable_weight_init,
    )  # fmt: skip


def _text_encoder(kind: str, config: str) -> torch.nn.Module:
    """A text encoder of ComfyUI's, by the file of its configuration below the folder `comfy`."""
    import comfy
    import comfy.ops
    from comfy.clip_model import CLIPTextModel
    from comfy.text_encoders.t5 import T5

    of = {"clip": CLIPTextModel, "t5": T5}[kind]
    sizes = json.loads((Path(next(iter(comfy.__path__))) / config).read_text())
    return of(sizes, None, "meta", comfy.ops.disable_weight_init)


def _vocabulary() -> torch.Tensor:
    """A sentencepiece vocabulary of a few words, with UMT5's settings, as a text encoder's file has it."""
    import io

    import sentencepiece
    import torch

    words = "a red blue green small large circle square boat cat on under beside the sea sky moves slowly".split()
    texts = (" ".join(words[at:] + words[:at]) for at in range(len(words)))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts, model_writer=model, vocab_size=320, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
        normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return torch.frombuffer(bytearray(model.getvalue()), dtype=torch.uint8)


def _values(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Values by which signals keep their size from layer to layer."""
    import torch

    noise = torch.randn(shape, generator=generator)
    if name.endswith("bias"):
        return noise * 0.02
    if "gamma" in name or "norm" in name:
        return 1 + noise * 0.1
    if len(shape) < 2 or "modulation" in name:
        return noise * 0.1
    fan_in = 1
    for size in shape[1:]:
        fan_in *= size
    # T5 does not divide attention's products, so that its queries are smaller.
    return noise * fan_in**-0.5 * (0.125 if name.endswith("SelfAttention.q.weight") else 1.0)


def _state(module: torch.nn.Module, seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return {
        name: _values(name, tuple(value.shape), generator).to(dtype)
        for name, value in module.state_dict().items()
    }


def _checkpoint() -> dict[str, torch.Tensor]:
    import torch

    transformer = _state(_transformer(), 5, torch.float32)
    vae = _state(_wan_vae(), 3, torch.float16)
    return {
        **{f"model.diffusion_model.{name}": value for name, value in transformer.items()},
        **{f"vae.{name}": value for name, value in vae.items()},
    }


def _lora() -> dict[str, torch.Tensor]:
    import torch

    generator = torch.Generator().manual_seed(7)
    found: dict[str, torch.Tensor] = {}
    for block in range(LAYERS):
        for layer in ("q", "k", "v", "o"):
            name = f"diffusion_model.blocks.{block}.self_attn.{layer}"
            found[f"{name}.lora_A.weight"] = torch.randn(4, WIDTH, generator=generator) * 0.05
            found[f"{name}.lora_B.weight"] = torch.randn(WIDTH, 4, generator=generator) * 0.05
    return found


def _kinds() -> dict[str, Callable[[], dict[str, Any]]]:
    import torch

    half, full, packed = torch.float16, torch.float32, torch.float8_e4m3fn
    return {
        "sdxl": lambda: _state(_picture_vae(4, is_quantized=True), 1, half),
        "flux": lambda: _state(_picture_vae(16, is_quantized=False), 2, half),
        "wan": lambda: _state(_wan_vae(), 3, half),
        "wan-22": lambda: _state(_wan_22_vae(), 4, half),
        "transformer": lambda: _state(_transformer(), 5, full),
        "expert": lambda: _state(_transformer(), 6, full),
        "flux-transformer": lambda: _state(_flux_transformer(), 8, torch.bfloat16),
        "clip-l": lambda: _state(_text_encoder("clip", "sd1_clip_config.json"), 9, half),
        "t5xxl": lambda: _state(_text_encoder("t5", "text_encoders/t5_config_xxl.json"), 10, packed),
        "umt5xxl": lambda: {
            **_state(_text_encoder("t5", "text_encoders/umt5_config_xxl.json"), 11, packed),
            "spiece_model": _vocabulary(),
        },
        "checkpoint": _checkpoint,
        "lora": _lora,
    }


def main() -> None:
    """Writes a model."""
    kind, file = sys.argv[1:]
    sys.path.insert(0, os.environ["TILEWRIGHT_COMFYUI"])
    from comfy.cli_args import args

    args.cpu = True
    from safetensors.torch import save_file

    save_file({name: value.contiguous() for name, value in _kinds()[kind]().items()}, file)


if __name__ == "__main__":
    main()
