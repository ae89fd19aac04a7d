"""Graphs for a ComfyUI, as its page queues them."""

from __future__ import annotations

from typing import Any

Graph = dict[str, dict[str, Any]]

#: An output of a node: its name in the graph, and the output's number.
Link = tuple[str, int]


class Builder:
    """A graph, node by node."""

    def __init__(self) -> None:
        self.graph: Graph = {}

    def add(self, kind: str, /, *, at: str = "", **inputs: Any) -> Link:
        """Adds a node, and gives its first output.

        Args:
            kind: the node's id, as `VAEDecode`.
            at: its name in the graph; the next number if it is left out.
            inputs: values, and links to other nodes' outputs.
        """
        name = at or str(len(self.graph) + 1)
        given = {key: list(value) if isinstance(value, tuple) else value for key, value in inputs.items()}
        self.graph[name] = {"class_type": kind, "inputs": given}
        return name, 0


def policy(**given: Any) -> dict[str, Any]:
    """The inputs of a node by policy, with defaults for those that are left out."""
    return {"policy": "adaptive", "objective": "balanced", "memory_limit": "", "settings": "", **given}


def decode(
    vae: str, shape: str, name: str, *, seed: int = 1, governed: dict[str, Any] | None = None, kind: str = "VAEDecode",
    failing: dict[str, Any] | None = None, **more: Any,
) -> Graph:  # fmt: skip
    """A decode of normal latents from a seed, saved to a file; governed with inputs for VAE by policy, by a VAE that fails
    with inputs for the node for tests."""
    built = Builder()
    loaded = built.add("VAELoader", vae_name=vae)
    if failing is not None:
        loaded = built.add("TestFailingVAE", vae=loaded, **failing)
    if governed is not None:
        loaded = built.add("TilewrightVAE", vae=loaded, **{"allow_blended": False, "allow_lossy": False, **policy(**governed)})
    latent = built.add("TestLatent", shape=shape, seed=seed)
    image = built.add(kind, samples=latent, vae=loaded, **more)
    built.add("TestSave", name=name, image=image)
    return built.graph


def encode(
    vae: str, shape: str, name: str, *, seed: int = 1, governed: dict[str, Any] | None = None, kind: str = "VAEEncode",
    **more: Any,
) -> Graph:  # fmt: skip
    """An encode of smooth pictures or frames from a seed, saved to a file; governed as `decode`."""
    built = Builder()
    loaded = built.add("VAELoader", vae_name=vae)
    if governed is not None:
        loaded = built.add("TilewrightVAE", vae=loaded, **{"allow_blended": False, "allow_lossy": False, **policy(**governed)})
    image = built.add("TestImage", shape=shape, seed=seed)
    latent = built.add(kind, pixels=image, vae=loaded, **more)
    built.add("TestSave", name=name, latent=latent)
    return built.graph


def allocations(vae: str, shape: str, *, governed: dict[str, Any]) -> Graph:
    """A decode by policy of normal latents, whose node `held` shows the bytes that it allocates at its highest."""
    graph = decode(vae, shape, "", seed=2, governed=governed, kind="TestAllocations")
    (held,) = (name for name, node in graph.items() if node["class_type"] == "TestAllocations")
    (saved,) = (name for name, node in graph.items() if node["class_type"] == "TestSave")
    del graph[saved]
    graph["held"] = graph.pop(held)
    return graph


#: The shapes that samples are made of: their latents, and the width of the text's states.
LATENT, TEXT_WIDTH = "2,16,1,16,16", 4096


def guided(
    name: str,
    *,
    governed: dict[str, Any] | None = None,
    latent: str = LATENT,
    advanced: dict[str, Any] | None = None,
    short: tuple[int, int] | None = None,
    **asked: Any,
) -> Graph:
    """A sample by a KSampler, saved to a file.

    Args:
        name: the file's name.
        governed: inputs for the node by policy, in place of ComfyUI's own.
        latent: the shape of the latents.
        advanced: inputs of KSampler (Advanced), in place of KSampler.
        short: the model runs out of memory if so many rows go through it, after so many calls.
        asked: inputs of either.
    """
    built = Builder()
    model = built.add("UNETLoader", unet_name="transformer.safetensors", weight_dtype="default")
    if short is not None:
        model = built.add("TestShortOfMemory", model=model, rows=short[0], calls=short[1])
    inputs = {
        "model": model,
        "steps": 4,
        "cfg": 4.0,
        "sampler_name": "euler",
        "scheduler": "simple",
        "positive": built.add("TestConditioning", tokens=9, width=TEXT_WIDTH, seed=1),
        "negative": built.add("TestConditioning", tokens=7, width=TEXT_WIDTH, seed=2),
        "latent_image": built.add("TestLatent", shape=latent, seed=3, scale=0.0),
    }
    if advanced is None:
        inputs |= {"seed": 11, "denoise": 1.0}
    else:
        inputs |= {"add_noise": "enable", "noise_seed": 11, "start_at_step": 0, "end_at_step": 10000}
        inputs |= {"return_with_leftover_noise": "disable", **advanced}
    kind = "KSampler" if advanced is None else "KSamplerAdvanced"
    return _sampled(built, kind, {**inputs, **asked}, name, governed)


def custom(
    name: str,
    *,
    governed: dict[str, Any] | None = None,
    output: int = 0,
    guider: str = "CFGGuider",
    sampler: str = "euler",
    steps: int = 4,
    cfg: float = 4.0,
) -> Graph:
    """A sample by SamplerCustomAdvanced, saved to a file.

    Args:
        name: the file's name.
        governed: inputs for the node by policy, in place of ComfyUI's own.
        output: 0 for the latents, 1 for those without the noise that is left.
        guider: the guider's node.
        sampler: the sampler's name.
        steps: steps.
        cfg: the factor of guidance.
    """
    built = Builder()
    model = built.add("UNETLoader", unet_name="transformer.safetensors", weight_dtype="default")
    positive = built.add("TestConditioning", tokens=9, width=TEXT_WIDTH, seed=1)
    negative = built.add("TestConditioning", tokens=7, width=TEXT_WIDTH, seed=2)
    if guider == "CFGGuider":
        made = built.add(guider, model=model, positive=positive, negative=negative, cfg=cfg)
    else:
        made = built.add(guider, model=model, conditioning=positive)
    inputs = {
        "noise": built.add("RandomNoise", noise_seed=11),
        "guider": made,
        "sampler": built.add("KSamplerSelect", sampler_name=sampler),
        "sigmas": built.add("BasicScheduler", model=model, scheduler="simple", steps=steps, denoise=1.0),
        "latent_image": built.add("TestLatent", shape=LATENT, seed=3, scale=0.0),
    }
    return _sampled(built, "SamplerCustomAdvanced", inputs, name, governed, output)


def _sampled(
    built: Builder, kind: str, inputs: dict[str, Any], name: str, governed: dict[str, Any] | None, output: int = 0
) -> Graph:
    if governed is not None:
        kind = f"Tilewright{kind}"
        inputs = {**inputs, "allow_lossy": False, "step_reuse": 0.0, **policy(**governed)}
    sampled = built.add(kind, at="sampled", **inputs)
    latent = (sampled[0], output)
    built.add("TestSave", name=name, latent=latent)
    if governed is not None:
        built.add("TestShow", at="record", text=(sampled[0], 2 if "Custom" in kind else 1))
        if "model" in inputs:
            built.add("TestOptions", at="options", model=inputs["model"], after=latent)
    return built.graph
