"""A batch on Ray Data: the items of a source, on actors that keep a model loaded."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union, cast

from .. import api
from ..engine import Model
from ..errors import TilewrightError, one_line
from .outputs import FAILED, Place, files_of
from .worker import Task, Worker
from .works import DECODE, ENCODE, GENERATE, SAMPLE, Work, check_name, digest

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: A source of items: a path, an address or a pattern of files; a table (.jsonl, .parquet, and for prompts .txt); items as
#: texts or mappings; or a dataset of Ray's.
Source = Union[str, "os.PathLike[str]", Iterable[Union[str, Mapping[str, Any]]], Any]

#: The most items that a worker is given at once.
MOST_AT_ONCE = 16

#: The pieces that each worker's share is divided into, so that none waits long for the last.
PIECES = 16


class How(TypedDict, total=False):
    """Keyword arguments: where a batch runs, and how policies decide in it.

    `device`, `memory_limit`, `policy`, `settings`, `program` and `config` are those of each worker's `Engine`; a policy's
    file is read here, and needs to be nowhere else. `objective`, `allow`, `count_weights`, `deadline_s` and `profile` are
    those of each request. `workers` is the number of workers; one for each GPU, or without GPUs for each machine, if it
    is left out. `cpus` are the cores of a worker without a GPU; a machine's if it is left out. `address` is the cluster's,
    `"auto"` for the one that this machine is in; a cluster of this machine alone if it is left out and `RAY_ADDRESS` names
    none. `on_item` is called with what became of each item as it ends.
    """

    device: str
    memory_limit: int | str | None
    policy: str | os.PathLike[str]
    settings: Mapping[str, Any] | None
    program: str | os.PathLike[str] | None
    config: Mapping[str, Any] | None
    objective: Literal["fastest", "balanced", "leanest"] | None
    allow: Sequence[str]
    count_weights: bool
    deadline_s: int | None
    profile: bool
    workers: int | None
    cpus: int | None
    address: str | None
    on_item: Callable[[Mapping[str, Any]], None] | None


#: The arguments of How that are an engine's.
ENGINE = ("device", "memory_limit", "policy", "settings", "program", "config")

#: The arguments of How that are a request's.
REQUEST = ("objective", "allow", "count_weights", "deadline_s", "profile")


@dataclass(frozen=True)
class Summary:
    """What became of a batch.

    Attributes:
        made: items whose outputs were made.
        kept: items whose outputs were there from an earlier run.
        failed: items that failed; `failed.jsonl` among the outputs names each with its error.
        seconds: seconds that it took, workers' starts included.
    """

    made: int
    kept: int
    failed: int
    seconds: float

    @property
    def items(self) -> int:
        """All items."""
        return self.made + self.kept + self.failed


def decode(
    latents: Source,
    out: str | os.PathLike[str],
    *,
    vae: Model,
    format: api.OutputFormat | None = None,
    scaled: bool = False,
    tensor: str | None = None,
    fps: str | None = None,
    **how: Unpack[How],
) -> Summary:
    """Decodes latents into pictures or clips.

    Args:
        latents: files, as `"latents/*.latent"`; or items with `latent`, a path, a file's bytes or an array, and `name`.
        out: the folder of the outputs, or its address, as `"s3://bucket/folder"`.
        vae: the VAE's file or the model that has it, on each machine.
        format: the format of the outputs: png for pictures and mp4 for clips if it is left out.
        scaled: latents carry the model's scaling, as diffusers saves them.
        tensor: the tensor to decode, if files hold several.
        fps: frames per second of clips.
        how: where it runs, and how policies decide.

    Raises:
        TilewrightError: the source has no items or an odd one, or the workers' engines don't start.
    """
    options = {"format": format, "scaled": scaled or None, "tensor": tensor, "fps": fps}
    return _run(DECODE, latents, out, _only("vae", vae), options, how)


def encode(
    images: Source,
    out: str | os.PathLike[str],
    *,
    vae: Model,
    format: api.OutputFormat | None = None,
    scaled: bool = False,
    frames: int | None = None,
    **how: Unpack[How],
) -> Summary:
    """Encodes pictures or clips into latents.

    Args:
        images: files; or items with `image`, a path, a file's bytes or an array, and `name`.
        out: as for `decode`.
        vae: as for `decode`.
        format: latent or safetensors; latent if it is left out.
        scaled: latents get the model's scaling, as diffusers has them.
        frames: the most frames of a clip that are taken.
        how: where it runs, and how policies decide.

    Raises:
        TilewrightError: as `decode`.
    """
    options = {"format": format, "scaled": scaled or None, "frames": frames}
    return _run(ENCODE, images, out, _only("vae", vae), options, how)


def generate(
    prompts: Source,
    out: str | os.PathLike[str],
    *,
    model: Model,
    negative_prompt: str | None = None,
    sample: api.SampleOptions | None = None,
    format: api.OutputFormat | None = None,
    fps: str | None = None,
    text_tokens: int | None = None,
    **how: Unpack[How],
) -> Summary:
    """Makes pictures or clips of prompts.

    Args:
        prompts: texts; items with `prompt`, and with `name`, `negative_prompt`, `image`, `mask` and settings of a sample,
            as `seed` and `steps`, where they have their own; or a table of such: .jsonl, .parquet, or .txt with a prompt
            a line.
        out: as for `decode`.
        model: the model, on each machine, as an engine takes it.
        negative_prompt: the prompt to lead away from, where an item has none.
        sample: settings of all samples.
        format: as for `decode`.
        fps: frames per second of clips.
        text_tokens: the tokens that T5 reads at least.
        how: where it runs, and how policies decide.

    Raises:
        TilewrightError: as `decode`.
    """
    options = {
        "format": format, "fps": fps, "text_tokens": text_tokens, "negative_prompt": negative_prompt,
        "sample": dict(sample or {}),
    }  # fmt: skip
    return _run(GENERATE, prompts, out, model, options, how)


def sample(
    conditionings: Source,
    out: str | os.PathLike[str],
    *,
    model: Model,
    sample: api.SampleOptions | None = None,
    format: api.OutputFormat | None = None,
    **how: Unpack[How],
) -> Summary:
    """Makes latents of conditionings.

    Args:
        conditionings: files; or items with `conditioning`, and with `name`, `negative`, `latent`, `noise`, `mask` and
            settings of a sample, where they have their own.
        out: as for `decode`.
        model: the transformer's file or the model that has it, on each machine.
        sample: settings of all samples.
        format: safetensors or latent.
        how: where it runs, and how policies decide.

    Raises:
        TilewrightError: as `decode`.
    """
    options = {"format": format, "sample": dict(sample or {})}
    return _run(SAMPLE, conditionings, out, _only("transformer", model), options, how)


def _only(part: str, model: Model) -> Model:
    """A file alone is that part; a folder or a checkpoint is looked through."""
    if isinstance(model, Mapping):
        return model
    return {part: model}


def _run(
    work: Work,
    source: Source,
    out: str | os.PathLike[str],
    model: Model,
    options: Mapping[str, Any],
    how: How,
    worker: type[Worker] = Worker,
) -> Summary:
    begun = time.monotonic()
    unknown = sorted(set(how) - set(How.__annotations__))
    if unknown:
        raise TypeError(f"{unknown[0]}: no such argument: expected one of {', '.join(sorted(How.__annotations__))}")
    place = Place(os.fspath(out))
    items = _items(work, source, _absolute(os.fspath(out)))
    ray, data = _ray(how.get("address"))
    given = cast("dict[str, Any]", how)
    engine = {key: given[key] for key in ENGINE if key in given}
    requested = {key: value for key, value in {**options, **{key: given.get(key) for key in REQUEST}}.items() if value}
    module, engine = _module(engine)
    task = Task(
        work.name,
        _absolute(os.fspath(out)),
        _absolute_model(model),
        requested,
        engine,
        module,
        is_named=items is not None,
        request=digest(work.name, _absolute_model(model), requested, {key: str(value) for key, value in engine.items()}, module or b""),
    )
    crew = _crew(ray, how, engine.get("device", "auto"))
    task = _with_threads(task, crew.threads)
    if items is None:
        dataset = _dataset(data, source)
    else:
        at_once = max(1, min(MOST_AT_ONCE, len(items) // (crew.workers * PIECES)))
        blocks = -(-len(items) // at_once)
        rows = [{"name": name, "fields": json.dumps(fields)} for name, fields in items]
        dataset = data.from_items(rows, override_num_blocks=blocks)
    results = dataset.map(
        _bound(worker, task),
        compute=data.ActorPoolStrategy(min_size=1, max_size=crew.workers),
        num_cpus=crew.cpus,
        num_gpus=crew.gpus,
    )
    counts = {"made": 0, "kept": 0, "failed": 0}
    failures: list[bytes] = []
    for row in cast("Iterator[dict[str, Any]]", results.iter_rows()):
        if row["state"] == "fatal":
            raise TilewrightError(str(row["error"]))
        counts[row["state"]] += 1
        if row["state"] == "failed":
            failures.append(json.dumps({"name": row["name"], "error": row["error"]}, ensure_ascii=False).encode() + b"\n")
        if (on_item := how.get("on_item")) is not None:
            on_item(row)
    if failures:
        place.write(FAILED, b"".join(failures))
    else:
        place.remove(FAILED)
    return Summary(**counts, seconds=time.monotonic() - begun)


# Items.


def _items(work: Work, source: Source, out: str) -> list[tuple[str, dict[str, Any]]] | None:
    """The items of a source, by name; None for tables and datasets, which Ray reads.

    Raises:
        TilewrightError: there is none, one makes no sense, or two have the same name.
    """
    if isinstance(source, (str, os.PathLike)):
        named = os.fspath(cast("str | os.PathLike[str]", source))
        ending = os.path.splitext(named)[1].lower()
        if ending == ".parquet":
            return None
        if ending == ".jsonl" or (ending == ".txt" and work is GENERATE):
            return _named(work, _lines(named, ending))
        if work is GENERATE:
            raise TilewrightError(f"{named}: expected a table of prompts: .txt with one a line, .jsonl or .parquet")
        # Outputs among the inputs are none of them.
        files = [file for file in files_of(named) if not file[0].startswith(f"{out.rstrip('/')}/")]
        if not files:
            raise TilewrightError(f"{named}: there are only outputs: name a folder of {work.main}s")
        return _of_files(work, files)
    if hasattr(source, "iter_rows") and hasattr(source, "map"):
        return None
    return _named(work, source)


def _of_files(work: Work, files: Sequence[tuple[str, str, int]]) -> list[tuple[str, dict[str, Any]]]:
    stems = [os.path.splitext(within)[0] for _, within, _ in files]
    twice = {stem for stem in stems if stems.count(stem) > 1} if len(set(stems)) < len(stems) else set[str]()
    # Two files whose names differ by their endings keep them.
    return [
        (check_name(within if stem in twice else stem), {work.main: path})
        for (path, within, _), stem in zip(files, stems, strict=True)
    ]


def _lines(named: str, ending: str) -> Iterator[str | Mapping[str, Any]]:
    from .outputs import read_file

    content = read_file(named)
    try:
        text = (content.read_bytes() if isinstance(content, Path) else content).decode("utf-8-sig")
    except (OSError, UnicodeError) as error:
        raise TilewrightError(f"{named}: {one_line(str(error))}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if ending == ".txt":
            yield line.strip()
            continue
        try:
            found = json.loads(line)
        except ValueError as error:
            raise TilewrightError(f"{named}:{number}: {error}") from None
        if not isinstance(found, (dict, str)):
            raise TilewrightError(f"{named}:{number}: expected an object or a text")
        yield cast("str | dict[str, Any]", found)


def _named(work: Work, source: Iterable[Any]) -> list[tuple[str, dict[str, Any]]]:
    items: list[tuple[str, dict[str, Any]]] = []
    places: dict[str, int] = {}
    for number, given in enumerate(source):
        if isinstance(given, (str, os.PathLike)):
            fields: dict[str, Any] = {work.main: os.fspath(cast("str | os.PathLike[str]", given))}
        elif isinstance(given, Mapping):
            fields = {str(key): value for key, value in cast("Mapping[Any, Any]", given).items() if value is not None}
        else:
            raise TypeError(f"item {number + 1}: expected a text or a mapping, not {type(given).__name__}")
        try:
            work.check(fields)
            name = fields.pop("name", None)
            for key, value in fields.items():
                fields[key] = _portable(work, key, value)
            name = f"{number:06}-{digest(fields)[:8]}" if name is None else check_name(name)
        except TilewrightError as error:
            raise TilewrightError(f"item {number + 1}: {error}") from None
        if name in places:
            raise TilewrightError(f"items {places[name]} and {number + 1} have the same name: {name}")
        places[name] = number + 1
        items.append((name, fields))
    if not items:
        raise TilewrightError(f"there is no item to {work.name}")
    return items


def _portable(work: Work, key: str, value: Any) -> Any:
    """A field's value as another machine has it."""
    if key in work.files:
        if isinstance(value, os.PathLike):
            value = os.fspath(cast("os.PathLike[str]", value))
        if not isinstance(value, str):
            raise TilewrightError(f"{key}: expected a path: a dataset of Ray's can hold files and arrays")
        return value if "://" in value else os.path.abspath(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TilewrightError(f"{key}: {error}") from None
    return value


def _dataset(data: Any, source: Any) -> Any:
    if not isinstance(source, (str, os.PathLike)):
        return source
    return data.read_parquet(os.fspath(cast("str | os.PathLike[str]", source)))


# Where it runs.


@dataclass(frozen=True)
class _Crew:
    """Workers, and what Ray sets aside for each."""

    workers: int
    cpus: float | None
    gpus: float | None
    threads: int | None


def _ray(address: str | None) -> tuple[Any, Any]:
    try:
        ray: Any = importlib.import_module("ray")
        data: Any = importlib.import_module("ray.data")
    except ImportError as error:
        raise TilewrightError(f"Ray is not installed ({error}): pip install 'tilewright[ray]'") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, include_dashboard=False if address is None else None)
        except ConnectionError as error:
            raise TilewrightError(f"address: {one_line(str(error)) or 'there is no cluster'}") from None
    return ray, data


def _crew(ray: Any, how: How, device: str) -> _Crew:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = int(sum(node.get("GPU", 0) for node in nodes)) if device != "cpu" else 0
    workers, cpus = how.get("workers"), how.get("cpus")
    numbers: list[tuple[str, Any]] = [("workers", workers), ("cpus", cpus)]
    for name, value in numbers:
        if value is not None and (not isinstance(value, int) or value < 1):
            raise TilewrightError(f"{name}: expected a whole number from 1, not {value!r}")
    if gpus:
        return _Crew(workers or gpus, None, 1.0, None)
    cores = [int(node["CPU"]) for node in nodes if node.get("CPU")]
    if not cores:
        raise TilewrightError("the cluster has no machine with cores for work: `ray status` tells what it has")
    if cpus is not None:
        if cpus > max(cores):
            raise TilewrightError(f"cpus: no machine of the cluster has {cpus} cores: the largest has {max(cores)}")
        return _Crew(workers or sum(each // cpus for each in cores), float(cpus), None, cpus)
    # A worker computes with a whole machine, of which Ray keeps a core to read datasets with.
    least = min(cores)
    return _Crew(workers or len(cores), float(max(1, least - 1)), None, max(1, least * len(cores) // (workers or len(cores))))


def _bound(worker: type[Worker], task: Task) -> type[Worker]:
    """A worker that has its task: constructor arguments would lie in the object store, and be lost with it."""

    class Bound(worker):
        def __init__(self) -> None:
            super().__init__(task)

    Bound.__name__ = Worker.__name__
    return Bound


def _with_threads(task: Task, threads: int | None) -> Task:
    from dataclasses import replace

    return replace(task, threads=threads)


def _module(engine: dict[str, Any]) -> tuple[bytes | None, dict[str, Any]]:
    """A policy's file, which travels with the task."""
    policy: str | os.PathLike[str] | None = engine.get("policy")
    if policy is None or not os.fspath(policy).endswith(".wasm"):
        return None, engine
    try:
        module = Path(policy).read_bytes()
    except OSError as error:
        raise TilewrightError(f"policy: {policy}: {error.strerror or error}") from None
    return module, {key: value for key, value in engine.items() if key != "policy"}


def _absolute(named: str) -> str:
    return named if "://" in named else os.path.abspath(os.path.expanduser(named))


def _absolute_model(model: Model) -> Model:
    if isinstance(model, Mapping):
        return {key: _absolute_value(value) for key, value in model.items()}
    return cast(Model, _absolute_value(model))


def _absolute_value(value: Any) -> Any:
    """A path that is there from here, as it is from anywhere; a model's name stays."""
    if isinstance(value, os.PathLike):
        value = os.fspath(cast("os.PathLike[str]", value))
    if isinstance(value, str):
        return os.path.abspath(value) if os.path.exists(value) else value
    return value


