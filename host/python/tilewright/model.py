"""Models by their shapes: what a plan would hold, move and take, without loading weights and without PyTorch."""

from __future__ import annotations

import functools
import json
import operator
import os
import reprlib
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypedDict, Union, cast

from . import __version__, records
from ._json import encodable, expect, text_of, writing
from ._kinds import OF_STAGE, CapabilitiesT, CostT, PlanT, RecordT, RequestT
from ._program import find_program
from ._toml import SIZE, bytes_of
from .errors import ModelError, ProgramError, TilewrightError, last_error, last_line, one_line

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from . import _native

#: A file or folder.
AnyPath = Union[str, "os.PathLike[str]"]


class _Aims(TypedDict, total=False):
    memory_limit: int | str | None
    """The most to hold at once, in bytes or as `"8GiB"`; otherwise 80 % of what is free. Of samples and texts it counts
    the weights."""
    objective: records.Objective
    """What counts most; `balanced` if it is left out."""


class VaeWork(_Aims, total=False):
    """Keyword arguments: a decode or an encode, beside its pixels."""

    frames: int
    """Frames of a clip; 1 if it is left out."""
    batch: int
    """Samples; 1 if it is left out."""
    limit_counts_weights: bool
    """The limit counts the weights, and so do prices; otherwise none of them does."""
    allows_blended: bool
    """Tiles and chunks that are cross-faded are allowed where an exact plan fits, too."""


class DenoiseWork(_Aims, total=False):
    """Keyword arguments: a sample. Without `conditioning` it is of a prompt that is yet to be encoded, as
    `tilewright generate` makes it; with it, files are looked into, as `tilewright sample` does."""

    width: int
    """Pixels; the model's usual ones if they are left out. With `conditioning`, the size or `latent` is needed."""
    height: int
    """Pixels, as `width`."""
    frames: int
    """Frames of a clip; the model's usual ones if they are left out, or those of `latent`."""
    batch: int
    """Samples; 1 if it is left out."""
    text_tokens: int
    """Tokens of the conditioning; the model's usual ones if they are left out."""
    has_negative: bool
    """A negative prompt is given: each step has a second pass. If it is left out, there is one if `cfg` is not 1."""
    starts_with_picture: bool
    """The sample begins with a picture of its size."""
    conditioning: Sequence[str]
    """Files of conditionings, as `tilewright sample --conditioning` has them."""
    negative: Sequence[str]
    """Files of the conditionings that guidance leads away from."""
    latent: AnyPath
    """The file of latents to begin with."""
    noise: AnyPath
    """The file of the noise."""
    mask: AnyPath
    """The file of a mask: 1 where latents are made again."""
    seeds: Sequence[int]
    """One seed, or one for each sample."""
    steps: int
    """Steps; the model's usual ones if they are left out."""
    sigmas: Sequence[float]
    """The sigmas, one more than steps, in place of the scheduler's."""
    sampler: str
    """The sampler, by ComfyUI's name; the model's usual one if it is left out."""
    scheduler: str
    """The scheduler, by ComfyUI's name; the model's usual one if it is left out."""
    shift: float
    """The shift of the sigmas, in place of the model's."""
    guidance: float
    """The guidance that Flux.1 dev has as an input."""
    cfg: float
    """The factor of guidance by a negative prompt; 1 leaves it out."""
    denoise: float
    """The share of the way from noise that is gone, from 0 to 1, with `latent` or `starts_with_picture`."""
    reuse: float
    """Lets the policy skip network runs: the relative change of the output up to which the last one is used again."""
    convention: Literal["comfyui", "diffusers"]
    """The reference that is followed; `comfyui` if it is left out."""


class TextWork(_Aims, total=False):
    """Keyword arguments: a run of text encoders, of `prompts` or of texts of some `tokens`."""

    prompts: Sequence[str]
    """The prompts, of which each becomes a row of the conditioning."""
    tokens: Sequence[int]
    """The tokens of each text, in place of prompts."""
    convention: Literal["comfyui", "diffusers"]
    """The program whose reading of prompts is followed; `comfyui` if it is left out."""
    text_tokens: int
    """The tokens that a text encoder without positions of its own is trained for; the published ones if left out."""
    embeddings: AnyPath
    """A folder of embeddings that prompts may name."""


@dataclass(frozen=True)
class Field:
    """What the value of an argument may be."""

    expected: str
    #: Turns a value into JSON's; raises TypeError, ValueError or OverflowError if it is none of these.
    read: Callable[[Any], Any]


def _whole(least: int, most: int) -> Field:
    def read(value: Any) -> int:
        number = operator.index(value)
        if isinstance(value, bool) or not least <= number <= most:
            raise ValueError
        return number

    return Field(f"a whole number from {least} to {most}", read)


def _read_number(value: Any) -> float:
    if isinstance(value, (bool, str, bytes)):
        raise TypeError
    number = float(value)
    if not isfinite(number):
        raise ValueError
    return number


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    # Half a character is refused.
    value.encode()
    return value


def _several(field: Field) -> Field:
    def read(value: Any) -> list[Any]:
        if isinstance(value, (str, bytes, Mapping)):
            raise TypeError
        return [field.read(one) for one in value]

    return Field(f"a list of which each is {field.expected}", read)


FLAG = Field("True or False", _read_flag)
TEXT = Field("a text", _read_text)
PATH = Field("a path", lambda value: _read_text(os.fspath(value)))
NUMBER = Field("a finite number", _read_number)
COUNT = _whole(1, 2**32 - 1)
COUNT_OR_NONE = _whole(0, 2**32 - 1)
BYTES = _whole(0, 2**64 - 1)
LIMIT = Field(SIZE, bytes_of)

_AIMS = {"memory_limit": LIMIT, "objective": TEXT}

#: The arguments of each piece of work, and of models.
VAE_FIELDS = {
    "width": COUNT,
    "height": COUNT,
    "frames": COUNT,
    "batch": COUNT,
    "limit_counts_weights": FLAG,
    "allows_blended": FLAG,
    **_AIMS,
}
DENOISE_FIELDS = {
    **dict.fromkeys(("width", "height", "frames", "batch", "steps"), COUNT),
    **dict.fromkeys(("has_negative", "starts_with_picture"), FLAG),
    **dict.fromkeys(("conditioning", "negative"), _several(PATH)),
    **dict.fromkeys(("latent", "noise", "mask"), PATH),
    **dict.fromkeys(("sampler", "scheduler", "convention"), TEXT),
    **dict.fromkeys(("shift", "guidance", "cfg", "denoise", "reuse"), NUMBER),
    "text_tokens": COUNT_OR_NONE,
    "seeds": _several(BYTES),
    "sigmas": _several(NUMBER),
    **_AIMS,
}
TEXT_FIELDS = {
    "prompts": _several(TEXT),
    "tokens": _several(COUNT),
    "convention": TEXT,
    "text_tokens": COUNT_OR_NONE,
    "embeddings": PATH,
    **_AIMS,
}
MODEL_FIELDS = {
    **dict.fromkeys(("part", "family"), TEXT),
    **dict.fromkeys(("scaling_factor", "shift_factor", "boundary"), NUMBER),
    "loras": _several(PATH),
}


def read_field(name: str, value: Any, field: Field, error: type[TilewrightError] = ModelError) -> Any:
    """An argument's value as JSON has it.

    Raises:
        TilewrightError: it is none of the field's; of the class `error`.
    """
    try:
        return field.read(value)
    except (TypeError, ValueError, OverflowError):
        raise error(f"{name}: expected {field.expected}, not {reprlib.repr(value)}") from None


def _request(fields: Mapping[str, Field], options: Mapping[str, Any], **required: Any) -> str:
    """Arguments as JSON; of the options those that are given."""
    given = {**{name: value for name, value in options.items() if value is not None}, **required}
    for name in given:
        if name not in fields:
            raise ModelError(f"{name}: there is no such argument, but {', '.join(fields)}")
    return json.dumps({name: read_field(name, value, fields[name]) for name, value in given.items()})


class Device:
    """A device as it was measured: what the times of plans are worked out from. Nothing of it is needed here: a plan
    for a GPU can be priced on any machine."""

    __slots__ = ("_described", "_facts", "_memory", "native")

    def __init__(
        self, native: _native.Device, described: tuple[str, str | None], memory: Mapping[str, int] | None = None
    ) -> None:
        self.native = native
        self._described = described
        self._memory = dict(memory or {})
        self._facts: records.Device | None = None

    @classmethod
    def from_json(cls, text: str | bytes, host: str | bytes | None = None) -> Device:
        """A device from what `tilewright device --json` printed.

        Args:
            text: the JSON.
            host: the same of the processor beside a GPU, on which text encoders may run.

        Raises:
            ModelError: it is no such JSON, or an earlier program's.
        """
        from ._extension import native

        described = _decoded("text", text), None if host is None else _decoded("host", host)
        return cls(native.Device.of_json(*described), described)

    @classmethod
    def from_file(cls, path: AnyPath, host: AnyPath | None = None) -> Device:
        """A device from files of what `tilewright device --json` printed; see `from_json`.

        Raises:
            ModelError: a file can't be read, or has something else in it.
        """
        try:
            return cls.from_json(_content(path), None if host is None else _content(host))
        except ModelError as error:
            name = os.fspath(path)
            raise error if one_line(name) in str(error) else ModelError(f"{name}: {error}") from None

    @classmethod
    def measure(cls, *, device: str = "auto", program: AnyPath | None = None) -> Device:
        """A device of this machine. The program measures it, which takes seconds; it keeps the figures.

        Args:
            device: `auto`, `cpu` or `cuda[:N]`; ROCm answers to cuda, as in PyTorch. Beside a GPU, the processor is
                measured, too.
            program: the program's file, in place of the one that is found.

        Raises:
            ProgramError: there is no program, or it can't measure the device.
        """
        found = os.fspath(program) if program is not None else find_program()
        text = _described(found, device)
        try:
            measured = cls.from_json(text)
            is_cpu = measured.facts.backend == "cpu"
            return measured if is_cpu else cls.from_json(text, _described(found, "cpu"))
        except (ModelError, ValueError) as error:
            raise ProgramError(f"{found}: it describes no device as version {__version__} does: {error}") from None

    def with_memory(
        self, *, free_bytes: int | None = None, host_total_bytes: int | None = None, host_free_bytes: int | None = None
    ) -> Device:
        """The same device with other memory: what is free of its own, and what the host has and has free, in bytes."""
        asked = {"free_bytes": free_bytes, "host_total_bytes": host_total_bytes, "host_free_bytes": host_free_bytes}
        given = {name: read_field(name, value, BYTES) for name, value in asked.items() if value is not None}
        return Device(self.native.with_memory(**given), self._described, {**self._memory, **given})

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored_device, (self._described, self._memory)

    @property
    def facts(self) -> records.Device:
        """The facts that policies get."""
        if self._facts is None:
            self._facts = records.Device.from_json(self.native.facts())
        return self._facts

    @property
    def fingerprint(self) -> str:
        """All about the device, its driver and its PyTorch that changes how fast it is."""
        return self.native.fingerprint

    def __repr__(self) -> str:
        return f"<tilewright.Device {self.facts.name}, {self.facts.arch}>"


class Model:
    """What is in a model's files: an autoencoder of pictures or clips, a transformer, or text encoders. Only shapes and
    types are read.

    Args:
        paths: the files or folders of one part of a model: a VAE, a transformer (of WAN 2.2's two experts first the one
            for high noise), or all its text encoders.
        part: the part that is meant, if a file or a pipeline's folder holds several.
        family: the family, where the files can't tell: `sd`, `sdxl`, `sd3` or `flux`.
        scaling_factor: the scaling factor of latents, in place of the family's.
        shift_factor: their shift factor, in place of the family's.
        boundary: the sigma at which two experts take turns.
        loras: LoRAs as `tilewright sample --lora` has them: `FILE`, `FILE:0.5` or `FILE:0.5@high`.

    Raises:
        ModelError: a file can't be read, or is no such model.
    """

    __slots__ = ("_options", "_paths", "native")

    def __init__(
        self,
        *paths: AnyPath,
        part: Literal["vae", "transformer", "text-encoder"] | None = None,
        family: str | None = None,
        scaling_factor: float | None = None,
        shift_factor: float | None = None,
        boundary: float | None = None,
        loras: Sequence[AnyPath] = (),
    ) -> None:
        from ._extension import native

        names: list[str] = []
        for path in paths:
            names.append(_path_of(path))
        options: dict[str, Any] = {
            "part": part,
            "family": family,
            "scaling_factor": scaling_factor,
            "shift_factor": shift_factor,
            "boundary": boundary,
        }
        if loras:
            options["loras"] = loras
        # Wherever it is made again, its files are found.
        self._paths = [os.path.abspath(name) for name in names]
        absolute: list[str] = [os.path.abspath(one) for one in loras]
        self._options: dict[str, Any] = {**options, "loras": absolute}
        self.native = native.Model(names, _request(MODEL_FIELDS, options))

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), *self._paths, **self._options), ()

    @property
    def kind(self) -> Literal["vae", "video-vae", "transformer", "text-encoder"]:
        """What it is."""
        return self.native.kind

    @property
    def notes(self) -> list[str]:
        """Lines on LoRAs of which a part has no place in the transformer."""
        return self.native.notes

    def inspect(self) -> list[dict[str, Any]]:
        """What each file has in it: family, layout and types, as `tilewright inspect --json` prints it."""
        found: list[dict[str, Any]] = json.loads(self.native.inspect())
        return found

    def decode(self, device: Device, *, width: int, height: int, **request: Unpack[VaeWork]) -> VaeQuote:
        """A decode of latents [N, C, h, w] or [N, C, T, h, w], by its output: pictures [N, 3, H, W] or clips [N, 3, T, H, W].

        Args:
            device: what it is to run on.
            width: pixels.
            height: pixels.
            request: what else counts.

        Raises:
            ModelError: the model has no decoder, the sizes are none of its, or not even the leanest plan fits.
        """
        return Quote(self.native.decode(_native_of(device), _request(VAE_FIELDS, request, width=width, height=height)))

    def encode(self, device: Device, *, width: int, height: int, **request: Unpack[VaeWork]) -> VaeQuote:
        """An encode of pictures [N, 3, H, W] or of a clip [1, 3, T, H, W], by its input.

        Args:
            device: what it is to run on.
            width: pixels.
            height: pixels.
            request: what else counts.

        Raises:
            ModelError: the model has no encoder, the sizes are none of its, or not even the leanest plan fits.
        """
        return Quote(self.native.encode(_native_of(device), _request(VAE_FIELDS, request, width=width, height=height)))

    def denoise(self, device: Device, **request: Unpack[DenoiseWork]) -> DenoiseQuote:
        """A sample by a transformer: latents [N, C, h, w] or [N, C, T, h, w], by the pixels of what they decode to.

        Args:
            device: what it is to run on.
            request: what counts; the rest is as the model is usually run.

        Raises:
            ModelError: it is no transformer, the sizes are none of its, a file is of another model, or not even the
                leanest plan fits.
        """
        _check_denoise(request)
        return Quote(self.native.denoise(_native_of(device), _request(DENOISE_FIELDS, request)))

    def text(self, device: Device, **request: Unpack[TextWork]) -> list[TextQuote]:
        """The run of each text encoder, in the order in which the program runs them.

        Args:
            device: what it is to run on; one with a host lets plans choose between the two.
            request: `prompts`, or the `tokens` of each text, and what else counts.

        Raises:
            ModelError: it is no text encoder, a prompt can't be read, or not even the leanest plan fits.
        """
        return [Quote(quote) for quote in self.native.text(_native_of(device), _request(TEXT_FIELDS, request))]

    def __repr__(self) -> str:
        return one_line(f"<tilewright.Model {self.kind} {' '.join(self._paths)}>")


#: Arguments of a sample of which a later one has no meaning beside the first, as with `tilewright sample`.
EXCLUSIVE = (
    ("sigmas", ("steps", "scheduler", "denoise")),
    ("latent", ("width", "height", "frames")),
    ("conditioning", ("text_tokens", "has_negative", "starts_with_picture")),
)

#: Arguments of a sample, and those of which each needs one.
NEEDED = (
    ("negative", ("cfg",)),
    ("mask", ("latent",)),
    ("denoise", ("latent", "starts_with_picture")),
)

#: The same of a sample with `conditioning`.
NEEDED_WITH_CONDITIONING = (
    ("cfg", ("negative",)),
    ("width", ("height",)),
    ("height", ("width",)),
    ("conditioning", ("latent", "width")),
)


def _check_denoise(request: Mapping[str, Any]) -> None:
    """Refuses arguments of which one would go unheard.

    Raises:
        ModelError: there are such.
    """
    given = {name for name, value in request.items() if value is not None}
    for name, others in EXCLUSIVE:
        for other in others:
            if {name, other} <= given:
                raise ModelError(f"{other}: does not go with {name}: leave one of them out")
    for name, others in NEEDED + (NEEDED_WITH_CONDITIONING if "conditioning" in given else ()):
        if name in given and given.isdisjoint(others):
            raise ModelError(f"{name}: needs {' or '.join(others)}: give that, too")


class Quote(Generic[RequestT, CapabilitiesT, PlanT, CostT, RecordT]):
    """A piece of work on a device, with the prices of its plans. `Policy.decide` takes it. Safe from threads."""

    __slots__ = ("_capabilities", "_device", "_request", "kind", "native")

    def __init__(self, native: _native.Quote) -> None:
        self.native = native
        #: The kind of work.
        self.kind = OF_STAGE[native.stage]
        self._request: RequestT | None = None
        self._capabilities: CapabilitiesT | None = None
        self._device: records.Device | None = None

    @property
    def stage(self) -> records.Stage:
        """The stage."""
        return self.native.stage

    @property
    def request(self) -> RequestT:
        """The work itself, as policies get it."""
        if self._request is None:
            self._request = self.kind.request.from_json(self.native.request())
        return cast(RequestT, self._request)

    @property
    def capabilities(self) -> CapabilitiesT:
        """The plans that can be carried out."""
        if self._capabilities is None:
            self._capabilities = self.kind.capabilities.from_json(self.native.capabilities())
        return cast(CapabilitiesT, self._capabilities)

    @property
    def device(self) -> records.Device:
        """The facts of the device, as policies get them."""
        if self._device is None:
            self._device = records.Device.from_json(self.native.device())
        return self._device

    def estimates(self, plans: Sequence[PlanT]) -> list[CostT | str]:
        """The prices of plans, in their order: memory in bytes, times in milliseconds. A plan that can't be carried out has
        the reason instead, in one line."""
        for plan in plans:
            expect("a plan", plan, self.kind.plan)
        with writing("a plan", ModelError):
            asked = encodable(f"[{','.join([text_of(plan) for plan in plans])}]")
        answers: list[dict[str, Any]] = json.loads(self.native.estimate(asked))
        return [self.kind.cost.from_json(one["cost"]) if "cost" in one else one["error"] for one in answers]

    def estimate(self, plan: PlanT) -> CostT:
        """The price of a plan: memory in bytes, times in milliseconds.

        Raises:
            ModelError: it can't be carried out.
        """
        [cost] = self.estimates([plan])
        if isinstance(cost, str):
            raise ModelError(cost)
        return cost

    def layers(self, plan: PlanT) -> list[dict[str, Any]]:
        """The time of each layer by a plan, of a sample that of a step: `name` as the file calls it, `is_block` if it is one
        of the blocks that weights are streamed by, `runs`, and `seconds` in all of them."""
        expect("plan", plan, self.kind.plan)
        with writing("a plan", ModelError):
            asked = encodable(text_of(plan))
        found: list[dict[str, Any]] = json.loads(self.native.layers(asked))
        return found

    def with_history(self, path: AnyPath) -> Quote[RequestT, CapabilitiesT, PlanT, CostT, RecordT]:
        """The same work, with what earlier runs on the device took: policies are told of it.

        Args:
            path: the history's file, as `tilewright history path` prints it.

        Raises:
            ModelError: it can't be read.
        """
        return Quote(self.native.with_history(_path_of(path)))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a quote stays in its process: send the model and the device, and ask for the same work there")

    def __repr__(self) -> str:
        return f"<tilewright.Quote {self.stage}>"


VaeQuote = Quote[records.Request, records.Capabilities, records.Plan, records.Cost, records.Record]
"""A decode or an encode, priced."""

DenoiseQuote = Quote[
    records.DenoiseRequest, records.DenoiseCapabilities, records.DenoisePlan, records.DenoiseCost, records.DenoiseRecord
]
"""A sample, priced."""

TextQuote = Quote[records.TextRequest, records.TextCapabilities, records.TextPlan, records.TextCost, records.TextRecord]
"""A text encoder's run, priced."""


def _native_of(device: Device) -> _native.Device:
    expect("device", device, Device)
    return device.native


def _restored_device(described: tuple[str, str | None], memory: Mapping[str, int]) -> Device:
    """A device that was pickled or copied."""
    return Device.from_json(*described).with_memory(**memory)


def _decoded(name: str, text: str | bytes) -> str:
    expect(name, text, str, bytes)
    try:
        return text.decode() if isinstance(text, bytes) else read_field(name, text, TEXT)
    except UnicodeDecodeError as error:
        raise ModelError(f"the device's description is no UTF-8 ({error.reason} at byte {error.start})") from None


def _path_of(path: AnyPath) -> str:
    """A path that the system can be asked for.

    Raises:
        TypeError: it is none.
        ModelError: no file has such a name.
    """
    expect("path", path, str, os.PathLike)
    name = os.fspath(path)
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise ModelError(f"{name!r}: no file has such a name") from None
    return name


def _content(path: AnyPath) -> bytes:
    try:
        with open(_path_of(path), "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise ModelError(f"{os.fspath(path)}: {getattr(error, 'strerror', None) or error}") from None


def _described(program: str, device: str) -> str:
    """What the program prints of a device."""
    command = [program, "device", "--json", "--device", device]
    try:
        run = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    except (OSError, ValueError) as error:
        raise ProgramError(f"{program}: {getattr(error, 'strerror', None) or error}") from None
    if run.returncode != 0:
        nothing = f"it ended with status {run.returncode}, and said nothing"
        raise ProgramError(last_error(run.stderr) or f"{program}: {last_line(run.stderr) or nothing}")
    return run.stdout
