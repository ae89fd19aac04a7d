"""One transformer of diffusers' as a process: reads weights once, then does forward passes on command. Started by denoise.py, not by hand.

    python denoise_worker.py '{"contestant": …, "family": …, "weights": …, "inputs": …, "sigma": …, "guidance": …, "threads": …}'

One command a line on standard input, one JSON object a line on standard output: `forward` answers with elapsed_s of the transformer's call
alone, `output PATH` also keeps the velocity, `profile` answers with a table of a GPU's kernels. `device` is optional. Weights are original
names', a .gguf file's or a .safetensors file's.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from diffusers import GGUFQuantizationConfig
from safetensors.torch import load_file, save_file

from network import Unfit  # also puts tests/judge on the path
from transformer_files import MODELS
from transformer_networks import CLASSES, flux_config, from_original_transformer, wan_transformer_config
from worker import DTYPES, serve


def config_of(family, shapes):
    """The arguments of diffusers' class for the transformer whose tensors have these shapes, in original names."""
    if {"flux": "img_in.weight", "wan": "patch_embedding.weight"}[family] not in shapes:
        raise Unfit(f"the weights are not those of a {family} transformer in original names, without prefix")
    if family == "flux":
        head, flux = shapes["double_blocks.0.img_attn.norm.query_norm.scale"][0], MODELS["flux-dev"]
        width, text = shapes["txt_in.weight"]
        config = flux_config(width // head, head, (16, 56, 56), blocks(shapes, "double_blocks."), blocks(shapes, "single_blocks."),
                             "guidance_in.in_layer.weight" in shapes, text, flux["pooled"])
    else:
        width, channels = shapes["patch_embedding.weight"][:2]
        # The head's size is the same in every published transformer.
        config = wan_transformer_config(width // 128, 128, shapes["blocks.0.ffn.0.weight"][0], blocks(shapes, "blocks."), channels,
                                        text=shapes["text_embedding.0.weight"][1])
    return config


def blocks(shapes, prefix):
    return 1 + max(int(name.removeprefix(prefix).split(".")[0]) for name in shapes if name.startswith(prefix))


def from_gguf(family, path, dtype):
    """diffusers' own way: weights stay quantised and every layer expands its own for each product."""
    from gguf import GGUFReader

    shapes = {tensor.name: tuple(int(size) for size in reversed(tensor.shape)) for tensor in GGUFReader(path).tensors}
    with tempfile.TemporaryDirectory() as folder:
        # In place of the one that it would fetch.
        described = {"_class_name": CLASSES[family].__name__} | config_of(family, shapes)
        (Path(folder) / "config.json").write_text(json.dumps(described))
        return CLASSES[family].from_single_file(str(path), config=folder, quantization_config=GGUFQuantizationConfig(compute_dtype=dtype),
                                                torch_dtype=dtype)


def from_safetensors(family, path, dtype):
    tensors = load_file(path)
    config = config_of(family, {name: value.shape for name, value in tensors.items()})
    tensors = {name: value.to(dtype) for name, value in from_original_transformer(tensors, config).items()}
    with torch.device("meta"):
        network = CLASSES[family](**config)
    network.load_state_dict(tensors, assign=True)
    if family == "wan":
        # Its tables are no weights, so no file has them.
        network.rope = type(network.rope)(network.rope.attention_head_dim, network.rope.patch_size, network.rope.max_seq_len)
    return network


class Worker:
    def __init__(self, options):
        torch.set_num_threads(options["threads"])
        torch.set_grad_enabled(False)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        self.device = options.get("device", "cpu")
        # diffusers-PRECISION, diffusers-PRECISION-compiled, openvino-PRECISION
        library, precision, *rest = options["contestant"].split("-")
        dtype, path = DTYPES[precision], Path(options["weights"])
        read = from_gguf if path.suffix == ".gguf" else from_safetensors
        # OpenVINO is told what to compute in, and given weights in f32.
        self.network = read(options["family"], path, torch.float32 if library == "openvino" else dtype).eval().to(self.device)
        given = load_file(options["inputs"])
        self.arguments = {"flux": flux_arguments, "wan": wan_arguments}[options["family"]](given, dtype, options)
        self.arguments = {name: value if value is None else value.to(self.device) for name, value in self.arguments.items()}
        self.shape = given["noise"].shape
        if "compiled" in rest:
            # Block by block: diffusers' own advice for transformers, and the quickest to compile.
            self.network.compile_repeated_blocks(fullgraph=True)
        if library == "openvino":
            self.network = OpenVino(self.network, self.arguments, precision, options["threads"])

    def forward(self):
        return {"elapsed_s": self.timed()[1]}

    def output(self, path):
        velocity, elapsed = self.timed()
        if len(self.shape) == 4:
            velocity = unpacked(velocity, self.shape)
        save_file({"velocity": velocity.float().cpu().contiguous()}, path)
        return {"elapsed_s": elapsed}

    def profile(self):
        """A table of the kernels that take the most time."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as found:
            self.timed()
        return {"profile": found.key_averages().table(sort_by="cuda_time_total", row_limit=14, max_name_column_width=60)}

    def synchronize(self):
        if self.device != "cpu":
            torch.cuda.synchronize()

    def timed(self):
        self.synchronize()
        start = time.perf_counter()
        velocity = self.network(**self.arguments, return_dict=False)[0]
        self.synchronize()
        return velocity, time.perf_counter() - start


class OpenVino:
    """The network traced, and compiled for the CPU."""

    def __init__(self, network, arguments, precision, threads):
        import openvino

        class Plain(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.network = network

            def forward(self, hidden_states, timestep, encoder_hidden_states):
                return self.network(hidden_states, timestep, encoder_hidden_states, return_dict=False)[0]

        self.names = ["hidden_states", "timestep", "encoder_hidden_states"]
        given = {name: arguments[name].float() for name in self.names}
        traced = openvino.convert_model(Plain().eval(), example_input=given, input=[tuple(value.shape) for value in given.values()])
        settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self.compiled = openvino.compile_model(traced, "CPU", settings)

    def __call__(self, return_dict, **arguments):
        given = [arguments[name].float().numpy() for name in self.names]
        return [torch.from_numpy(self.compiled(given)[0])]


# Flux's tokens, as diffusers' pipeline makes them, which can't be imported without the package transformers.
def packed(latent):
    count, channels, height, width = latent.shape
    parts = latent.view(count, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return parts.reshape(count, height * width // 4, channels * 4)


def unpacked(tokens, shape):
    count, channels, height, width = shape
    return tokens.view(count, height // 2, width // 2, channels, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(shape)


def places(height, width):
    ids = torch.zeros(height, width, 3)
    ids[..., 1] += torch.arange(height)[:, None]
    ids[..., 2] += torch.arange(width)[None]
    return ids.reshape(-1, 3)


def flux_arguments(given, dtype, options):
    height, width = given["noise"].shape[2:]
    text = given["prompt_embeds"].to(dtype)
    return {
        "hidden_states": packed(given["noise"].to(dtype)),
        "timestep": torch.tensor([options["sigma"]], dtype=dtype),
        "guidance": torch.tensor([options["guidance"]], dtype=torch.float32) if options["guidance"] is not None else None,
        "pooled_projections": given["pooled_prompt_embeds"].to(dtype),
        "encoder_hidden_states": text,
        "txt_ids": torch.zeros(text.shape[1], 3),
        "img_ids": places(height // 2, width // 2),
    }


def wan_arguments(given, dtype, options):
    return {
        "hidden_states": given["noise"].to(dtype),
        "timestep": torch.tensor([options["sigma"] * 1000]),
        "encoder_hidden_states": given["prompt_embeds"].to(dtype),
    }


if __name__ == "__main__":
    serve(Worker, json.loads(sys.argv[1]))
