"""ComfyUI's own Flux.1 and WAN transformers on the sampling fixtures, in its numerics: how far Tilewright and diffusers are from them.

    python comfyui_transformers.py --comfyui CHECKOUT [--libs DIR] [--tilewright PATH] [--attention sub-quad] [--cases NAME …]

Run by hand. Needs the versions that networks.py pins and, as the checkout's requirements.txt pins them, einops, comfy-kitchen, comfy-aimdo and
psutil: in the environment, or in DIR by `pip install --no-deps --target DIR …`. ComfyUI is under the GPL: its code is imported from the
checkout and is no part of this tree.

Nothing of ComfyUI is replaced, but for the width of CLIP's rows, which it has as a constant. It is started as with its options --cpu and, unless
--attention sub-quad is given, which is what it takes on processors, --use-pytorch-cross-attention, which is what it takes on graphics cards. As
its BaseModel._apply_model has it, noise, text, pooled vector and guidance are cast to the type of the model, the time stays f32, and the
output is taken as f32.

ComfyUI's Flux is not BFL's in two places, so it is also run "as published", without them: the norms of queries and keys have PyTorch's
epsilon, 1.2e-7, not 1e-6; and guidance is multiplied by 1000 in the type of the model: in bf16 3.5 becomes 3.504.

One forward pass a case, at the first sigma: ComfyUI's in f32, bf16 and, for WAN, f16; diffusers' reference of the fixture; and Tilewright's,
from a run of one step down to 0. Differences are shares of the largest value of what is compared with. In f32 all have to agree, Flux with
ComfyUI's as published. Held frames are left out: there a run does not give the network's velocity everywhere.
"""

import argparse
import importlib.metadata
import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
from safetensors.torch import load_file

from networks import check_versions, plain_f32
from transformer_networks import flux_config, to_original_transformer, to_vae, wan_transformer_config

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/fixtures"))
from pack import unpacked

FIXTURES = unpacked()
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
PLANS = ["f32", "bf16", "mixed-bf16", "f16", "mixed-f16"]
# In f32, of the largest value; as the end-to-end tests have it.
TOLERANCE = 1e-4


class ComfyUI:
    """The modules of a checkout."""

    def __init__(self, checkout, libs, attention):
        if not (checkout / "comfy/ldm/flux/model.py").is_file():
            sys.exit(f"no ComfyUI in {checkout}")
        sys.path[1:1] = [str(path) for path in (libs, checkout) if path]
        logging.disable(logging.WARNING)
        from comfy.cli_args import args

        args.cpu, args.use_pytorch_cross_attention = True, attention == "pytorch"
        import comfy.ldm.flux.model
        import comfy.ldm.modules.attention
        import comfy.ldm.wan.model
        import comfy.ops

        self.flux, self.wan, self.ops = comfy.ldm.flux.model, comfy.ldm.wan.model, comfy.ops
        version = (checkout / "comfyui_version.py").read_text().split('"')[1]
        attention = comfy.ldm.modules.attention.optimized_attention.__name__
        self.words = f"ComfyUI {version}, comfy-kitchen {importlib.metadata.version('comfy-kitchen')}, {attention}, PyTorch {torch.__version__}"

    def network(self, case, tensors, dtype):
        """The network with tensors in its original names, as ComfyUI loads them."""
        operations = self.ops.pick_operations(dtype, None)
        if case["family"] == "flux":
            net = self.flux.Flux(
                in_channels=16, out_channels=16, patch_size=2, vec_in_dim=case["pooled_dim"], context_in_dim=case["text_dim"],
                hidden_size=case["heads"] * case["head_dim"], num_heads=case["heads"], mlp_ratio=4.0, depth=case["layers"],
                depth_single_blocks=case["single_layers"], axes_dim=case["axes"], theta=10000, qkv_bias=True, txt_ids_dims=[],
                guidance_embed=case["guidance"] is not None, dtype=dtype, operations=operations)
        else:
            image = case["image_dim"]
            # WanModel has it written into it how wide CLIP's rows are.
            projection = self.wan.MLPProj
            with mock.patch.object(self.wan, "MLPProj", lambda _, *rest, **more: projection(image, *rest, **more)):
                net = self.wan.WanModel(
                    model_type="i2v" if image else "t2v", in_dim=case["in_channels"], out_dim=case["out_channels"],
                    dim=case["heads"] * case["head_dim"], num_heads=case["heads"], ffn_dim=case["ffn_dim"], text_dim=case["text_dim"],
                    num_layers=case["layers"], freq_dim=256, patch_size=(1, 2, 2), dtype=dtype, operations=operations)
        names = net.state_dict().keys()
        renamed = {name if name in names else name.removesuffix(".scale") + ".weight": value for name, value in tensors.items()}
        net.load_state_dict(renamed, strict=True)
        return net.eval()

    def velocity(self, case, tensors, given, dtype, as_published=False):
        """BaseModel._apply_model up to what it makes of the network's output."""
        net = self.network(case, tensors, dtype)
        cast = {name: value.to(dtype) for name, value in given.items()}
        latent, sigma = cast["noise"], torch.full((case["batch"],), case["sigmas"][0])
        if case["family"] == "flux":
            guidance = None if case["guidance"] is None else torch.full((case["batch"],), case["guidance"])
            if as_published:
                for module in net.modules():
                    if isinstance(module, torch.nn.RMSNorm):
                        assert module.eps is None
                        module.eps = 1e-6
            elif guidance is not None:
                guidance = guidance.to(dtype)
            output = net(latent, sigma, context=cast["prompt_embeds"], y=cast["pooled_prompt_embeds"], guidance=guidance)
        else:
            if "condition" in cast:
                latent = torch.cat([latent, cast["condition"]], dim=1)
            more = {"clip_fea": cast["image_embeds"]} if "image_embeds" in cast else {}
            output = net(latent, sigma * 1000, context=cast["prompt_embeds"], transformer_options={}, **more)
        return output.float()


def stored(case):
    """The tensors of a case's transformer in BFL's or WAN's names."""
    path = FIXTURES / case["transformer"]
    if case["layout"] == "original":
        return {name.removeprefix(case["prefix"]): value for name, value in load_file(path).items()}
    parts = {path}
    if path.suffix == ".json":
        parts = {path.parent / name for name in json.loads(path.read_text())["weight_map"].values()}
    weights = {name: value for part in parts for name, value in load_file(part).items()}
    if case["family"] == "flux":
        config = flux_config(case["heads"], case["head_dim"], case["axes"], case["layers"], case["single_layers"],
                             case["guidance"] is not None, case["text_dim"], case["pooled_dim"])
    else:
        inputs = case["in_channels"] if case["in_channels"] != case["out_channels"] else None
        config = wan_transformer_config(case["heads"], case["head_dim"], case["ffn_dim"], case["layers"], case["out_channels"], inputs,
                                        case["text_dim"], case["image_dim"])
    return to_original_transformer(weights, config)


def tilewright(program, case, noise, plan, folder, threads):
    """The velocity at the first sigma: what a step down to 0 takes from the noise."""
    out = folder / f"{case['name']}-{plan}.safetensors"
    transformers = [FIXTURES / case[key] for key in ("transformer", "low_noise") if case[key]]
    command = [program, "sample", "--device", "cpu", "--threads", threads]
    for path in transformers:
        command += ["--transformer", path]
    command += ["--conditioning", FIXTURES / case["conditioning"], "--noise", FIXTURES / case["noise"]]
    command += ["--sigmas", f"{case['sigmas'][0]},0", "--set", f"precision={plan}", "-o", out]
    for key in ("guidance", "boundary"):
        if case[key] is not None:
            command += [f"--{key}", case[key]]
    run = subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if run.returncode:
        print(f"tilewright {plan}: exit {run.returncode}: {run.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    latent = load_file(out)["latent"].reshape(noise.shape).double()
    shift = to_vae(torch.zeros_like(latent))
    model = (latent - shift) / (to_vae(torch.ones_like(latent)) - shift)
    return ((noise.double() - model) / case["sigmas"][0]).float()


def distances(found, reference):
    """The largest difference and the root of the mean square, as shares of the reference's largest value."""
    difference, most = (found - reference).double(), reference.abs().max().item()
    return difference.abs().max().item() / most, difference.square().mean().sqrt().item() / most


def judged(case, comfyui, args, folder):
    """Prints the table of a case; returns the most that two f32 results are apart."""
    given = {name: value.float() for name, value in load_file(FIXTURES / case["conditioning"]).items()}
    given["noise"] = load_file(FIXTURES / case["noise"])["noise"]
    tensors = stored(case)
    reference = load_file(FIXTURES / case["reference"])["velocity"]
    types = ["f32", "bf16"] + (["f16"] if case["family"] != "flux" else [])
    found = {"diffusers f32": reference}
    for name in types:
        found[f"ComfyUI {name}"] = comfyui.velocity(case, tensors, given, TYPES[name])
        if case["family"] == "flux":
            found[f"ComfyUI {name}, as published"] = comfyui.velocity(case, tensors, given, TYPES[name], as_published=True)
    for plan in PLANS:
        if plan.rpartition("-")[2] in types:
            found[f"Tilewright {plan}"] = tilewright(args.tilewright, case, given["noise"], plan, folder, args.threads)
    against = ["ComfyUI f32", "diffusers f32", "ComfyUI bf16"]
    print(f"\n## {case['name']}: {case['latent_shape']}, stored in {case['stored']}, largest value {reference.abs().max().item():.3g}\n")
    print("| | " + " | ".join(f"{name}: largest | RMS" for name in against) + " |")
    print("|---" * (1 + 2 * len(against)) + "|")
    for name, value in found.items():
        cells = []
        for other in against:
            cells += ["", ""] if value is None or other == name else [f"{share:.1e}" for share in distances(value, found[other])]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    published = "ComfyUI f32, as published" if case["family"] == "flux" else "ComfyUI f32"
    exact = [found[name] for name in (published, "diffusers f32", "Tilewright f32")]
    if any(value is None for value in found.values()):
        return float("nan")
    return max(distances(one, other)[0] for one in exact for other in exact)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--comfyui", type=Path, required=True, help="a checkout of ComfyUI")
    parser.add_argument("--libs", type=Path, help="folder of the packages that it needs, before the environment's")
    parser.add_argument("--tilewright", type=Path, default=ROOT / "target/debug/tilewright", help="the program to compare")
    parser.add_argument("--attention", choices=["pytorch", "sub-quad"], default="pytorch")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="of transformer_cases.json; otherwise all")
    parser.add_argument("--threads", type=int, default=1)
    args, sys.argv = parser.parse_args(), sys.argv[:1]
    check_versions()
    plain_f32(args.threads)
    comfyui = ComfyUI(args.comfyui, args.libs, args.attention)
    cases = json.loads((FIXTURES / "transformer_cases.json").read_text())["cases"]
    names = [case["name"] for case in cases]
    if wrong := set(args.cases or ()) - set(names):
        sys.exit(f"no case {', '.join(sorted(wrong))}; there are {', '.join(names)}")
    print(comfyui.words)
    with tempfile.TemporaryDirectory() as folder:
        apart = {case["name"]: judged(case, comfyui, args, Path(folder)) for case in cases
                 if not case["held"] and (not args.cases or case["name"] in args.cases)}
    # NaN compares false, and so fails.
    if far := [f"{name} ({share:.1e})" for name, share in apart.items() if not share <= TOLERANCE]:
        sys.exit(f"not within {TOLERANCE} in f32: {', '.join(far)}")


if __name__ == "__main__":
    main()
