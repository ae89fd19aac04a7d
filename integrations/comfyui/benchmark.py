"""The node Benchmark: a stock node against the governed one on identical inputs."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from comfy_api.v0_0_2 import io, ui

from .settings import CATEGORY

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .benchmark_runs import Case, Comparison
    from .plotting import Panel

#: Sizes that are published for such nodes.
PUBLISHED = "256x320, 512x512, 1024x1024"

#: A size: width, height and perhaps frames.
SIZE = re.compile(r"(\d+)\s*[x×]\s*(\d+)(?:\s*[x×]\s*(\d+))?")

#: The seed of random latents.
SEED = 1


class Benchmark(io.ComfyNode):
    """Stock and governed work, timed."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """Inputs and outputs."""
        return io.Schema(
            node_id="TilewrightBenchmark",
            display_name="Benchmark",
            category=CATEGORY,
            description="Measures ComfyUI's own way against the one by policy on the same inputs: after runs to warm "
            "up, in an "
            "order that changes from run to run, with mean, spread, ratio, peaks of memory and the difference of the "
            "outputs.",
            search_aliases=["performance", "VAE benchmark", "sampler benchmark"],
            is_output_node=True,
            inputs=[
                io.Combo.Input(
                    "work",
                    options=["decode", "encode", "sample"],
                    default="decode",
                    tooltip="decode and encode need both VAEs, sample a model, a conditioning and a latent.",
                ),
                io.Int.Input("runs", default=3, min=1, max=100, tooltip="Runs of each way that count."),
                io.Int.Input(
                    "warm_up", display_name="warm-up", default=1, min=0, max=20, tooltip="Runs of each way before them."
                ),
                io.String.Input(
                    "cases",
                    default=PUBLISHED,
                    tooltip="Sizes, as 512x512 or with frames 480x320x17, of random latents or pictures of the VAE's "
                    "kind. Without "
                    "an effect where a latent or picture is connected.",
                ),
                io.Vae.Input("vae", optional=True, tooltip="The VAE as it is."),
                io.Vae.Input("governed_vae", display_name="governed VAE", optional=True, tooltip="The output of VAE by "
                "policy."),
                io.Latent.Input("latent", optional=True, tooltip="The latent that is decoded, or that a sample begins "
                "from."),
                io.Image.Input("image", optional=True, tooltip="The pictures that are encoded."),
                io.Model.Input("model", optional=True, tooltip="The model as it is."),
                io.Model.Input(
                    "governed_model",
                    display_name="governed model",
                    optional=True,
                    tooltip="The output of a loader by policy; without it, the same model in the sampler by policy.",
                ),
                io.Conditioning.Input("positive", optional=True, tooltip="Of a sample: the conditioning to lead to."),
                io.Conditioning.Input("negative", optional=True, tooltip="Of a sample: the conditioning to lead away "
                "from."),
                io.Int.Input("steps", default=8, min=1, max=1000, optional=True, tooltip="Of a sample: its steps."),
                io.Float.Input("cfg", default=1.0, min=0.0, max=100.0, step=0.1, optional=True, tooltip="Of a sample: "
                "guidance."),
            ],
            outputs=[
                io.String.Output("table", display_name="table", tooltip="The measurements as a table."),
                io.Image.Output("plot", display_name="plot", tooltip="Times and peaks side by side."),
                io.String.Output("numbers", display_name="numbers", tooltip="The measurements as JSON, run by run."),
            ],
        )

    @classmethod
    def validate_inputs(cls, cases: str | None = None) -> bool | str:
        """Refuses sizes that are none, before anything runs."""
        from tilewright.errors import TilewrightError

        try:
            sizes_of(cases or PUBLISHED)
        except TilewrightError as error:
            return str(error)
        return True

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> Any:
        """Always another: to queue it again is to measure again."""
        return float("nan")

    @classmethod
    def execute(
        cls,
        work: str,
        runs: int,
        warm_up: int,
        cases: str,
        steps: int = 8,
        cfg: float = 1.0,
        vae: Any = None,
        governed_vae: Any = None,
        latent: dict[str, Any] | None = None,
        image: Tensor | None = None,
        model: Any = None,
        governed_model: Any = None,
        positive: Any = None,
        negative: Any = None,
    ) -> io.NodeOutput:
        """The table, the plot and the numbers.

        Raises:
            TilewrightError: an input is missing that the work needs, or no case makes sense.
        """
        import comfy.utils

        from . import plotting
        from .benchmark_runs import compare, table

        if work == "sample":
            needed = {"model": model, "positive": positive, "latent": latent}
            if cfg != 1.0:
                needed["negative"] = negative
            _need(work, needed)
            found = [_sample_case(model, governed_model, positive, negative, latent, steps, cfg)]
            device = model.load_device
        else:
            _need(work, {"vae": vae, "governed_vae": governed_vae})
            given = latent["samples"] if work == "decode" and latent is not None else None
            given = image if work == "encode" else given
            inputs = _inputs(work, vae, sizes_of(cases)) if given is None else [(_label(given), given)]
            found = [_vae_case(work, vae, governed_vae, label, value) for label, value in inputs]
            device = vae.device
        bar = comfy.utils.ProgressBar(len(found) * (runs + warm_up) * 2)
        measured = [compare(case, device, runs=runs, warm_up=warm_up, on_run=lambda: bar.update(1)) for case in found]
        text, plot = table(measured), plotting.plot(_panels(measured))
        numbers = {
            "device": str(device),
            "runs": runs,
            "warm_up": warm_up,
            "cases": [one.to_dict() for one in measured],
        }
        shown = {**ui.PreviewImage(plot, cls=cls).as_dict(), **ui.PreviewText(text).as_dict()}
        return io.NodeOutput(text, plot, json.dumps(numbers), ui=shown)


def sizes_of(text: str) -> list[tuple[int, int, int]]:
    """Widths, heights and frames of cases.

    Raises:
        TilewrightError: one is no size.
    """
    from tilewright.errors import TilewrightError

    found: list[tuple[int, int, int]] = []
    for part in filter(None, re.split(r"[,;\s]+(?![x×])", text.strip())):
        read = SIZE.fullmatch(part.strip())
        if read is None or min(int(read[1]), int(read[2])) < 64 or int(read[3] or 1) < 1:
            raise TilewrightError(f"cases: {part}: expected sizes of 64 pixels or more, as 512x512 or 480x320x17")
        found.append((int(read[1]), int(read[2]), int(read[3] or 1)))
    if not found:
        raise TilewrightError(f"cases: expected sizes, as {PUBLISHED}")
    return found


def _need(work: str, inputs: dict[str, Any]) -> None:
    from tilewright.errors import TilewrightError

    missing = [name.replace("_", " ") for name, value in inputs.items() if value is None]
    if missing:
        raise TilewrightError(f"{work}: it needs {' and '.join(missing)}: connect what is missing")


def _inputs(work: str, vae: Any, sizes: list[tuple[int, int, int]]) -> Iterator[tuple[str, Tensor]]:
    """Random latents or pictures of the VAE's own kind, made when their turn comes."""
    import torch

    is_video = vae.latent_dim == 3
    for width, height, frames in sizes:
        generator = torch.Generator().manual_seed(SEED)
        count = frames if is_video else 1
        label = f"{width}×{height}" + (f"×{count}" if is_video else "")
        if work == "encode":
            yield label, torch.rand((count, height, width, 3), generator=generator)
            continue
        scale = vae.spacial_compression_decode()
        shape: list[int] = [1, vae.latent_channels, height // scale, width // scale]
        if is_video:
            temporal = vae.temporal_compression_decode() or 1
            shape.insert(2, (count - 1) // temporal + 1)
        yield label, torch.randn(shape, generator=generator)


def _label(values: Tensor) -> str:
    return "×".join(map(str, values.shape))


def _vae_case(work: str, vae: Any, governed: Any, label: str, value: Tensor) -> Case:
    from .benchmark_runs import Case

    return Case(
        f"{work} {label}",
        functools.partial(getattr(vae, work), value),
        functools.partial(getattr(governed, work), value),
    )


def _sample_case(
    model: Any, governed_model: Any, positive: Any, negative: Any, latent: Any, steps: int, cfg: float
) -> Case:
    """A sample by ComfyUI's sampler and by the one by policy, each with its model."""
    import nodes

    from .benchmark_runs import Case
    from .sampler_nodes import KSample, sample_guided
    from .settings import Choice

    other = positive if negative is None else negative
    asked = KSample(SEED, steps, cfg, "euler", "simple", positive, other, latent)

    def stock() -> torch.Tensor:
        return nodes.common_ksampler(model, SEED, steps, cfg, "euler", "simple", positive, other, latent)[0]["samples"]

    def governed() -> torch.Tensor:
        of = model if governed_model is None else governed_model
        return sample_guided(of, asked, Choice(), 0.0, "TilewrightBenchmark")[0]["samples"]

    return Case(f"sample {_label(latent['samples'])}, {steps} steps", stock, governed)


def _panels(measured: list[Comparison]) -> list[Panel]:
    from .benchmark_runs import GOVERNED, STOCK
    from .plotting import Bar, Panel

    times: list[Bar] = []
    peaks: list[Bar] = []
    for one in measured:
        for way, side in ((STOCK, one.stock), (GOVERNED, one.governed)):
            note = "failed" if side.error else ""
            times.append(Bar(one.case.replace(" ", "\n", 1), side.mean_ms, way, spread=side.deviation_ms, note=note))
            peaks.append(Bar(one.case.replace(" ", "\n", 1), side.peak_bytes / 2**20, way, note=note))
    return [Panel("Time", "ms", tuple(times)), Panel("Peak of memory", "MiB", tuple(peaks))]


NODES: list[type[io.ComfyNode]] = [Benchmark]
