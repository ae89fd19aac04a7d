"""Nodes for tests: inputs from a seed, and outputs as files, to the last bit."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

import torch
from comfy_api.v0_0_2 import ComfyExtension, io

#: Modules of this project that had been imported when ComfyUI loaded nodes.
AT_START = sorted(name for name in sys.modules if name.split(".")[0] == "tilewright")


def _shape(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _random(shape: str, seed: int) -> torch.Tensor:
    return torch.randn(_shape(shape), generator=torch.Generator().manual_seed(seed))


def _schema(name: str, inputs: list[Any], outputs: list[Any], **more: Any) -> io.Schema:
    return io.Schema(node_id=name, category="tests", inputs=inputs, outputs=outputs, **more)


class TestLatent(io.ComfyNode):
    """Normal values from a seed, or zeros."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        inputs = [io.String.Input("shape"), io.Int.Input("seed"), io.Float.Input("scale", default=1.0, optional=True)]
        return _schema("TestLatent", inputs, [io.Latent.Output()])

    @classmethod
    def execute(cls, shape: str, seed: int, scale: float = 1.0) -> io.NodeOutput:
        return io.NodeOutput({"samples": _random(shape, seed) * scale})


class TestImage(io.ComfyNode):
    """Smooth pictures [N, H, W, C] in 0 … 1."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return _schema("TestImage", [io.String.Input("shape"), io.Int.Input("seed")], [io.Image.Output()])

    @classmethod
    def execute(cls, shape: str, seed: int) -> io.NodeOutput:
        count, height, width, channels = _shape(shape)
        small = _random(f"{count},{channels},{max(2, height // 16)},{max(2, width // 16)}", seed)
        large = torch.nn.functional.interpolate(small, (height, width), mode="bicubic")
        return io.NodeOutput(large.mul(0.25).add(0.5).clamp(0, 1).movedim(1, -1).contiguous())


class TestConditioning(io.ComfyNode):
    """The states of a text that nobody wrote, [1, tokens, width]."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        inputs = [io.Int.Input("tokens"), io.Int.Input("width"), io.Int.Input("seed")]
        return _schema("TestConditioning", inputs, [io.Conditioning.Output()])

    @classmethod
    def execute(cls, tokens: int, width: int, seed: int) -> io.NodeOutput:
        return io.NodeOutput([[_random(f"1,{tokens},{width}", seed), {}]])


class TestSave(io.ComfyNode):
    """Writes values to a file of safetensors in the folder for outputs, or forgets them."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        inputs = [
            io.String.Input("name"),
            io.Latent.Input("latent", optional=True),
            io.Image.Input("image", optional=True),
        ]
        return _schema("TestSave", inputs, [], is_output_node=True, not_idempotent=True)

    @classmethod
    def execute(cls, name: str, latent: Any = None, image: Any = None) -> io.NodeOutput:
        import folder_paths
        from safetensors.torch import save_file

        tensor = image if latent is None else latent["samples"]
        if name:
            path = os.path.join(folder_paths.get_output_directory(), name)
            save_file({"values": tensor.contiguous().cpu()}, path)
        return io.NodeOutput(ui={"text": [str(list(tensor.shape))]})


class TestShortOfMemory(io.ComfyNode):
    """A model that runs out of memory from a step on, if too many rows go through the network at once."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        inputs = [io.Model.Input("model"), io.Int.Input("rows"), io.Int.Input("calls")]
        return _schema("TestShortOfMemory", inputs, [io.Model.Output()])

    @classmethod
    def execute(cls, model: Any, rows: int, calls: int) -> io.NodeOutput:
        made = 0

        def call(apply: Any, asked: dict[str, Any]) -> torch.Tensor:
            nonlocal made
            made += 1
            if made > calls and asked["input"].shape[0] > rows:
                raise torch.OutOfMemoryError("out of memory: tried to allocate 1.00 GiB")
            return apply(asked["input"], asked["timestep"], **asked["c"])

        own = model.clone()
        own.set_model_unet_function_wrapper(call)
        return io.NodeOutput(own)


class TestFailingVAE(io.ComfyNode):
    """A VAE that runs out of memory with more pixels than this at once, 0 for any, and whose first convolution's output is
    so many times larger; for good."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        inputs = [io.Vae.Input("vae"), io.Int.Input("most"), io.Float.Input("scale", max=1e9)]
        return _schema("TestFailingVAE", inputs, [io.Vae.Output()])

    @classmethod
    def execute(cls, vae: Any, most: int, scale: float) -> io.NodeOutput:
        def look(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            if output.shape[-2] * output.shape[-1] > most:
                raise torch.OutOfMemoryError("out of memory: tried to allocate 1.00 GiB")

        decoder = vae.first_stage_model.decoder
        if most:
            for module in decoder.modules():
                if isinstance(module, (torch.nn.Conv2d, torch.nn.Conv3d)):
                    module.register_forward_hook(look)
        first = decoder.conv1 if hasattr(decoder, "conv1") else decoder.conv_in
        with torch.no_grad():
            first.weight.mul_(scale)
        return io.NodeOutput(vae)


class TestOptions(io.ComfyNode):
    """Shows what of a model's handle a run may have changed."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        inputs = [io.Model.Input("model"), io.Latent.Input("after")]
        return _schema("TestOptions", inputs, [], is_output_node=True, not_idempotent=True)

    @classmethod
    def execute(cls, model: Any, after: Any) -> io.NodeOutput:
        hooks = sum(len(one._forward_pre_hooks) for one in model.model.diffusion_model.modules())
        shown = {
            "options": sorted(model.model_options["transformer_options"]),
            "patches": sorted(model.object_patches),
            "own": sorted(name for name in vars(model) if name == "get_free_memory"),
            "dtype": str(model.get_model_object("manual_cast_dtype")),
            "hooks": hooks,
        }
        return io.NodeOutput(ui={"text": [json.dumps(shown)]})


class TestShow(io.ComfyNode):
    """Shows a text."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return _schema("TestShow", [io.String.Input("text", force_input=True)], [], is_output_node=True)

    @classmethod
    def execute(cls, text: str) -> io.NodeOutput:
        return io.NodeOutput(ui={"text": [text]})


class TestDigest(io.ComfyNode):
    """Shows a digest of a model's weights, patches applied, and what else it was loaded with."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        inputs = [
            io.Model.Input("model", optional=True),
            io.Clip.Input("clip", optional=True),
            io.Vae.Input("vae", optional=True),
        ]
        return _schema("TestDigest", inputs, [], is_output_node=True, not_idempotent=True)

    @classmethod
    def execute(cls, model: Any = None, clip: Any = None, vae: Any = None) -> io.NodeOutput:
        from comfy import model_management

        shown: dict[str, Any] = {}
        for name, patcher in (
            ("model", model),
            ("clip", None if clip is None else clip.patcher),
            ("vae", None if vae is None else vae.patcher),
        ):
            if patcher is None:
                continue
            model_management.load_models_gpu([patcher])
            state = patcher.model.state_dict()
            digest = hashlib.sha256()
            for key in sorted(state):
                values = state[key].detach().cpu().contiguous()
                digest.update(f"{key} {values.dtype} {tuple(values.shape)}".encode())
                digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
            shown[name] = {
                "digest": digest.hexdigest(),
                "class": type(patcher.model).__name__,
                "tensors": len(state),
                "dtypes": sorted({str(one.dtype) for one in state.values()}),
                "load": str(patcher.load_device),
                "offload": str(patcher.offload_device),
                "patches": len(patcher.patches),
            }
        return io.NodeOutput(ui={"text": [json.dumps(shown)]})


class TestModules(io.ComfyNode):
    """Shows the modules of this project that had been imported when ComfyUI loaded nodes, and those that are now."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return _schema("TestModules", [], [], is_output_node=True, not_idempotent=True)

    @classmethod
    def execute(cls) -> io.NodeOutput:
        now = sorted(name for name in sys.modules if name.split(".")[0] == "tilewright")
        return io.NodeOutput(ui={"text": [json.dumps({"start": AT_START, "now": now})]})


class TestAllocations(io.ComfyNode):
    """Decodes, and shows the most bytes of tensors that there were at once, beyond those before."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        inputs = [io.Latent.Input("samples"), io.Vae.Input("vae")]
        return _schema("TestAllocations", inputs, [], is_output_node=True, not_idempotent=True)

    @classmethod
    def execute(cls, samples: Any, vae: Any) -> io.NodeOutput:
        from tilewright.executor import governor

        profiles: list[Any] = []

        # Allocations are told to the thread that makes them, and a decode by policy has one of its own.
        def profiled(*work: Any) -> Any:
            activities = [torch.profiler.ProfilerActivity.CPU]
            with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
                output = carry_out(*work)
            profiles.append(profile.profiler)
            return output

        carry_out, governor.carry_out = governor.carry_out, profiled
        try:
            vae.decode(samples["samples"])
        finally:
            governor.carry_out = carry_out
        (recorded,) = profiles
        events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
        held = most = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            held += event.nbytes()
            most = max(most, held)
        return io.NodeOutput(ui={"text": [str(most)]})


class TestExtension(ComfyExtension):
    """The nodes."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [
            TestLatent, TestImage, TestConditioning, TestSave, TestShortOfMemory, TestFailingVAE, TestOptions, TestShow,
            TestDigest, TestModules, TestAllocations,
        ]  # fmt: skip


async def comfy_entrypoint() -> TestExtension:
    """ComfyUI's way in."""
    return TestExtension()
