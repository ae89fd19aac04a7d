"""Operators of a decode and of a text encoder by `tilewright --profile` and by torch.profiler: names, calls and times of their own.

    python operators.py TILEWRIGHT --folder FOLDER [--size 512x512] [--threads 2] [--top 10] [--work decode|text …] [--json OUT]

The decode is Flux's at its published size, in diffusers' AutoencoderKL; the text encoder is T5-XXL's at its real width, of two layers, in
transformers' T5EncoderModel. Both sides have the same generated weights, which FOLDER keeps (1.5 GB), the same input and f32. The program's plan
is the one that is closest: whole, channels first, convolutions by libtorch. A debug build is asked not to divide its convolutions; a
release build divides long ones, so that they can be cancelled, and has more calls of them: give it more threads or a smaller size.

A row is an operator among the first of either side by its own time. It is `equal` if both called it as often. Otherwise INSTEAD names what the
other side calls in its place, and the calls of both sets are equal together; or ALONE says why it has no counterpart. All else is DIFFERENT,
and the exit is 1.

Versions: torch 2.11.0, diffusers 0.42.1, transformers 5.23.0, safetensors 0.8.0.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.profiler import ProfilerActivity, profile
from transformers import T5EncoderModel
from transformers.utils import logging

import text

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/judge"))
from networks import read_vae, vae_config  # noqa: E402

LAYERS, TOKENS = 2, 256
PROMPT = "a small wooden boat on a misty lake at dawn"
FLUX = ((128, 256, 512, 512), 2)

# Operators there, those here that do the same work, and the difference. Calls are equal together.
INSTEAD = {
    "decode": [
        (("aten::silu",), ("aten::silu_",), "in place here"),
        (("aten::add",), ("aten::add_",), "in place here"),
        (("aten::mm", "aten::addmm"), ("aten::addmm",), "the bias added by the product here, by aten::add_ there"),
        (("aten::mkldnn_convolution", "aten::_slow_conv2d_forward"),
         ("aten::mkldnn_convolution", "aten::_slow_conv2d_forward", "aten::baddbmm"), "1×1 kernels as products here"),
        *(((name,), (name, "aten::baddbmm"), "1×1 kernels as products here")
          for name in ("aten::conv2d", "aten::convolution", "aten::_convolution", "aten::as_strided_")),
        (("aten::_scaled_dot_product_flash_attention_for_cpu",), ("tilewright::attention",), "an own kernel here"),
    ],
    "text": [
        (("aten::mm",), ("tilewright::multiply_packed",), "an own kernel here"),
        (("aten::pow",), ("tilewright::norm_heads", "tilewright::gelu"), "within own kernels here"),
        (("aten::mean",), ("tilewright::norm_heads",), "within an own kernel here"),
        (("aten::sum",), ("tilewright::norm_heads",), "within an own kernel here"),
        (("aten::rsqrt",), ("tilewright::norm_heads",), "within an own kernel here"),
        (("aten::tanh",), ("tilewright::gelu",), "within an own kernel here"),
    ],
}

# Operators whose calls depend on what surrounds others.
ALONE = {
    "decode": {
        "aten::div": "by diffusers' output scale, which is 1",
        "aten::copy_": "changes of memory order and scalars, each at its own places",
        "aten::add_": "biases of linear layers there, sums of residual blocks here",
        "aten::empty": "results, each at its own places",
        "aten::aminmax": "the check here that values are finite",
    },
    "text": {
        "aten::add": "residual sums and those within norms and GELU there, within own kernels or in place here",
        "aten::add_": "in place here",
        "aten::mul": "within norms and GELU there",
        "aten::mul_": "in place here",
        "aten::copy_": "changes of memory order, each at its own places",
        "aten::div": "of the position bias there",
        "aten::aminmax": "the check here that values are finite",
        "tilewright::add_gated": "residual sums here",
        "aten::flip": "the position bias is laid out here",
        "aten::index": "the position bias is laid out here",
        "aten::index_select": "the position bias is laid out here",
        "aten::embedding": "the rows of tokens are read from the file here",
        "aten::sub": "of the position bias there",
    },
}


class Program:
    """The program, and the inputs that it makes and reads."""

    def __init__(self, path, folder, size, threads):
        self.path, self.folder, self.size, self.threads = Path(path).resolve(), folder, size, threads
        policies = self.path.parents[1] / "policies"
        own = {"TILEWRIGHT_POLICIES": str(policies)} if policies.is_dir() else {}
        self.environment = os.environ | {"TILEWRIGHT_WHOLE_OPERATIONS": "1"} | own

    def run(self, *arguments):
        made = subprocess.run([self.path, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            sys.exit(f"{self.path.name} {arguments[0]}: {made.stderr.strip().splitlines()[-1]}")
        return made.stdout

    def file(self, name, *arguments):
        """The path of a generated input."""
        path = self.folder / name
        if not path.exists():
            made = self.folder / f"made-{name}"
            self.run(*arguments, "-o", made)
            made.rename(path)
        return path

    def vae(self):
        return self.file("flux.safetensors", "bench", "weights", "flux")

    def latent(self):
        return self.file(f"latent-{self.size}.safetensors", "bench", "latent", "--network", "flux", "--size", self.size)

    def profile(self, *arguments):
        """The profile of the only stage."""
        options = ("--threads", str(self.threads), "--device", "cpu", "--no-history", "--profile", "trace.json", "--json", "--policy", "fixed",
                   "--set", "precision=f32")
        (found,) = json.loads(self.run(*arguments, *options))["profile"]
        return found

    def decode(self):
        return self.profile("decode", self.latent(), "--vae", self.vae(), "-o", "out.safetensors", "--set", "space=whole", "--set",
                            "layout=channels-first", "--set", "options=convolution=direct")

    def text(self):
        return self.profile("embed", PROMPT, "--text-encoder", "t5", "--as", "diffusers", "--text-tokens", str(TOKENS), "-o", "text.safetensors")


def profiled(work):
    """Operators as torch.profiler has them, warmed up: calls and milliseconds of their own by name."""
    work()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    return {row.key: (row.count, row.self_cpu_time_total / 1000) for row in found.key_averages()}


def decode_there(program):
    vae = read_vae(program.vae(), vae_config("flux", *FLUX), ldm=True)
    (latent,) = load_file(program.latent()).values()
    return profiled(lambda: vae.decode(latent.float()))


def text_there(program):
    text.write(program.folder / "t5", LAYERS)
    model = T5EncoderModel.from_pretrained(program.folder / "t5", dtype=torch.float32, attn_implementation="eager").eval()
    tokens = torch.ones((1, TOKENS), dtype=torch.long)
    return profiled(lambda: model(tokens))


WORKS = {"decode": (decode_there, Program.decode), "text": (text_there, Program.text)}


def calls(operators, names):
    return sum(operators.get(name, (0, 0))[0] for name in names)


def verdict(work, name, there, here):
    """True if the calls are as they should be, and the reason in words."""
    if name in there and name in here and there[name][0] == here[name][0]:
        return True, "equal"
    for names_there, names_here, why in INSTEAD[work]:
        if (name in names_there and name in there) or (name in names_here and name in here):
            counts = calls(there, names_there), calls(here, names_here)
            if counts[0] == counts[1]:
                return True, f"{' + '.join(names_there)} = {' + '.join(names_here)} = {counts[0]}: {why}"
    if name in ALONE[work]:
        return True, f"not the same: {ALONE[work][name]}"
    return False, "DIFFERENT"


def first(operators, top):
    return sorted(operators, key=lambda name: -operators[name][1])[:top]


def compare(work, there, here, top):
    """A row for each of the first operators of either side."""
    names = sorted({*first(there, top), *first(here, top)}, key=lambda name: -max(of.get(name, (0, 0))[1] for of in (there, here)))
    rows = []
    for name in names:
        is_right, why = verdict(work, name, there, here)
        rows.append({"operator": name, "there": there.get(name), "here": here.get(name), "is_right": is_right, "why": why})
    return rows


def cell(found):
    return f"{found[0]} | {found[1]:.1f}" if found else "– | –"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size", default="512x512")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--work", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    logging.disable_progress_bar()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    program = Program(arguments.program, folder, arguments.size, arguments.threads)
    found = {}
    for work in arguments.work:
        run_there, run_here = WORKS[work]
        there = run_there(program)
        here = {row["name"]: (row["calls"], row["self_ms"]) for row in run_here(program)["operators"]}
        found[work] = rows = compare(work, there, here, arguments.top)
        print(f"\n{work}\n\n| operator | calls there | ms there | calls here | ms here | |\n|---|---|---|---|---|---|")
        for row in rows:
            print(f"| {row['operator']} | {cell(row['there'])} | {cell(row['here'])} | {row['why']} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))
    return 0 if all(row["is_right"] for rows in found.values() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
