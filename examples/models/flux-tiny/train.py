"""Trains the bundled autoencoder: Flux's shape (16 latent channels, x8, no quant convolutions) at a fraction of its width.

Its norms have 8 groups, not 32: with one or two channels to a group a norm takes each channel's mean away, and the network
can't learn colours. So it is stored in diffusers' layout, whose config.json says so.

Versions: torch 2.11.0, diffusers 0.42.1, scikit-image 0.26.0, scikit-learn 1.9.1, numpy 2.4.6, pillow 13.0.0, safetensors 0.8.0.

    python train.py --out DIR --minutes 45

writes DIR/diffusion_pytorch_model.safetensors (f16) and DIR/config.json every few minutes and at the end. The picture
that the demo decodes, scikit-image's astronaut, is never trained on: it is only measured.
"""

import argparse
import math
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from PIL import Image, ImageDraw, ImageFont
from safetensors.torch import save_file
from skimage import data as skimage_data
from sklearn.datasets import load_sample_images

SEED = 20261121
WIDTHS = (32, 64, 96, 96)
LAYERS = 1
BATCH, CROP = 4, 96
# Flux's own: readers without a configuration assume it of every file of this layout, so the latents are made to match.
SCALING = 0.3611


def network():
    return AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=16, norm_num_groups=8, layers_per_block=LAYERS,
        block_out_channels=WIDTHS, down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        use_quant_conv=False, use_post_quant_conv=False, scaling_factor=SCALING, shift_factor=0.1159,
    )


def photographs():
    """Public-domain and CC-BY photographs as float arrays [H, W, 3] in 0…1."""
    pictures = [skimage_data.chelsea(), skimage_data.coffee(), skimage_data.rocket(), skimage_data.hubble_deep_field(),
                skimage_data.retina(), skimage_data.immunohistochemistry(), *load_sample_images().images]
    return [np.asarray(picture[..., :3], np.float32) / 255 for picture in pictures]


def generated(rng, size):
    """A picture of gradients, shapes, text or noise."""
    def colour():
        return tuple(rng.randrange(256) for _ in range(3))

    axis = np.linspace(0, 1, size, dtype=np.float32)
    ends = np.array([[colour(), colour()], [colour(), colour()]], np.float32) / 255
    x, y = axis[None, :, None], axis[:, None, None]
    base = (ends[0, 0] * (1 - x) + ends[0, 1] * x) * (1 - y) + (ends[1, 0] * (1 - x) + ends[1, 1] * x) * y
    picture = Image.fromarray((base * 255).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for _ in range(rng.randrange(12)):
        box = sorted(rng.randrange(size) for _ in range(2)), sorted(rng.randrange(size) for _ in range(2))
        box = (box[0][0], box[1][0], box[0][1] + 1, box[1][1] + 1)
        kind = rng.randrange(4)
        if kind == 0:
            draw.ellipse(box, fill=colour(), outline=colour(), width=rng.randrange(1, 4))
        elif kind == 1:
            draw.rectangle(box, fill=colour(), outline=colour(), width=rng.randrange(1, 4))
        elif kind == 2:
            draw.line(box, fill=colour(), width=rng.randrange(1, 6))
        else:
            text = "".join(chr(rng.randrange(33, 127)) for _ in range(rng.randrange(3, 12)))
            draw.text(box[:2], text, fill=colour(), font=ImageFont.load_default(rng.randrange(10, 40)))
    array = np.asarray(picture, np.float32) / 255
    if rng.random() < 0.3:
        noise = np.random.default_rng(rng.randrange(1 << 30)).normal(0, rng.random() * 0.15, array.shape)
        array = np.clip(array + noise, 0, 1).astype(np.float32)
    return array


def recoloured(rng, array):
    """Other colours than the few photographs have: channels mixed, contrast and brightness changed."""
    if rng.random() < 0.5:
        array = array[..., rng.sample(range(3), 3)]
    if rng.random() < 0.5:
        mix = np.eye(3, dtype=np.float32) + np.array([[rng.uniform(-0.25, 0.25) for _ in range(3)] for _ in range(3)], np.float32)
        array = array @ (mix / np.abs(mix).sum(0, keepdims=True))
    if rng.random() < 0.5:
        array = (array - 0.5) * rng.uniform(0.6, 1.3) + 0.5 + rng.uniform(-0.15, 0.15)
    return np.clip(array, 0, 1)


def crop(rng, pictures):
    if rng.random() < 0.2:
        array = generated(rng, CROP)
    else:
        picture = rng.choice(pictures)
        side = min(round(CROP * math.exp(rng.uniform(-0.3, 1.0))), *picture.shape[:2])
        top, left = rng.randrange(picture.shape[0] - side + 1), rng.randrange(picture.shape[1] - side + 1)
        array = picture[top:top + side, left:left + side]
        if side != CROP:
            image = Image.fromarray((array * 255).round().astype(np.uint8)).resize((CROP, CROP), Image.Resampling.LANCZOS)
            array = np.asarray(image, np.float32) / 255
        if rng.random() < 0.5:
            array = array[:, ::-1]
        if rng.random() < 0.2:
            array = np.rot90(array)
        array = recoloured(rng, array)
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).permute(2, 0, 1) * 2 - 1


def folded(model, deviation):
    """The state with the latents brought to a deviation of 1/SCALING: scale alone passes through padded convolutions."""
    state = {name: tensor.detach().clone().float() for name, tensor in model.state_dict().items()}
    scale = 1 / (SCALING * deviation)
    for part in ("weight", "bias"):
        tensor = state[f"encoder.conv_out.{part}"]
        tensor[:16] *= scale
        if part == "bias":
            tensor[16:] += 2 * math.log(scale)
    state["decoder.conv_in.weight"] /= scale
    return state


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates (Jordan et al., 2024) for the convolutions and linear layers: several times fewer
    steps than Adam here."""

    def __init__(self, parameters, lr, momentum=0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                buffer = state.setdefault("momentum", torch.zeros_like(parameter))
                buffer.lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(buffer, group["momentum"]).reshape(len(parameter), -1)
                update = orthogonal(update) * max(1, update.shape[0] / update.shape[1]) ** 0.5
                parameter.mul_(1 - group["lr"] * 0.01).add_(update.view_as(parameter), alpha=-group["lr"])


def orthogonal(matrix):
    """The nearest half-orthogonal matrix, by five Newton-Schulz steps."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x


def decibels(one, other):
    return (10 * torch.log10(4 / F.mse_loss(one, other))).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=45)
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    torch.set_num_threads(1)

    model = network().train()
    matrices = [p for name, p in model.named_parameters() if p.ndim >= 2 and "encoder.conv_in" not in name and "decoder.conv_out" not in name]
    chosen = set(map(id, matrices))
    others = [p for p in model.parameters() if id(p) not in chosen]
    optimizers = [(Muon(matrices, lr=0.02), 0.02), (torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.98), weight_decay=0), 3e-3)]
    pictures = photographs()
    held_out = torch.from_numpy(np.asarray(skimage_data.astronaut(), np.float32)).permute(2, 0, 1)[None] / 127.5 - 1
    start = saved = time.monotonic()
    seconds, step = arguments.minutes * 60, 0

    def save():
        model.eval()
        with torch.no_grad():
            deviation = model.encode(held_sample).latent_dist.mode().std().item()
            state = {name: tensor.half() for name, tensor in folded(model, deviation).items()}
            stored = network().eval()
            stored.load_state_dict({name: tensor.float() for name, tensor in state.items()})
            latent = stored.encode(held_out).latent_dist.mode()
            quality = decibels(stored.decode(latent).sample.clamp(-1, 1), held_out)
        save_file(state, arguments.out / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})
        stored.save_config(arguments.out)
        model.train()
        print(f"saved at step {step}: held-out {quality:.2f} dB, latent mean {latent.mean():.3f} std {latent.std():.3f}", flush=True)

    sample_rng = random.Random(1)
    held_sample = torch.stack([crop(sample_rng, pictures) for _ in range(16)])
    while (elapsed := time.monotonic() - start) < seconds:
        progress = elapsed / seconds
        for optimizer, rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * progress)) + 1e-6
        batch = torch.stack([crop(rng, pictures) for _ in range(BATCH)])
        posterior = model.encode(batch).latent_dist
        # A little noise keeps the latent space smooth, so that 16-bit decodes stay close.
        latent = posterior.mean + 0.02 * posterior.mean.detach().std() * torch.randn_like(posterior.mean)
        output = model.decode(latent).sample
        edges = sum(F.l1_loss(output.diff(dim=axis), batch.diff(dim=axis)) for axis in (2, 3))
        loss = F.l1_loss(output, batch) + F.mse_loss(output, batch) + 0.3 * edges + 1e-3 * posterior.mean.square().mean()
        model.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer, _ in optimizers:
            optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"{elapsed / 60:5.1f} min, step {step}, loss {loss.item():.4f}, {decibels(output, batch):.2f} dB", flush=True)
        if time.monotonic() - saved > 400:
            save()
            saved = time.monotonic()
    save()


if __name__ == "__main__":
    main()
