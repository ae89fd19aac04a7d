"""Trains the bundled video autoencoder: WAN 2.1's layout (16 latent channels, x8 in space, x4 in time) at a fraction of its width.

Versions: torch 2.11.0, diffusers 0.42.1, numpy 2.4.6, safetensors 0.8.0.

    python train.py --out DIR --minutes 17

writes DIR/Wan2.1_VAE.safetensors (f16, the original names) every few minutes and at the end. It learns from clips that
`clip` draws: discs and boxes that move, turn and cover each other over gradients and soft textures. The clip that
../../latents/make_shapes.py draws has a seed of its own and is never trained on: it is only measured.

Training runs whole clips at once, which diffusers does frame by frame with caches; `check` compares the two.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "tests" / "judge"))
from video_networks import original_name, wan_config  # noqa: E402

SEED, HELD_OUT = 20261121, 20261122
NAME = "Wan2.1_VAE.safetensors"
CONFIG = wan_config("2.1", z=16, base=16, blocks=1)
MUON_RATE, ADAM_RATE = 0.01, 2e-3
NOISE = 0.05  # the posterior's deviation at the start


# ---- clips -------------------------------------------------------------------------------------------------------------------


def smooth_noise(rng, height, width, cell):
    """[height, width] about -1...1: noise on a grid of `cell` pixels, joined by cosines."""
    rows, columns = height // cell + 2, width // cell + 2
    grid = rng.uniform(-1, 1, (rows, columns)).astype(np.float32)

    def axis(length):
        place = np.arange(length, dtype=np.float32) / cell
        first = place.astype(int)
        share = (1 - np.cos(np.pi * (place - first))) / 2
        return first, share.astype(np.float32)

    (y, v), (x, u) = axis(height), axis(width)
    left = grid[y][:, x] * (1 - v)[:, None] + grid[y + 1][:, x] * v[:, None]
    right = grid[y][:, x + 1] * (1 - v)[:, None] + grid[y + 1][:, x + 1] * v[:, None]
    return left * (1 - u) + right * u


def clip(rng, frames, height, width):
    """[3, frames, height, width] f32 in -1...1: shapes moving over a textured gradient that drifts."""
    colours = lambda count: rng.uniform(-0.9, 0.9, (count, 3)).astype(np.float32)
    drift = rng.uniform(-0.8, 0.8, 2) if rng.random() < 0.7 else np.zeros(2)
    margin = int(frames + 2)
    tall, wide = height + 2 * margin, width + 2 * margin
    corners = colours(4)
    v, u = np.linspace(0, 1, tall, dtype=np.float32)[:, None, None], np.linspace(0, 1, wide, dtype=np.float32)[None, :, None]
    ground = (corners[0] * (1 - u) + corners[1] * u) * (1 - v) + (corners[2] * (1 - u) + corners[3] * u) * v
    for cell in (24, 12, 7):
        ground += 0.35 * cell / 24 * rng.random() * smooth_noise(rng, tall, wide, cell)[..., None] * colours(1)[0]
    ground = torch.from_numpy(ground).permute(2, 0, 1)[None]

    y, x = np.mgrid[:height, :width].astype(np.float32)
    moving = []
    for _ in range(round(2 + 3 * rng.random() * height * width / 64**2 / 2 + rng.integers(3))):
        moving.append(dict(
            box=rng.random() < 0.5, place=rng.uniform(0, 1, 2) * (height, width), speed=rng.normal(0, 1.4, 2), size=rng.uniform(7, 22, 2),
            turn=rng.uniform(0, math.pi), spin=rng.normal(0, 0.05), wobble=rng.uniform(0, 4), phase=rng.uniform(0, 6.3), fill=colours(2),
        ))
    pictures = []
    for time_ in range(frames):
        top, left = margin + drift * time_
        # The ground is shifted by parts of pixels, between its neighbours.
        whole = np.floor([top, left]).astype(int)
        part = torch.tensor([top, left], dtype=torch.float32) - torch.from_numpy(whole)
        cut = ground[:, :, whole[0]:whole[0] + height + 1, whole[1]:whole[1] + width + 1]
        cut = cut[:, :, :-1] * (1 - part[0]) + cut[:, :, 1:] * part[0]
        cut = cut[..., :-1] * (1 - part[1]) + cut[..., 1:] * part[1]
        picture = cut[0].permute(1, 2, 0).numpy().copy()
        for shape in moving:
            centre = shape["place"] + shape["speed"] * time_ + shape["wobble"] * np.sin(0.25 * time_ + np.array([shape["phase"], shape["phase"] + 1]))
            # Back into the picture at the other side, beyond its edge.
            centre = (centre + 24) % (np.array([height, width]) + 48) - 24
            angle = shape["turn"] + shape["spin"] * time_
            dy, dx = y - centre[0], x - centre[1]
            a, b = math.cos(angle) * dx + math.sin(angle) * dy, math.cos(angle) * dy - math.sin(angle) * dx
            if shape["box"]:
                distance = np.maximum(np.abs(a) - shape["size"][0], np.abs(b) - shape["size"][1])
            else:
                distance = np.hypot(a, b) - shape["size"][0]
            cover = np.clip(0.5 - distance / 1.5, 0, 1)[..., None]
            share = np.clip(0.5 + a / 2 / shape["size"].max(), 0, 1)[..., None]
            picture = picture * (1 - cover) + (shape["fill"][0] * (1 - share) + shape["fill"][1] * share) * cover
        pictures.append(picture)
    return torch.from_numpy(np.clip(np.stack(pictures), -1, 1).astype(np.float32)).permute(3, 0, 1, 2)


def clips(rng, count, frames, size):
    return torch.stack([clip(rng, frames, size, size) for _ in range(count)])


# ---- the network over whole clips --------------------------------------------------------------------------------------------


def in_pictures(conv, x):
    """A 2-D module on every frame."""
    n, c, t, h, w = x.shape
    y = conv(x.transpose(1, 2).reshape(n * t, c, h, w))
    return y.view(n, t, *y.shape[1:]).transpose(1, 2)


def resampled(module, x):
    """The first frame of a clip has no part in the changes of rate."""
    if module.mode == "upsample3d" and x.shape[2] > 1:
        n, c, t, h, w = x.shape
        later = module.time_conv(x[:, :, 1:]).view(n, 2, c, t - 1, h, w)
        x = torch.cat([x[:, :, :1], later.permute(0, 2, 3, 1, 4, 5).reshape(n, c, 2 * (t - 1), h, w)], 2)
    x = in_pictures(module.resample, x)
    if module.mode == "downsample3d" and x.shape[2] > 1:
        x = torch.cat([x[:, :, :1], module.time_conv(x)], 2)
    return x


def encoded(vae, x):
    """The posterior's mean and the logarithm of its variance."""
    x = vae.encoder.conv_in(x)
    for block in vae.encoder.down_blocks:
        x = resampled(block, x) if hasattr(block, "mode") else block(x)
    x = vae.encoder.mid_block(x)
    x = vae.encoder.conv_out(F.silu(vae.encoder.norm_out(x)))
    return vae.quant_conv(x).chunk(2, 1)


def decoded(vae, z):
    """Unclamped."""
    x = vae.decoder.mid_block(vae.decoder.conv_in(vae.post_quant_conv(z)))
    for block in vae.decoder.up_blocks:
        for layer in block.resnets:
            x = layer(x)
        if block.upsamplers is not None:
            x = resampled(block.upsamplers[0], x)
    return vae.decoder.conv_out(F.silu(vae.decoder.norm_out(x)))


@torch.no_grad()
def check(vae, sample):
    """Whole clips give what diffusers gives frame by frame."""
    latent = encoded(vae, sample)[0]
    assert torch.allclose(latent, vae.encode(sample).latent_dist.mode(), atol=1e-4)
    assert torch.allclose(decoded(vae, latent).clamp(-1, 1), vae.decode(latent).sample, atol=1e-4)


# ---- where training starts ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def start(vae):
    """Residual blocks contribute nothing, and the trunk hands on what it can."""
    for name, module in vae.named_modules():
        if name.endswith((".conv2", ".proj")):
            module.weight.zero_()
            module.bias.zero_()
    for name, module in vae.named_modules():
        trunk = ("quant_conv", "conv_shortcut", "conv_in", "conv_out", "time_conv", "resample.1")
        if name.endswith(trunk) and not isinstance(module, torch.nn.Identity):
            module.bias.zero_()
            torch.nn.init.orthogonal_(module.weight)
            if name.endswith("time_conv") and module.stride[0] == 1:
                # Both of the frames that come of one start as copies of it.
                channels = module.in_channels
                module.weight *= 0.3
                module.weight[:channels, :, 2, 0, 0] += torch.eye(channels)
                module.weight[channels:, :, 2, 0, 0] += torch.eye(channels)
            elif name.endswith("time_conv"):
                module.weight *= 0.3
                module.weight[:, :, 1:, 0, 0] += 0.5 * torch.eye(module.in_channels)[..., None]
    vae.encoder.conv_out.bias[16:] = 0
    vae.quant_conv.weight[16:] *= 0.1
    vae.quant_conv.bias[16:] = 2 * math.log(NOISE)
    # A channel that is always on, against which the norms' division by each pixel's length can be undone.
    for conv in (vae.decoder.conv_in, vae.encoder.conv_in):
        conv.bias[0] = 1


# ---- what is written ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def folded(vae, sample):
    """The state with each latent channel of a sample brought to WAN 2.1's published mean and deviation. Both are exact: the
    convolutions beside the latent are 1x1x1."""
    latent = encoded(vae, sample)[0]
    mean, deviation = torch.tensor(CONFIG["latents_mean"]), torch.tensor(CONFIG["latents_std"])
    state = {name: tensor.detach().clone() for name, tensor in vae.state_dict().items()}
    scale = deviation / latent.std((0, 2, 3, 4))
    shift = mean - scale * latent.mean((0, 2, 3, 4))
    state["quant_conv.weight"][:16] *= scale.view(-1, 1, 1, 1, 1)
    state["quant_conv.bias"][:16] = state["quant_conv.bias"][:16] * scale + shift
    state["quant_conv.bias"][16:] += 2 * scale.log()
    state["post_quant_conv.bias"] -= state["post_quant_conv.weight"].flatten(1) @ (shift / scale)
    state["post_quant_conv.weight"] /= scale.view(1, -1, 1, 1, 1)
    return state


# ---- training ----------------------------------------------------------------------------------------------------------------


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates (Jordan et al., 2024) for the convolutions."""

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


def held_out(frames=17, height=128, width=192):
    return clip(np.random.default_rng(HELD_OUT), frames, height, width)[None]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=17)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    torch.set_num_threads(arguments.threads)

    vae = AutoencoderKLWan(**CONFIG).train()
    start(vae)
    check(vae, clips(np.random.default_rng(1), 1, 9, 32))
    inner = [p for name, p in vae.named_parameters()
             if p.ndim >= 4 and not name.endswith("gamma") and not name.endswith(("encoder.conv_in.weight", "decoder.conv_out.weight"))]
    chosen = set(map(id, inner))
    optimizers = [(torch.optim.AdamW([p for p in vae.parameters() if id(p) not in chosen], lr=0, betas=(0.9, 0.98), weight_decay=0), ADAM_RATE),
                  (Muon(inner, lr=0), MUON_RATE)]
    target, sample = held_out(), clips(np.random.default_rng(2), 12, 9, 64)

    @torch.no_grad()
    def save():
        state = {name: tensor.half() for name, tensor in folded(vae, sample).items()}
        stored = AutoencoderKLWan(**CONFIG).eval()
        stored.load_state_dict({name: tensor.float() for name, tensor in state.items()})
        latent = encoded(stored, target)[0]
        quality = decibels(decoded(stored, latent).clamp(-1, 1), target)
        save_file({original_name(name, CONFIG): tensor.contiguous() for name, tensor in state.items()}, arguments.out / NAME, metadata={"format": "pt"})
        print(f"saved at step {step}: held-out {quality:.2f} dB", flush=True)

    seconds, step, recent = arguments.minutes * 60, 0, []
    began = saved = time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        progress = elapsed / seconds
        for optimizer, rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1, (step + 1) / 30) * (0.5 + 0.5 * math.cos(math.pi * progress)) + 1e-6
        # Towards the end longer and larger clips, so that attention and the causal past see what they will see in use. Never
        # single ones: on one thread PyTorch then takes a convolution that is five times slower.
        frames, size = [(5, 48), (9, 48)][step % 2] if progress < 0.88 else [(17, 48), (9, 80)][step % 2]
        batch = clips(rng, 2, frames, size)
        mean, logarithm = encoded(vae, batch)
        logarithm = logarithm.clamp(-20, 10)
        output = decoded(vae, mean + (0.5 * logarithm).exp() * torch.randn_like(mean))
        edges = sum(F.l1_loss(output.diff(dim=axis), batch.diff(dim=axis)) for axis in (2, 3, 4))
        kl = 0.5 * (mean.square() + logarithm.exp() - 1 - logarithm).mean()
        loss = F.l1_loss(output, batch) + 4 * F.mse_loss(output, batch) + 0.2 * edges + 1e-4 * kl
        vae.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1)
        for optimizer, _ in optimizers:
            optimizer.step()
        step += 1
        recent.append(F.mse_loss(output, batch).item())
        if step % 25 == 0:
            quality = 10 * math.log10(4 / (sum(recent) / len(recent)))
            print(f"{elapsed / 60:5.1f} min, step {step}, loss {loss.item():.4f}, last 25 batches {quality:.2f} dB", flush=True)
            recent = []
        if time.monotonic() - saved > 180:
            save()
            saved = time.monotonic()
    save()


if __name__ == "__main__":
    main()
