"""Writes the pack's example workflows, and a picture beside each of what it shows when it is run.

    python make_example_workflows.py            # the workflows
    python make_example_workflows.py --pictures # and the pictures, by running them in a real ComfyUI

The models of the pictures are those of `examples/models` in the engine. ComfyUI loads published widths alone: there a
VAE stands in whose weights pass colours through, with a transformer of noise, of which time and memory are shown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import comfyui
import comfyui_models
from workflows import Node, to_graph, to_page

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "integrations" / "comfyui" / "example_workflows"
EXAMPLES = ROOT / "examples"

#: The longer side of a picture, and the most bytes that it may have.
SIDES, LARGEST = (480, 400, 320, 256), 10_000

VAE, TRANSFORMER, LORA = "ae.safetensors", "wan2.1_t2v_1.3B_bf16.safetensors", "style.safetensors"
WAN_VAE, WAN_TEXT, PICTURE = "wan_2.1_vae.safetensors", "umt5_xxl_fp8_e4m3fn_scaled.safetensors", "example.png"
PIPELINE = "diffusers: FLUX.1-dev"
PROMPT, OTHER = "a red circle on a blue square", "a green star on a yellow circle"

#: Values by which the runs for pictures are short: a processor does them.
SHORT: dict[str, Any] = {"length": 5, "runs": 2, "cases": "128x128, 192x192, 256x256"}
SMALL = {"sampling-by-policy": (96, 64), "custom-sampling-by-policy": (96, 64)}

#: Side of the picture that is loaded, where the processor encodes and decodes it in ComfyUI, and in the engine.
LOADED, LOADED_SMALL = 512, 256

#: The text encoders' node of WAN, and what it reads.
TEXT = Node("CLIPLoader", 0, {"clip_name": WAN_TEXT, "type": "wan"})


def _sampled(
    decoded: str, image: str, sampler: str, inputs: Mapping[str, Any], links: Mapping[str, tuple[str, int]]
) -> dict[str, Node]:
    """The nodes behind a sampler: the decode by policy, the decision and the monitor."""
    return {
        "sampler": Node(sampler, 2, inputs, links),
        "vae": Node("VAELoader", 0, {"vae_name": WAN_VAE}),
        "governed": Node("TilewrightVAE", 2, {}, {"vae": ("vae", 0)}),
        decoded: Node("VAEDecode", 3, {}, {"samples": ("sampler", 0), "vae": ("governed", 0)}),
        image: Node("PreviewImage", 4, {}, {"images": (decoded, 0)}, lines=8),
        "decision": Node("TilewrightDecision", 3, {}, {"image": (decoded, 0)}, lines=18),
        "monitor": Node("TilewrightMonitor", 4, {"stage": "all"}, {"after": (decoded, 0)}, lines=18),
    }


_MODEL = {
    "model": Node("TilewrightDiffusionModel", 0, {"unet_name": TRANSFORMER}),
    "lora": Node("TilewrightLora", 1, {"lora_name": LORA, "strength_model": 0.8}, {"model": ("model", 0)}),
    "text": TEXT,
    "positive": Node("CLIPTextEncode", 1, {"text": PROMPT}, {"clip": ("text", 0)}),
    "negative": Node("CLIPTextEncode", 1, {"text": ""}, {"clip": ("text", 0)}),
    "latent": Node("EmptyHunyuanLatentVideo", 1, {"width": 480, "height": 320, "length": 17, "batch_size": 1}),
}

#: Each workflow: the note beside it, the node whose picture is shown, and its nodes.
WORKFLOWS: dict[str, tuple[str, str, dict[str, Node]]] = {
    "vae-by-policy": (
        "VAE by policy: whatever decodes or encodes with its output is tiled, typed and chunked as the policy decided. "
        "Lower the "
        "memory limit, and exact tiles give the same picture in less. Decision shows them.",
        "decision",
        {
            "picture": Node("LoadImage", 0, {"image": PICTURE}, lines=10),
            "vae": Node("VAELoader", 0, {"vae_name": VAE}),
            "governed": Node("TilewrightVAE", 1, {"memory_limit": "512 MiB"}, {"vae": ("vae", 0)}),
            "encoded": Node("VAEEncode", 2, {}, {"pixels": ("picture", 0), "vae": ("governed", 0)}),
            "decoded": Node("VAEDecode", 2, {}, {"samples": ("encoded", 0), "vae": ("governed", 0)}),
            "decision": Node("TilewrightDecision", 3, {}, {"image": ("decoded", 0)}, lines=18),
        },
    ),
    "sampling-by-policy": (
        "Diffusion model, LoRA, KSampler and VAE by policy, with the inputs and outputs of ComfyUI's own. Monitor "
        "shows time and "
        "memory of each run, and the black lines what was estimated.",
        "monitor",
        {
            **_MODEL,
            **_sampled(
                "decoded", "shown", "TilewrightKSampler",
                {"seed": 7, "steps": 8, "cfg": 6.0, "sampler_name": "uni_pc", "scheduler": "simple"},
                {
                    "model": ("lora", 0), "positive": ("positive", 0), "negative": ("negative", 0),
                    "latent_image": ("latent", 0),
                },
            ),
        },
    ),
    "custom-sampling-by-policy": (
        "SamplerCustomAdvanced by policy: noise, guider, sampler and sigmas come from ComfyUI's own nodes.",
        "monitor",
        {
            **_MODEL,
            "noise": Node("RandomNoise", 0, {"noise_seed": 7}),
            "guider": Node(
                "CFGGuider", 2, {"cfg": 6.0},
                {"model": ("lora", 0), "positive": ("positive", 0), "negative": ("negative", 0)},
            ),
            "solver": Node("KSamplerSelect", 1, {"sampler_name": "dpmpp_2m"}),
            "sigmas": Node("BasicScheduler", 1, {"scheduler": "beta", "steps": 8}, {"model": ("lora", 0)}),
            **_sampled(
                "decoded", "shown", "TilewrightSamplerCustomAdvanced", {},
                {
                    "noise": ("noise", 0), "guider": ("guider", 0), "sampler": ("solver", 0), "sigmas": ("sigmas", 0),
                    "latent_image": ("latent", 0),
                },
            ),
        },
    ),
    "generate-on-tilewright": (
        "A picture of a prompt by Tilewright's engine, a process of its own. What is left at its default is the "
        "model's own: a "
        "folder that diffusers has saved holds all parts.",
        "shown",
        {
            "made": Node(
                "TilewrightGenerate", 0, {"model": PIPELINE, "prompt": PROMPT, "seed": 5, "width": 128, "height": 128},
            ),
            "shown": Node("PreviewImage", 1, {}, {"images": ("made", 0)}, lines=8),
            "decision": Node("TilewrightDecision", 1, {}, {"image": ("made", 0), "record": ("made", 1)}, lines=24),
        },
    ),
    "sample-on-tilewright": (
        "KSampler and VAE Decode by Tilewright's engine: ComfyUI reads the texts, and the engine does the rest, with "
        "previews and "
        "in the memory that you allow.",
        "shown",
        {
            "text": Node(
                "DualCLIPLoader", 0,
                {"clip_name1": "clip_l.safetensors", "clip_name2": "t5xxl_fp8_e4m3fn.safetensors", "type": "flux"},
            ),
            "positive": Node("CLIPTextEncode", 1, {"text": OTHER}, {"clip": ("text", 0)}),
            "latent": Node("EmptySD3LatentImage", 0, {"width": 128, "height": 128}),
            "sampled": Node(
                "TilewrightSample", 2, {"model": PIPELINE, "seed": 11, "steps": 12, "shift": 3.0},
                {"positive": ("positive", 0), "latent_image": ("latent", 0)},
            ),
            "decoded": Node("TilewrightDecode", 3, {"vae": VAE}, {"samples": ("sampled", 0)}),
            "shown": Node("PreviewImage", 4, {}, {"images": ("decoded", 0)}, lines=8),
            "decision": Node(
                "TilewrightDecision", 4, {}, {"image": ("decoded", 0), "record": ("sampled", 1)}, lines=18
            ),
        },
    ),
    "encode-decode-on-tilewright": (
        "VAE Encode and VAE Decode by Tilewright's engine. With a low limit a policy takes tiles: exact ones, which "
        "give the whole picture's output, where they fit, and blended ones as the last resort. Decision shows them.",
        "decision",
        {
            "picture": Node("LoadImage", 0, {"image": PICTURE}, lines=10),
            "encoded": Node("TilewrightEncode", 1, {"vae": VAE}, {"pixels": ("picture", 0)}),
            "decoded": Node("TilewrightDecode", 2, {"vae": VAE, "memory_limit": "96 MiB"}, {"samples": ("encoded", 0)}),
            "decision": Node(
                "TilewrightDecision", 3, {}, {"image": ("decoded", 0), "record": ("decoded", 1)}, lines=18
            ),
        },
    ),
    "benchmark": (
        "ComfyUI's own VAE Decode against the same VAE by policy on random latents of three sizes: mean and spread of "
        "the times, "
        "peaks of memory, and the difference of the pictures.",
        "benchmark",
        {
            "vae": Node("VAELoader", 0, {"vae_name": VAE}),
            "governed": Node("TilewrightVAE", 1, {"objective": "leanest"}, {"vae": ("vae", 0)}),
            "benchmark": Node(
                "TilewrightBenchmark", 2, {"cases": "256x320, 512x512, 768x768"},
                {"vae": ("vae", 0), "governed_vae": ("governed", 0)}, lines=28,
            ),
        },
    ),
    "memory-and-monitor": (
        "Memory stands between a decode and what follows, and gives back what nothing uses. The limit that it sets "
        "counts for nodes "
        "which name none. Monitor shows what the runs have taken.",
        "monitor",
        {
            "picture": Node("LoadImage", 0, {"image": PICTURE}, lines=10),
            "vae": Node("VAELoader", 0, {"vae_name": VAE}),
            "limit": Node("TilewrightMemory", 1, {"memory_limit": "1 GiB"}, {"passed": ("picture", 0)}, lines=6),
            "governed": Node("TilewrightVAE", 1, {}, {"vae": ("vae", 0)}),
            "encoded": Node("VAEEncode", 2, {}, {"pixels": ("limit", 0), "vae": ("governed", 0)}),
            "decoded": Node("VAEDecode", 2, {}, {"samples": ("encoded", 0), "vae": ("governed", 0)}),
            "freed": Node(
                "TilewrightMemory", 3, {"unload_models": True, "memory_limit": "none"}, {"passed": ("decoded", 0)},
                lines=6,
            ),
            "shown": Node("PreviewImage", 3, {}, {"images": ("freed", 0)}, lines=8),
            "monitor": Node("TilewrightMonitor", 4, {"stage": "all"}, {"after": ("freed", 0)}, lines=18),
        },
    ),
}  # fmt: skip


def colour_vae(file: Path, generator_seed: int = 0) -> Path:
    """A VAE of Flux's published shapes that passes colours through: what it decodes is the mean of each 8 by 8 pixels,
    smoothed. Residual branches are zero, and pairs x and −x make SiLU a line: SiLU(x) − SiLU(−x) = x."""
    import torch
    from safetensors.torch import save_file

    raw = file.with_suffix(".raw")
    comfyui_models.make("flux", raw)
    from safetensors.torch import load_file

    state = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in load_file(raw).items()}
    raw.unlink()
    constant = 6.0
    basis = torch.linalg.qr(torch.randn(16, 3, generator=torch.Generator().manual_seed(generator_seed)))[0]
    smooth = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]) / 16
    mean = torch.tensor([[0.25, 0.25, 0.0], [0.25, 0.25, 0.0], [0.0, 0.0, 0.0]])
    for name, value in state.items():
        if name.endswith("norm_out.weight"):
            value.fill_(1.0)
        if "nin_shortcut.weight" in name:
            for channel in range(min(128, *value.shape[:2])):
                value[channel, channel, 0, 0] = 1.0
    # Each colour has a group of four channels in the decoder, and one group of sixteen in the encoder: x, −x, c, −c.
    for colour in range(3):
        first = 4 * colour
        for place, sign in ((first, 1.0), (first + 1, -1.0)):
            state["decoder.conv_in.weight"][place, :, 1, 1] = sign * basis[:, colour]
            state["decoder.conv_out.weight"][colour, place, 1, 1] = sign * constant / 2**0.5
        state["decoder.conv_in.bias"][first + 2], state["decoder.conv_in.bias"][first + 3] = constant, -constant
        for place, sign in ((2 * colour, 1.0), (2 * colour + 1, -1.0)):
            state["encoder.conv_in.weight"][place, colour, 1, 1] = sign
            state["encoder.conv_out.weight"][:16, place, 1, 1] = sign * basis[:, colour] * constant / 8**0.5
    state["encoder.conv_in.bias"][6], state["encoder.conv_in.bias"][7] = constant, -constant
    for level in range(4):
        up, down = f"decoder.up.{level}.upsample.conv", f"encoder.down.{level}.downsample.conv"
        for name, kernel in ((up, smooth), (down, mean)):
            if f"{name}.weight" in state:
                for channel in range(12):
                    is_constant = channel in (6, 7) if "encoder" in name else channel % 4 > 1
                    if is_constant:
                        # A border of zeros would weaken it.
                        centre = 0 if "encoder" in name else 1
                        state[f"{name}.weight"][channel, channel, centre, centre] = 1.0
                    else:
                        state[f"{name}.weight"][channel, channel] = kernel
    save_file(state, file)
    return file


def models(folder: Path) -> dict[str, Path]:
    """The models that the workflows name, by their places."""
    return {
        f"vae/{VAE}": colour_vae(folder / VAE),
        f"vae/{WAN_VAE}": comfyui_models.make("wan", folder / WAN_VAE),
        f"diffusion_models/{TRANSFORMER}": comfyui_models.make("transformer", folder / TRANSFORMER),
        f"loras/{LORA}": comfyui_models.make("lora", folder / LORA),
        "diffusers/FLUX.1-dev": EXAMPLES / "models" / "flux-shapes",
    }


def runnable(workflow: Mapping[str, Any], about: Mapping[str, Any], conditioning: Path | None) -> dict[str, Any]:
    """A workflow's graph with conditionings in place of what text encoders make, which nobody has here.

    Args:
        workflow: the workflow.
        about: what ComfyUI tells of all nodes.
        conditioning: a file of the engine's with the states of a text for Flux; of others they are from a seed.
    """
    graph = to_graph(workflow, about)
    is_flux = any(node["class_type"] == "DualCLIPLoader" for node in graph.values())
    for number, (name, node) in enumerate(list(graph.items())):
        if node["class_type"] in ("CLIPLoader", "DualCLIPLoader"):
            del graph[name]
        elif node["class_type"] == "CLIPTextEncode":
            seeded = {"tokens": 20, "width": comfyui_models.TEXT_WIDTH, "seed": number}
            graph[name] = (
                {"class_type": "LoadConditioning", "inputs": {"file": str(conditioning)}}
                if is_flux
                else {"class_type": "TestConditioning", "inputs": seeded}
            )
    return graph


#: A node that reads the engine's conditioning, for the pictures alone.
READER = '''
import torch
from safetensors.torch import load_file


class LoadConditioning:
    INPUT_TYPES = classmethod(lambda cls: {"required": {"file": ("STRING", {})}})
    RETURN_TYPES, FUNCTION, CATEGORY = ("CONDITIONING",), "read", "tests"

    def read(self, file):
        tensors = load_file(file)
        return ([[tensors["prompt_embeds"], {"pooled_output": tensors["pooled_prompt_embeds"]}]],)


NODE_CLASS_MAPPINGS = {"LoadConditioning": LoadConditioning}
'''


def embedded(folder: Path) -> Path:
    """The states of the prompt by the text encoders of the small Flux."""
    file = folder / "conditioning.safetensors"
    program = os.environ["TILEWRIGHT_PROGRAM"]
    command = [program, "embed", OTHER, "--model", str(EXAMPLES / "models" / "flux-shapes"), "-o", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return file


def reader(folder: Path) -> Path:
    """A pack with the node that reads conditionings."""
    pack = folder / "reader"
    pack.mkdir()
    (pack / "__init__.py").write_text(READER)
    return pack


def _picture(server: comfyui.Server, shown: Mapping[str, Any], file: Path) -> None:
    """Writes a picture that a node has shown, small."""
    from PIL import Image

    (found, *_) = shown["images"]
    with Image.open(server.base / found["type"] / found.get("subfolder", "") / found["filename"]) as opened:
        picture = opened.convert("RGB")
    for side in SIDES:
        picture.thumbnail((side, side), Image.Resampling.LANCZOS)
        for quality in range(90, 45, -5):
            picture.save(file, quality=quality, optimize=True)
            if file.stat().st_size < LARGEST:
                return


def main() -> None:
    """Writes all."""
    with_pictures = "--pictures" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        server = comfyui.Server(
            folder / "base",
            packs={"tilewright": comfyui.PACK, "tests": comfyui.TEST_NODES, "reader": reader(folder)},
            models=models(folder),
            threads=1,
        )
        try:
            # The choices of files are ComfyUI's own, of the models that it has: their order is the same on all
            # machines.
            about = server.nodes()
            FOLDER.mkdir(exist_ok=True)
            for name, (note, shown, nodes) in WORKFLOWS.items():
                workflow = to_page(nodes, about, note)
                (FOLDER / f"{name}.json").write_text(json.dumps(workflow, indent=1, ensure_ascii=False) + "\n")
                if with_pictures:
                    _show(server, folder, name, shown, list(nodes))
        finally:
            server.stop()


def _show(server: comfyui.Server, folder: Path, name: str, shown: str, names: list[str]) -> None:
    """Runs a workflow, some that measure several times, and keeps its picture."""
    from PIL import Image

    side = LOADED if "on-tilewright" in name else LOADED_SMALL
    with Image.open(EXAMPLES / "latents" / "astronaut.png") as astronaut:
        astronaut.convert("RGB").resize((side, side)).save(server.base / "input" / PICTURE)
    if "on-tilewright" in name:
        server.add_model(f"vae/{VAE}", EXAMPLES / "models" / "flux-tiny" / "ae.safetensors")
    workflow = json.loads((FOLDER / f"{name}.json").read_text())
    graph = runnable(workflow, server.nodes(), embedded(folder) if name == "sample-on-tilewright" else None)
    short = dict(SHORT)
    if name in SMALL:
        short["width"], short["height"] = SMALL[name]
    if name == "vae-by-policy":
        # As small as the picture.
        short["memory_limit"] = "160 MiB"
    for node in graph.values():
        if node["class_type"] == "TestConditioning":
            # Its width is the text's.
            continue
        for key, value in short.items():
            if key in node["inputs"] and not isinstance(node["inputs"][key], list):
                node["inputs"][key] = value
    for number in range(4 if shown == "monitor" else 1):
        for node in graph.values():
            for key in ("seed", "noise_seed"):
                if key in node["inputs"] and not isinstance(node["inputs"][key], list):
                    node["inputs"][key] += bool(number)
        result = server.run(graph, seconds=1800)
    _picture(server, result.outputs[str(names.index(shown) + 2)], FOLDER / f"{name}.jpg")
    server.add_model(f"vae/{VAE}", folder / VAE)


if __name__ == "__main__":
    main()
