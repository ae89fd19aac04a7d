"""T5-XXL's encoder at its real width on a processor: `tilewright embed` against transformers in f32, the same weights and tokens.

    python text.py TILEWRIGHT [--layers 8] [--runs 10] [--threads 2] [--folder FOLDER] [--precision auto]

Weights are generated, in bf16, and kept in FOLDER if one is given. All 24 layers in f32 are 19 GB for transformers: --layers is how many both
have. Both run in turns, first once to warm up. Times are those of the encoder alone: transformers' forward pass, and `elapsed_ms` of
the program's record, each without reading weights. Prints both, the ratio of the means, and how far the states are apart.

Versions: torch 2.11.0, transformers 5.23.0, safetensors 0.8.0.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5EncoderModel

ROOT = Path(__file__).resolve().parents[2]
TOKENS = 256
WORDS = "a small wooden boat on a misty lake at dawn, two red foxes by an old stone bridge, light through the leaves"


def write(folder, layers):
    """An encoder with generated weights, as published ones are: activations stay near 1."""
    config = T5Config(vocab_size=32128, d_model=4096, d_kv=64, d_ff=10240, num_layers=layers, num_heads=64, feed_forward_proj="gated-gelu",
                      dropout_rate=0.0, architectures=["T5EncoderModel"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict(), indent=2))
    if (folder / "model.safetensors").is_file():
        return
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in T5EncoderModel(config).state_dict().items()}
    shapes.pop("encoder.embed_tokens.weight", None)
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name, shape in shapes.items():
        spread = 1.0 if name == "shared.weight" or len(shape) == 1 else 0.5 * shape[-1] ** -0.5 / (8 if name.endswith(".q.weight") else 1)
        drawn = torch.randn(shape, generator=generator) * spread
        tensors[name] = (1 + 0.1 * drawn if len(shape) == 1 else drawn).bfloat16()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def serve(folder, ids, out, threads):
    """The contestant, a process of its own: a forward pass for each line that comes."""
    torch.set_num_threads(threads)
    model = T5EncoderModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.tensor([ids])
    for _ in sys.stdin:
        began = time.monotonic()
        states = model(tokens).last_hidden_state
        print(time.monotonic() - began, flush=True)
    save_file({"prompt_embeds": states}, out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--precision", default="auto", help="the program's; the policy's choice unless given")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.folder, json.loads(arguments.serve[0]), arguments.serve[1], arguments.threads)
    sys.path.insert(0, str(ROOT / "tests" / "judge"))
    import text_encoders

    with tempfile.TemporaryDirectory() as place:
        folder, own, other = arguments.folder or Path(place) / "t5", Path(place) / "own.safetensors", Path(place) / "other.safetensors"
        write(folder, arguments.layers)
        tokenizer = text_encoders.bundled()["t5"].fast("first")
        prompt = WORDS
        while len(tokenizer(prompt + ", " + WORDS).input_ids) <= TOKENS:
            prompt += ", " + WORDS
        ids = tokenizer(prompt, padding="max_length", max_length=TOKENS).input_ids
        ours = [arguments.program.resolve(), "embed", prompt, "--text-encoder", folder, "-o", own, "--json", "--as", "diffusers", "--text-tokens", TOKENS,
                "--threads", arguments.threads, "--device", "cpu", "--no-history", "--set", f"precision={arguments.precision}"]
        theirs = [sys.executable, __file__, arguments.program, "--folder", folder, "--threads", arguments.threads, "--serve", json.dumps(ids), other]
        times = {"transformers": [], "tilewright": []}
        with subprocess.Popen(list(map(str, theirs)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            for run in range(arguments.runs + 1):
                print("go", file=worker.stdin, flush=True)
                took = float(worker.stdout.readline())
                answer = subprocess.run(list(map(str, ours)), check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                (encoder,) = json.loads(answer.stdout)["encoders"]
                if run > 0:
                    times["transformers"].append(took)
                    times["tilewright"].append(encoder["outcome"]["elapsed_ms"] / 1000)
            worker.stdin.close()
            worker.wait()
        states = [load_file(path)["prompt_embeds"].double() for path in (own, other)]
    print(f"T5-XXL, {arguments.layers} of 24 layers, {TOKENS} tokens; the program's plan: {encoder['plan']}")
    for name, of in times.items():
        print(f"{name}: {statistics.mean(of):.2f} s ± {statistics.stdev(of):.2f} over {len(of)} runs, {statistics.mean(of) / arguments.layers:.3f} s a layer")
    print(f"ratio {statistics.mean(times['tilewright']) / statistics.mean(times['transformers']):.3f}")
    apart = (states[0] - states[1]).abs()
    print(f"states apart: {apart.max():.2e}, RMS {apart.square().mean().sqrt():.2e}, of values up to {states[1].abs().max():.2f}")


if __name__ == "__main__":
    main()
