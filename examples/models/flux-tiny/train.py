"""Trains the bundled autoencoder: Flux's layout (16 latent channels, x8, no quant convolutions) at a fraction of its width.

Versions: torch 2.11.0, diffusers 0.42.1, scikit-image 0.26.0, scikit-learn 1.9.1, numpy 2.4.6, pillow 13.0.0, safetensors 0.8.0.

    python train.py --out DIR --minutes 30

writes DIR/ae.safetensors (f16, the original names, as in Flux's ae.safetensors) every few minutes and at the end. The picture
that the demo decodes, scikit-image's astronaut, is never trained on: it is only measured.

Two things make half an hour on a processor enough. The encoder starts as the principal components of 8x8 patches, laid into
its own convolutions, with every residual block contributing nothing; and one channel of each normalised group starts as a
constant, so that the group norms start close to a fixed scale instead of removing brightness and contrast.
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
WIDTHS = (64, 64, 96, 96)
GROUPS = 32
BATCH, CROP = 4, 96
MUON_RATE, ADAM_RATE, ENCODER_RATE = 0.01, 2e-3, 3e-5
# Flux's own: readers without a configuration assume it of every file of this layout, so the latents are made to match.
SCALING, SHIFT = 0.3611, 0.1159
CONSTANT = 3.0  # what the constant channels hold
NOISE = 0.02  # the posterior's deviation at the start, as a share of the latents' own


def network():
    return AutoencoderKL(
        in_channels=3, out_channels=3, latent_channels=16, norm_num_groups=GROUPS, layers_per_block=1,
        block_out_channels=WIDTHS, down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        use_quant_conv=False, use_post_quant_conv=False, scaling_factor=SCALING, shift_factor=SHIFT,
    )


# ---- pictures ----------------------------------------------------------------------------------------------------------------


def photographs():
    """Photographs that may be used freely, as arrays [H, W, 3] in 0...1; the coloured ones twice, to be drawn more often."""
    coloured = [skimage_data.chelsea(), skimage_data.coffee(), skimage_data.rocket(), skimage_data.hubble_deep_field(),
                skimage_data.retina(), skimage_data.immunohistochemistry(), *load_sample_images().images]
    grey = [skimage_data.camera(), skimage_data.brick(), skimage_data.grass(), skimage_data.gravel(), skimage_data.coins()]
    pictures = 2 * coloured + [np.repeat(picture[..., None], 3, axis=2) for picture in grey]
    return [np.asarray(picture[..., :3], np.float32) / 255 for picture in pictures]


def generated(rng, size):
    """A picture of gradients, shapes, text and noise."""
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
        noise = np.random.default_rng(rng.randrange(1 << 30)).normal(0, rng.random() * 0.1, array.shape)
        array = np.clip(array + noise, 0, 1).astype(np.float32)
    return array


def recoloured(rng, array):
    """Other colours than the few photographs have: channels mixed, contrast and brightness changed."""
    if rng.random() < 0.5:
        array = array[..., rng.sample(range(3), 3)]
    if rng.random() < 0.5:
        mix = np.eye(3) + np.array([[rng.uniform(-0.35, 0.35) for _ in range(3)] for _ in range(3)])
        array = array @ (mix / np.abs(mix).sum(0, keepdims=True)).astype(np.float32)
    if rng.random() < 0.5:
        array = (array - 0.5) * rng.uniform(0.7, 1.5) + 0.5 + rng.uniform(-0.15, 0.15)
    return np.clip(array, 0, 1)


def crop(rng, pictures, size):
    if rng.random() < 0.15:
        array = generated(rng, size)
    else:
        picture = rng.choice(pictures)
        side = min(round(size * math.exp(rng.uniform(-0.3, 1.0))), *picture.shape[:2])
        top, left = rng.randrange(picture.shape[0] - side + 1), rng.randrange(picture.shape[1] - side + 1)
        array = picture[top:top + side, left:left + side]
        if side != size:
            image = Image.fromarray((array * 255).round().astype(np.uint8)).resize((size, size), Image.Resampling.LANCZOS)
            array = np.asarray(image, np.float32) / 255
        if rng.random() < 0.5:
            array = array[:, ::-1]
        if rng.random() < 0.2:
            array = np.rot90(array)
        array = recoloured(rng, array)
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)).permute(2, 0, 1) * 2 - 1


def crops(rng, pictures, count, size):
    return torch.stack([crop(rng, pictures, size) for _ in range(count)])


# ---- where training starts ---------------------------------------------------------------------------------------------------


def principal_components(pictures):
    """The first 16 components of 8x8 patches, whitened to a deviation of 1: weights [16, 3, 8, 8] and offsets [16]."""
    patches = F.unfold(crops(random.Random(SEED + 1), pictures, 400, CROP), 8, stride=8).transpose(1, 2).reshape(-1, 192).double()
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh((patches - mean).T @ (patches - mean) / len(patches))
    weights = (vectors[:, -16:] / values[-16:].sqrt()).flip(1).T
    return weights.reshape(16, 3, 8, 8).float(), -(weights @ mean).float()


@torch.no_grad()
def lay_in_components(encoder, weights, offsets):
    """Makes the encoder compute the components exactly: pixels are gathered into channels by the strided convolutions, the
    last of which projects, and pairs +z, -z beside a constant pass through the group norm and SiLU unchanged."""
    def only(conv, rows, columns=None):
        conv.weight[:rows] = 0
        conv.bias[:rows] = 0

    only(encoder.conv_in, 3)
    for channel in range(3):
        encoder.conv_in.weight[channel, channel, 1, 1] = 1
    channels = 3
    for level in range(2):
        conv = encoder.down_blocks[level].downsamplers[0].conv
        only(conv, 4 * channels)
        for y in range(2):
            for x in range(2):
                for channel in range(channels):
                    conv.weight[(2 * y + x) * channels + channel, channel, y, x] = 1
        channels *= 4
    shortcut = encoder.down_blocks[2].resnets[0].conv_shortcut
    only(shortcut, channels)
    for channel in range(channels):
        shortcut.weight[channel, channel, 0, 0] = 1

    small, size = 0.25, WIDTHS[-1] // GROUPS
    conv = encoder.down_blocks[2].downsamplers[0].conv
    only(conv, WIDTHS[-1])
    # [16, c, y2, y1, y0, x2, x1, x0], bits of the row and column from coarse to fine, to taps by gathered channels.
    split = weights.reshape(16, 3, 2, 2, 2, 2, 2, 2).permute(0, 3, 6, 4, 7, 1, 2, 5).reshape(16, 48, 2, 2)
    for component in range(16):
        first = component * size
        conv.weight[first, :48, :2, :2] = small * split[component]
        conv.weight[first + 1, :48, :2, :2] = -small * split[component]
        conv.bias[first], conv.bias[first + 1] = small * offsets[component], -small * offsets[component]
        conv.bias[first + 2] = CONSTANT
    spread = math.sqrt(2 * CONSTANT**2 / 9 + 2 * small**2 / 3)
    norm, last = encoder.conv_norm_out, encoder.conv_out
    norm.weight.fill_(1)
    norm.bias.fill_(CONSTANT / 3 / spread)
    only(last, 32)
    for component in range(16):
        gain = spread / small / SCALING
        last.weight[component, component * size, 1, 1] = gain
        last.weight[component, component * size + 1, 1, 1] = -gain
    last.bias[:16] = SHIFT
    last.bias[16:] = 2 * math.log(NOISE / SCALING)


@torch.no_grad()
def start(model, pictures):
    for name, module in model.named_modules():
        if name.endswith("conv2") or name.endswith("to_out.0"):
            module.weight.zero_()
            module.bias.zero_()
    lay_in_components(model.encoder, *principal_components(pictures))
    trunk = [model.decoder.conv_in, *(block.upsamplers[0].conv for block in model.decoder.up_blocks[:3]),
             model.decoder.up_blocks[2].resnets[0].conv_shortcut]
    for conv in trunk:
        width = conv.out_channels
        constant = torch.arange(width) % (width // GROUPS) == width // GROUPS - 1
        if conv.in_channels == width:
            conv.weight *= 0.5
            conv.weight[:, :, 1, 1] += torch.eye(width)
        else:
            torch.nn.init.orthogonal_(conv.weight)
        conv.weight[constant] = 0
        conv.bias[:] = CONSTANT * constant
        if conv.in_channels != 16:
            conv.weight[:, torch.arange(conv.in_channels) % (conv.in_channels // GROUPS) == conv.in_channels // GROUPS - 1] = 0


# ---- what is written ---------------------------------------------------------------------------------------------------------


def original_names(state, blocks=4):
    """diffusers' names to those of Flux's ae.safetensors; linear layers become the 1x1 convolutions that they were."""
    renamed = {}
    for name, tensor in state.items():
        parts = name.split(".")
        if parts[1] in ("down_blocks", "up_blocks"):
            down = parts[1] == "down_blocks"
            block = int(parts[2]) if down else blocks - 1 - int(parts[2])
            kind = {"resnets": f"block.{parts[4]}", "downsamplers": "downsample", "upsamplers": "upsample"}[parts[3]]
            rest = [part.replace("conv_shortcut", "nin_shortcut") for part in parts[5:]]
            parts = [parts[0], "down" if down else "up", str(block), kind, *rest]
        elif parts[1] == "mid_block":
            if parts[2] == "resnets":
                parts = [parts[0], "mid", f"block_{int(parts[3]) + 1}", *parts[4:]]
            else:
                short = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out": "proj_out"}[parts[4]]
                parts = [parts[0], "mid", "attn_1", short, parts[-1]]
                if short != "norm" and parts[-1] == "weight":
                    tensor = tensor[:, :, None, None]
        elif parts[1] == "conv_norm_out":
            parts[1] = "norm_out"
        renamed[".".join(parts)] = tensor.contiguous()
    return renamed


@torch.no_grad()
def folded(model, sample):
    """The state with the latents of a sample brought to Flux's mean and deviation. The scale passes through the decoder's padded
    convolution exactly; what is left of the shift is folded into its offset, exact everywhere but in the outermost row."""
    latent = model.encode(sample).latent_dist.mode()
    state = {name: tensor.detach().clone().float() for name, tensor in model.state_dict().items()}
    scale = 1 / (SCALING * latent.std().item())
    shift = SHIFT - scale * latent.mean().item()
    state["encoder.conv_out.weight"][:16] *= scale
    state["encoder.conv_out.bias"][:16] = state["encoder.conv_out.bias"][:16] * scale + shift
    state["encoder.conv_out.bias"][16:] += 2 * math.log(scale)
    state["decoder.conv_in.weight"] /= scale
    state["decoder.conv_in.bias"] -= shift * state["decoder.conv_in.weight"].sum((1, 2, 3))
    return state


# ---- training ----------------------------------------------------------------------------------------------------------------


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates (Jordan et al., 2024) for the convolutions and linear layers."""

    def __init__(self, parameters, lr, momentum=0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                buffer = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                buffer.lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(buffer, group["momentum"]).reshape(len(parameter), -1)
                update = orthogonal(update) * max(1, update.shape[0] / update.shape[1]) ** 0.5
                parameter.add_(update.view_as(parameter), alpha=-group["lr"])


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


def skipping(blocks):
    """Leaves out residual blocks that contribute nothing yet; gives a function that puts them back."""
    for block in blocks:
        block.forward = lambda hidden, *_args, **_kwargs: hidden
    return lambda: [block.__dict__.pop("forward", None) for block in blocks]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    torch.set_num_threads(arguments.threads)

    pictures = photographs()
    model = network().train()
    start(model, pictures)
    inner = [p for name, p in model.decoder.named_parameters() if p.ndim >= 2 and not name.startswith(("conv_in", "conv_out"))]
    chosen = set(map(id, inner))
    others = [p for p in model.decoder.parameters() if id(p) not in chosen]
    # Each with its rate and the step it starts at. The encoder's is small: its components are narrow weights with large gains.
    encoder = (torch.optim.AdamW(model.encoder.parameters(), lr=0, betas=(0.9, 0.98), weight_decay=0), ENCODER_RATE)
    decoder = [(torch.optim.AdamW(others, lr=0, betas=(0.9, 0.98), weight_decay=0), ADAM_RATE, 0), (Muon(inner, lr=0), MUON_RATE, 0)]
    optimizers = decoder
    # The encoder's widest blocks stay out: they cost a third of the time and gain little.
    skipping(model.encoder.down_blocks[0].resnets)
    wake = skipping(model.decoder.up_blocks[3].resnets)
    model.encoder.requires_grad_(False)

    held_out = torch.from_numpy(np.asarray(skimage_data.astronaut(), np.float32)).permute(2, 0, 1)[None] / 127.5 - 1
    sample = crops(random.Random(SEED + 2), pictures, 32, 128)

    @torch.no_grad()
    def save():
        state = {name: tensor.half() for name, tensor in folded(model, sample).items()}
        stored = network().eval()
        stored.load_state_dict({name: tensor.float() for name, tensor in state.items()})
        latent = stored.encode(held_out).latent_dist.mode()
        quality = decibels(stored.decode(latent).sample.clamp(-1, 1), held_out)
        save_file(original_names(state), arguments.out / "ae.safetensors", metadata={"format": "pt"})
        print(f"saved at step {step}: held-out {quality:.2f} dB, latent mean {latent.mean():.3f} std {latent.std():.3f}", flush=True)

    seconds, step, awake, recent = arguments.minutes * 60, 0, False, []
    began = saved = time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        progress = elapsed / seconds
        if optimizers is decoder and progress > 0.2:
            optimizers = [*decoder, (*encoder, step)]
            model.encoder.requires_grad_(True)
        if not awake and progress > 0.4:
            awake = True
            wake()
        for optimizer, rate, since in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1, (step - since + 1) / 30) * (0.5 + 0.5 * math.cos(math.pi * progress)) + 1e-6
        # Towards the end fewer, larger crops, so that norms and attention see what they will see in use.
        batch = crops(rng, pictures, BATCH, CROP) if progress < 0.9 else crops(rng, pictures, 1, 2 * CROP)
        posterior = model.encode(batch).latent_dist
        latent = posterior.sample()
        output = model.decoder(latent)
        edges = sum(F.l1_loss(output.diff(dim=axis), batch.diff(dim=axis)) for axis in (2, 3))
        # The divergence from a normal distribution with Flux's mean and deviation.
        kl = 0.5 * (((posterior.mean - SHIFT).square() + posterior.var) * SCALING**2 - 1 - posterior.logvar - 2 * math.log(SCALING))
        loss = F.l1_loss(output, batch) + 4 * F.mse_loss(output, batch) + 0.2 * edges + 1e-4 * kl.mean()
        model.zero_grad(set_to_none=True)
        loss.backward()
        for part in (model.encoder, model.decoder):
            torch.nn.utils.clip_grad_norm_(part.parameters(), 1)
        for optimizer, *_ in optimizers:
            optimizer.step()
        step += 1
        recent.append(F.mse_loss(output, batch).item())
        if step % 25 == 0:
            quality = 10 * math.log10(4 / (sum(recent) / len(recent)))
            print(f"{elapsed / 60:5.1f} min, step {step}, loss {loss.item():.4f}, last 25 batches {quality:.2f} dB", flush=True)
            recent = []
        if time.monotonic() - saved > 300:
            save()
            saved = time.monotonic()
    save()


if __name__ == "__main__":
    main()
