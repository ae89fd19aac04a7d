"""Makes astronaut.latent, the latent that the demo decodes, from astronaut.png and the bundled autoencoder.

    python make_astronaut.py [DECODED.png]

Versions: as in ../models/flux-tiny/train.py. The file is ComfyUI's: `latent_tensor` in the autoencoder's own space, the empty
marker `latent_format_version_0`, and the graph that would have saved it. Prints how well the picture survives the round trip
in f32 and in bf16, and checks that diffusers' own converter reads the same network out of ae.safetensors.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint
from PIL import Image
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
MODEL = HERE.parent / "models" / "flux-tiny"
sys.path.insert(0, str(MODEL))
from train import decibels, network, original_names  # noqa: E402

# What ComfyUI runs: nodes by number, inputs either values or [node, output].
PROMPT = {
    "1": {"class_type": "LoadImage", "inputs": {"image": "astronaut.png"}, "_meta": {"title": "Load Image"}},
    "2": {"class_type": "VAELoader", "inputs": {"vae_name": "ae.safetensors"}, "_meta": {"title": "Load VAE"}},
    "3": {"class_type": "VAEEncode", "inputs": {"pixels": ["1", 0], "vae": ["2", 0]}, "_meta": {"title": "VAE Encode"}},
    "4": {"class_type": "SaveLatent", "inputs": {"samples": ["3", 0], "filename_prefix": "latents/astronaut"}, "_meta": {"title": "SaveLatent"}},
}


def workflow():
    """The same graph as ComfyUI's editor keeps it."""
    def node(number, kind, place, inputs, outputs, values):
        return {"id": number, "type": kind, "pos": place, "size": [270, 120], "flags": {}, "order": number - 1, "mode": 0,
                "inputs": inputs, "outputs": outputs, "properties": {"Node name for S&R": kind}, "widgets_values": values}

    nodes = [
        node(1, "LoadImage", [40, 40], [],
             [{"name": "IMAGE", "type": "IMAGE", "links": [1]}, {"name": "MASK", "type": "MASK", "links": None}], ["astronaut.png", "image"]),
        node(2, "VAELoader", [40, 220], [], [{"name": "VAE", "type": "VAE", "links": [2]}], ["ae.safetensors"]),
        node(3, "VAEEncode", [360, 120], [{"name": "pixels", "type": "IMAGE", "link": 1}, {"name": "vae", "type": "VAE", "link": 2}],
             [{"name": "LATENT", "type": "LATENT", "links": [3]}], []),
        node(4, "SaveLatent", [680, 120], [{"name": "samples", "type": "LATENT", "link": 3}], [], ["latents/astronaut"]),
    ]
    # [link, from node, its output, to node, its input, type]
    links = [[1, 1, 0, 3, 0, "IMAGE"], [2, 2, 0, 3, 1, "VAE"], [3, 3, 0, 4, 0, "LATENT"]]
    return {"last_node_id": 4, "last_link_id": 3, "nodes": nodes, "links": links, "groups": [], "config": {}, "extra": {}, "version": 0.4}


def load(checkpoint):
    """The network by the names that train.py wrote."""
    model = network().eval()
    state = model.state_dict()
    renamed = dict(zip(state, original_names(state)))
    model.load_state_dict({name: checkpoint[renamed[name]].float().reshape(tensor.shape) for name, tensor in state.items()})
    return model


def load_by_diffusers(checkpoint):
    model = network().eval()
    converted = convert_ldm_vae_checkpoint({name: tensor.float() for name, tensor in checkpoint.items()}, dict(model.config))
    model.load_state_dict(converted)
    return model


@torch.no_grad()
def main():
    checkpoint = load_file(MODEL / "ae.safetensors")
    assert all(tensor.dtype == torch.float16 for tensor in checkpoint.values())
    model = load(checkpoint)
    picture = torch.from_numpy(np.array(Image.open(HERE / "astronaut.png").convert("RGB"), np.float32)).permute(2, 0, 1)[None] / 127.5 - 1

    latent = model.encode(picture).latent_dist.mode().contiguous()
    whole = model.decode(latent).sample.clamp(-1, 1)
    again = load_by_diffusers(checkpoint)
    assert torch.equal(again.encode(picture).latent_dist.mode(), latent), "diffusers' converter reads another encoder"
    assert torch.equal(again.decode(latent).sample.clamp(-1, 1), whole), "diffusers' converter reads another decoder"
    rounded = ((whole + 1) * 127.5).round() / 127.5 - 1
    brief = again.to(torch.bfloat16).decode(latent.to(torch.bfloat16)).sample.float().clamp(-1, 1)

    tensors = {"latent_tensor": latent, "latent_format_version_0": torch.tensor([])}
    save_file(tensors, HERE / "astronaut.latent", metadata={"prompt": json.dumps(PROMPT), "workflow": json.dumps(workflow())})
    print(f"latent {list(latent.shape)}, mean {latent.mean():.3f}, deviation {latent.std():.3f}, largest {latent.abs().max():.2f}")
    print(f"round trip, f32, 8 bits a channel: {decibels(rounded, picture):.2f} dB against the picture")
    print(f"bf16 decode: {decibels(brief, whole):.2f} dB against f32, {decibels(brief, picture):.2f} dB against the picture")
    if len(sys.argv) > 1:
        Image.fromarray(((whole[0] + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()).save(sys.argv[1])


if __name__ == "__main__":
    main()
