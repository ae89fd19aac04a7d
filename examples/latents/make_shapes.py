"""Makes shapes.latent, the video latent that ships with the demo, and shapes.png, a sheet of the clip that it was made from.

    python make_shapes.py [DECODED.png]

Versions: as in ../models/wan-tiny/train.py. The clip is drawn, not filmed: 17 frames of 192x128, from a seed that the bundled video
autoencoder was not trained on. The file is ComfyUI's: `latent_tensor` [1, 16, 5, 16, 24] in the autoencoder's own space, the empty
marker `latent_format_version_0`, and the graph that would have saved it. Prints how well the clip survives the round trip in f32
and in bf16, and checks that diffusers reads the same network out of Wan2.1_VAE.safetensors by its names.

The sheets hold frames 0, 4, 8, 12 and 16, left to right; DECODED.png is the decoded one.
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from PIL import Image
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "models" / "wan-tiny"
sys.path.insert(0, str(HERE.parents[1] / "tests" / "judge"))
from video_networks import config_of, read_video_vae  # noqa: E402

SPEC = importlib.util.spec_from_file_location("wan_tiny", MODEL / "train.py")
train = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(train)

# What ComfyUI runs: nodes by number, inputs either values or [node, output].
PROMPT = {
    "1": {"class_type": "LoadVideo", "inputs": {"file": "shapes.mp4"}, "_meta": {"title": "Load Video"}},
    "2": {"class_type": "GetVideoComponents", "inputs": {"video": ["1", 0]}, "_meta": {"title": "Get Video Components"}},
    "3": {"class_type": "VAELoader", "inputs": {"vae_name": train.NAME}, "_meta": {"title": "Load VAE"}},
    "4": {"class_type": "VAEEncode", "inputs": {"pixels": ["2", 0], "vae": ["3", 0]}, "_meta": {"title": "VAE Encode"}},
    "5": {"class_type": "SaveLatent", "inputs": {"samples": ["4", 0], "filename_prefix": "latents/shapes"}, "_meta": {"title": "SaveLatent"}},
}


def sheet(clip):
    """Every fourth frame of [1, 3, T, H, W] in −1…1, side by side."""
    frames = ((clip[0, :, ::4].clamp(-1, 1) + 1) * 127.5).round().byte().permute(2, 1, 3, 0)
    return Image.fromarray(frames.reshape(frames.shape[0], -1, 3).contiguous().numpy())


@torch.no_grad()
def main():
    torch.set_num_threads(2)  # on one, single clips go through PyTorch's slowest convolution
    checkpoint = load_file(MODEL / train.NAME)
    assert all(tensor.dtype == torch.float16 for tensor in checkpoint.values())
    assert config_of({name: tuple(tensor.shape) for name, tensor in checkpoint.items()}) | {"decoder_base_dim": None} == train.CONFIG
    vae = read_video_vae(MODEL / train.NAME, train.CONFIG, original=True)
    clip = train.held_out()

    latent = vae.encode(clip).latent_dist.mode().contiguous()
    decoded = vae.decode(latent).sample
    rounded = ((decoded + 1) * 127.5).round() / 127.5 - 1
    brief = AutoencoderKLWan(**train.CONFIG).eval()
    brief.load_state_dict(vae.state_dict())
    brief = brief.to(torch.bfloat16).decode(latent.to(torch.bfloat16)).sample.float()
    alone = vae.decode(latent[:, :, -1:]).sample

    tensors = {"latent_tensor": latent, "latent_format_version_0": torch.tensor([])}
    save_file(tensors, HERE / "shapes.latent", metadata={"prompt": json.dumps(PROMPT)})
    sheet(clip).save(HERE / "shapes.png", optimize=True)
    mean, deviation = (torch.tensor(train.CONFIG[key]) for key in ("latents_mean", "latents_std"))
    print(f"latent {list(latent.shape)}; from the published per channel: mean off by {((latent.mean((0, 2, 3, 4)) - mean) / deviation).abs().max():.2f}"
          f" deviations at most, deviation {(latent.std((0, 2, 3, 4)) / deviation).min():.2f} to {(latent.std((0, 2, 3, 4)) / deviation).max():.2f} times")
    print(f"round trip, f32, 8 bits a channel: {train.decibels(rounded, clip):.2f} dB against the clip")
    print("by frame: " + " ".join(f"{train.decibels(rounded[:, :, frame], clip[:, :, frame]):.1f}" for frame in range(clip.shape[2])))
    print(f"bf16 decode: {train.decibels(brief, decoded):.2f} dB against f32, {train.decibels(brief, clip):.2f} dB against the clip")
    print(f"the last latent frame decoded alone, as if it were the first: {train.decibels(alone[:, :, 0], clip[:, :, -1]):.2f} dB")
    if len(sys.argv) > 1:
        sheet(decoded).save(sys.argv[1], optimize=True)


if __name__ == "__main__":
    main()
