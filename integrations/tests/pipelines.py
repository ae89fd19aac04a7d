"""Pipelines of diffusers with a few thousand random weights, as they are after they were saved and loaded again."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLQwenImage,
    AutoencoderKLWan,
    DDIMScheduler,
    DiffusionPipeline,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionPipeline,
    StableDiffusionXLPipeline,
    UniPCMultistepScheduler,
    UNet2DConditionModel,
    WanPipeline,
    WanTransformer3DModel,
)
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
    UMT5Config,
    UMT5EncoderModel,
)

#: Pixels of a side, unless a test takes others.
SIDE = 64

_LETTERS = string.ascii_lowercase + string.digits


def clip_tokenizer() -> CLIPTokenizer:
    """A tokenizer of single letters."""
    words = [*_LETTERS, *(f"{one}</w>" for one in _LETTERS), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer({word: index for index, word in enumerate(words)}, [], model_max_length=77)


def t5_tokenizer() -> T5TokenizerFast:
    """A tokenizer of single letters."""
    words = ["<pad>", "</s>", "<unk>", "\u2581", *_LETTERS]
    return T5TokenizerFast([(word, -float(index)) for index, word in enumerate(words)], extra_ids=0)


def qwen_tokenizer() -> Qwen2Tokenizer:
    """A tokenizer of single bytes."""
    # Bytes as byte-level tokenizers write them.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [chr(256 + index) for index in range(256 - len(printable))]
    words = [*(chr(one) for one in printable), *others, "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return Qwen2Tokenizer({word: index for index, word in enumerate(words)}, [])


def clip(projection: bool = False, width: int = 32) -> CLIPTextModel:
    """A text encoder of CLIP's kind."""
    config = CLIPTextConfig(
        hidden_size=width,
        intermediate_size=37,
        num_attention_heads=4,
        num_hidden_layers=3,
        projection_dim=width,
        vocab_size=128,
        bos_token_id=72,
        eos_token_id=73,
        pad_token_id=73,
    )
    return (CLIPTextModelWithProjection if projection else CLIPTextModel)(config)


def t5(width: int = 32) -> T5EncoderModel:
    """A text encoder of T5's kind."""
    config = T5Config(
        vocab_size=64, d_model=width, d_kv=8, d_ff=37, num_layers=3, num_heads=4, feed_forward_proj="gated-gelu"
    )
    return T5EncoderModel(config)


def picture_vae(channels: int, **more: Any) -> AutoencoderKL:
    """A VAE of pictures in the published structure."""
    return AutoencoderKL(
        block_out_channels=(32, 32, 64, 64),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        layers_per_block=2,
        latent_channels=channels,
        sample_size=SIDE,
        **more,
    )


def _flux() -> FluxPipeline:
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=picture_vae(
            16, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.1159, scaling_factor=0.3611
        ),
        text_encoder=clip(),
        tokenizer=clip_tokenizer(),
        text_encoder_2=t5(),
        tokenizer_2=t5_tokenizer(),
        transformer=FluxTransformer2DModel(
            in_channels=64,
            num_layers=2,
            num_single_layers=2,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            axes_dims_rope=(4, 4, 8),
        ),
    )


def _sdxl() -> StableDiffusionXLPipeline:
    return StableDiffusionXLPipeline(
        scheduler=EulerDiscreteScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear"),
        vae=picture_vae(4, scaling_factor=0.13025),
        text_encoder=clip(),
        tokenizer=clip_tokenizer(),
        text_encoder_2=clip(projection=True),
        tokenizer_2=clip_tokenizer(),
        unet=UNet2DConditionModel(
            block_out_channels=(32, 64),
            layers_per_block=2,
            sample_size=SIDE // 8,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=(2, 4),
            use_linear_projection=True,
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            transformer_layers_per_block=(1, 2),
            projection_class_embeddings_input_dim=80,
            cross_attention_dim=64,
        ),
        add_watermarker=False,
    )


def _sd3() -> StableDiffusion3Pipeline:
    return StableDiffusion3Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=picture_vae(
            16, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.0609, scaling_factor=1.5305
        ),
        text_encoder=clip(projection=True),
        tokenizer=clip_tokenizer(),
        text_encoder_2=clip(projection=True),
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=t5(64),
        tokenizer_3=t5_tokenizer(),
        transformer=SD3Transformer2DModel(
            sample_size=SIDE // 8,
            patch_size=2,
            in_channels=16,
            num_layers=3,
            attention_head_dim=8,
            num_attention_heads=4,
            joint_attention_dim=64,
            caption_projection_dim=32,
            pooled_projection_dim=64,
            out_channels=16,
        ),
    )


def _wan() -> WanPipeline:
    config = UMT5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=37, num_layers=3, num_heads=4)
    return WanPipeline(
        tokenizer=t5_tokenizer(),
        text_encoder=UMT5EncoderModel(config),
        vae=AutoencoderKLWan(base_dim=8, z_dim=16),
        scheduler=UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
        transformer=WanTransformer3DModel(
            num_attention_heads=2, attention_head_dim=12, text_dim=32, freq_dim=32, ffn_dim=48, num_layers=3
        ),
    )


def _qwen() -> QwenImagePipeline:
    text: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 37,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 300,
        "max_position_embeddings": 1024,
        "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
    }
    vision: dict[str, Any] = {
        "depth": 2,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 2,
        "out_hidden_size": 32,
        "fullatt_block_indexes": [1],
    }
    return QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=AutoencoderKLQwenImage(base_dim=8, z_dim=16),
        text_encoder=Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision)),
        tokenizer=qwen_tokenizer(),
        transformer=QwenImageTransformer2DModel(
            in_channels=64,
            out_channels=16,
            num_layers=3,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            axes_dims_rope=(4, 4, 8),
        ),
    )


def _sd15() -> StableDiffusionPipeline:
    return StableDiffusionPipeline(
        scheduler=DDIMScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, steps_offset=1
        ),
        vae=picture_vae(4),
        text_encoder=clip(),
        tokenizer=clip_tokenizer(),
        unet=UNet2DConditionModel(
            block_out_channels=(32, 64),
            layers_per_block=1,
            sample_size=SIDE // 8,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=2,
            cross_attention_dim=32,
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


MAKERS: dict[str, Callable[[], DiffusionPipeline]] = {
    "flux": _flux,
    "sdxl": _sdxl,
    "sd3": _sd3,
    "wan": _wan,
    "qwen": _qwen,
    "sd15": _sd15,
}

#: The arguments of each pipeline besides a prompt, a seed and the type of its output.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "flux": {"height": SIDE, "width": SIDE, "num_inference_steps": 2, "max_sequence_length": 16},
    "sdxl": {"height": SIDE, "width": SIDE, "num_inference_steps": 2, "negative_prompt": "blur"},
    "sd3": {"height": SIDE, "width": SIDE, "num_inference_steps": 2, "max_sequence_length": 16},
    "wan": {"height": SIDE, "width": SIDE, "num_frames": 9, "num_inference_steps": 2, "max_sequence_length": 16},
    "qwen": {"height": SIDE, "width": SIDE, "num_inference_steps": 2, "negative_prompt": "blur", "true_cfg_scale": 3.0},
    "sd15": {"height": SIDE, "width": SIDE, "num_inference_steps": 2},
}


def save(name: str, folder: Path) -> Path:
    """A pipeline of random weights in a folder."""
    torch.manual_seed(len(name) + ord(name[0]))
    pipe = MAKERS[name]()
    with torch.no_grad():
        for part in pipe.components.values():
            if isinstance(part, torch.nn.Module):
                _widen(part)
    pipe.save_pretrained(folder)
    return folder


def _widen(module: torch.nn.Module) -> None:
    """Fills what begins as zeros or ones, so that no layer's work is lost."""
    for parameter in module.parameters():
        if parameter.numel() > 1 and parameter.std() == 0:
            parameter.add_(torch.randn_like(parameter) * 0.02)


def load(folder: Path, **options: Any) -> Any:
    """The pipeline in a folder."""
    pipe = DiffusionPipeline.from_pretrained(folder, **options)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def run(name: str, pipe: Any, **more: Any) -> torch.Tensor:
    """The output of a pipeline for a prompt: values of pictures or frames, on the CPU."""
    asked: dict[str, Any] = {
        "prompt": "a cat at dawn",
        "generator": torch.Generator("cpu").manual_seed(7),
        "output_type": "pt",
        **ARGUMENTS[name],
        **more,
    }
    found = pipe(**asked)
    made = found.frames if hasattr(found, "frames") else found.images
    return torch.as_tensor(made).float().cpu()
