"""`python -m tilewright.ray WORK SOURCE -o OUT`: a batch from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, cast

from ..errors import TilewrightError
from .batch import How, Summary, decode, encode, generate, sample

#: Options of a sample: name, type, help.
SAMPLING: tuple[tuple[str, type[Any], str], ...] = (
    ("width", int, "width in pixels"),
    ("height", int, "height in pixels"),
    ("frames", int, "frames of a clip"),
    ("steps", int, "steps"),
    ("seed", int, "the seed of all samples; an item may have its own"),
    ("cfg", float, "the factor of guidance by the negative prompt or conditioning"),
    ("guidance", float, "the guidance of a transformer that has it as an input"),
    ("sampler", str, "the sampler, by ComfyUI's name"),
    ("scheduler", str, "the scheduler, by ComfyUI's name"),
    ("shift", float, "the shift of the sigmas"),
    ("denoise", float, "the share of the way from noise that is gone"),
)

SOURCES = {
    "decode": "latents: files, a folder, a pattern in quotes as 'latents/*.latent', or a table (.jsonl, .parquet)",
    "encode": "pictures or clips: files, a folder, a pattern in quotes, or a table (.jsonl, .parquet)",
    "generate": "prompts: .txt with one a line, or a table (.jsonl, .parquet) with a field prompt and others",
    "sample": "conditionings: files, a folder, a pattern in quotes, or a table (.jsonl, .parquet)",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tilewright.ray",
        description="Runs a batch over the machines of a Ray cluster, or over this one. Started again with the same words, "
        "it makes what is not there yet.",
    )
    works = parser.add_subparsers(dest="work", required=True, metavar="WORK")
    for work, source in SOURCES.items():
        one = works.add_parser(work, help=source, description=f"{work.capitalize()}s {source}.")
        one.add_argument("source", metavar="SOURCE", help=source)
        one.add_argument("-o", "--out", required=True, metavar="FOLDER", help="the outputs' folder, or its address")
        if work in ("decode", "encode"):
            one.add_argument("--vae", required=True, metavar="FILE", help="the VAE's file, on each machine")
            one.add_argument("--scaled", action="store_true", help="latents carry the model's scaling, as diffusers has it")
        else:
            one.add_argument("--model", required=True, metavar="FILE|FOLDER", help="the model, on each machine")
            for name, kind, text in SAMPLING:
                one.add_argument(f"--{name}", type=kind, help=text)
        if work == "encode":
            one.add_argument("--frames", type=int, help="the most frames of a clip that are taken")
        if work == "decode":
            one.add_argument("--tensor", help="the tensor to decode, if files hold several")
        if work == "generate":
            one.add_argument("--negative-prompt", help="the prompt to lead away from, where an item has none")
        if work in ("decode", "generate"):
            one.add_argument("--fps", help="frames per second of clips")
        one.add_argument("--format", help="the format of the outputs")
        one.add_argument("--policy", metavar="NAME|FILE.wasm", help="the policy that decides (default: adaptive)")
        one.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the policy, repeatable")
        one.add_argument("--objective", choices=("fastest", "balanced", "leanest"), help="what counts most")
        one.add_argument("--memory-limit", metavar="SIZE", help="the most memory that a job may hold, as 8GiB")
        one.add_argument("--device", help="auto, cpu or cuda[:N]")
        one.add_argument("--workers", type=int, help="workers (default: one for each GPU, or for each machine)")
        one.add_argument("--cpus", type=int, help="cores of a worker without a GPU (default: a machine's)")
        one.add_argument("--address", help="the cluster's address; auto for the one that this machine is in")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Runs a batch. Returns 0 if each item has its outputs, 1 if any failed, and 2 if nothing could be done."""
    given = vars(_parser().parse_args(words))
    work, source, out = given.pop("work"), given.pop("source"), given.pop("out")
    try:
        summary = _run(work, source, out, {key: value for key, value in given.items() if value not in (None, False)})
    except TilewrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: started again with the same words, it makes what is not there yet", file=sys.stderr)
        return 130
    print(
        f"{summary.items} items in {summary.seconds:.1f} s: {summary.made} made, {summary.kept} there already, "
        f"{summary.failed} failed" + (f" ({out.rstrip('/')}/failed.jsonl says why)" if summary.failed else "")
    )
    return 1 if summary.failed else 0


def _run(work: str, source: str, out: str, given: dict[str, Any]) -> Summary:
    settings: dict[str, str] = {}
    for setting in given.pop("set"):
        key, equals, value = setting.partition("=")
        if not equals:
            raise TilewrightError(f"--set {setting}: expected KEY=VALUE")
        settings[key] = value
    if settings:
        given["settings"] = settings
    if work in ("generate", "sample"):
        chosen = {name: given.pop(name) for name, _, _ in SAMPLING if name in given}
        given["sample"] = chosen
    run: dict[str, Any] = {"decode": decode, "encode": encode, "generate": generate, "sample": sample}
    return cast("Summary", run[work](source, out, **cast("How", given)))


if __name__ == "__main__":
    sys.exit(main())
