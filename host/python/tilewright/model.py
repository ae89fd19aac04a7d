"""Models by their shapes: what a plan would hold, move and take, without loading weights and without PyTorch."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, Union, cast

from . import records
from ._json import text_of
from ._kinds import OF_STAGE, CapabilitiesT, CostT, PlanT, RecordT, RequestT
from ._program import find_program
from .errors import ModelError, ProgramError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from . import _native

#: A file or folder.
AnyPath = Union[str, "os.PathLike[str]"]


class _Aims(TypedDict, total=False):
    memory_limit: int | None
    """The most bytes to hold at once; otherwise 80 % of what is free. Of samples and texts it counts the weights."""
    objective: records.Objective
    """What counts most; `balanced` if it is left out."""


class _Size(TypedDict):
    width: int
    """Pixels."""
    height: int
    """Pixels."""


class VaeWork(_Size, _Aims, total=False):
    """Keyword arguments: a decode or an encode, by its pixels."""

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
    """Pixels; the model's usual ones if they are left out, or those of `latent`."""
    height: int
    """Pixels; the model's usual ones if they are left out, or those of `latent`."""
    frames: int
    """Frames of a clip; the model's usual ones if they are left out."""
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
    """The part of the way from noise that is gone, from 0 to 1."""
    reuse: float
    """The change of the network's output, over its size, up to which the last one may serve once more."""
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


class Device:
    """A device as it was measured: what the times of plans are worked out from. Nothing of it is needed here: a plan
    for a GPU can be priced on any machine."""

    __slots__ = ("_facts", "native")

    def __init__(self, native: _native.Device) -> None:
        self.native = native
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

        return cls(native.Device.of_json(_decoded(text), None if host is None else _decoded(host)))

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
            raise error if name in str(error) else ModelError(f"{name}: {error}") from None

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
        is_cpu = json.loads(text)["device"]["backend"] == "cpu"
        return cls.from_json(text, None if is_cpu else _described(found, "cpu"))

    def with_memory(
        self, *, free_bytes: int | None = None, host_total_bytes: int | None = None, host_free_bytes: int | None = None
    ) -> Device:
        """The same device with other memory: what is free of its own, and what the host has and has free, in bytes."""
        return Device(self.native.with_memory(free_bytes, host_total_bytes, host_free_bytes))

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

    __slots__ = ("_paths", "native")

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

        names = [os.fspath(path) for path in paths]
        options: dict[str, Any] = {
            "part": part,
            "family": family,
            "scaling_factor": scaling_factor,
            "shift_factor": shift_factor,
            "boundary": boundary,
        }
        if loras:
            options["loras"] = [os.fspath(lora) for lora in loras]
        self._paths = names
        self.native = native.Model(names, _given(options))

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

    def decode(self, device: Device, **request: Unpack[VaeWork]) -> VaeQuote:
        """A decode of latents [N, C, h, w] or [N, C, T, h, w], by its output: pictures [N, 3, H, W] or clips [N, 3, T, H, W].

        Args:
            device: what it is to run on.
            request: `width`, `height` and what else counts.

        Raises:
            ModelError: the model has no decoder, the sizes are none of its, or not even the leanest plan fits.
        """
        return Quote(self.native.decode(device.native, _given(request)))

    def encode(self, device: Device, **request: Unpack[VaeWork]) -> VaeQuote:
        """An encode of pictures [N, 3, H, W] or of a clip [1, 3, T, H, W], by its input.

        Args:
            device: what it is to run on.
            request: `width`, `height` and what else counts.

        Raises:
            ModelError: the model has no encoder, the sizes are none of its, or not even the leanest plan fits.
        """
        return Quote(self.native.encode(device.native, _given(request)))

    def denoise(self, device: Device, **request: Unpack[DenoiseWork]) -> DenoiseQuote:
        """A sample by a transformer: latents [N, C, h, w] or [N, C, T, h, w], by the pixels of what they decode to.

        Args:
            device: what it is to run on.
            request: what counts; the rest is as the model is usually run.

        Raises:
            ModelError: it is no transformer, the sizes are none of its, a file is of another model, or not even the
                leanest plan fits.
        """
        return Quote(self.native.denoise(device.native, _given(request)))

    def text(self, device: Device, **request: Unpack[TextWork]) -> list[TextQuote]:
        """The run of each text encoder, in the order in which the program runs them.

        Args:
            device: what it is to run on; one with a host lets plans choose between the two.
            request: `prompts`, or the `tokens` of each text, and what else counts.

        Raises:
            ModelError: it is no text encoder, a prompt can't be read, or not even the leanest plan fits.
        """
        return [Quote(quote) for quote in self.native.text(device.native, _given(request))]

    def __repr__(self) -> str:
        return f"<tilewright.Model {self.kind} {' '.join(self._paths)}>"


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
        asked = f"[{','.join([text_of(plan) for plan in plans])}]"
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
        found: list[dict[str, Any]] = json.loads(self.native.layers(text_of(plan)))
        return found

    def with_history(self, path: AnyPath) -> Quote[RequestT, CapabilitiesT, PlanT, CostT, RecordT]:
        """The same work, with what earlier runs on the device took: policies are told of it.

        Args:
            path: the history's file, as `tilewright history path` prints it.

        Raises:
            ModelError: it can't be read.
        """
        return Quote(self.native.with_history(os.fspath(path)))

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


def _given(options: Mapping[str, Any]) -> str:
    """The options that are given, as JSON."""
    given = {key: value for key, value in options.items() if value is not None}
    return json.dumps(given, default=_plain)


def _plain(value: Any) -> Any:
    """A path, or any sequence, as JSON has it."""
    return os.fspath(cast("os.PathLike[str]", value)) if hasattr(value, "__fspath__") else list(value)


def _decoded(text: str | bytes) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"the device's description is no UTF-8 ({error.reason} at byte {error.start})") from None


def _content(path: AnyPath) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ModelError(f"{os.fspath(path)}: {error.strerror}") from None


def _described(program: str, device: str) -> str:
    """What the program prints of a device."""
    try:
        run = subprocess.run(
            [program, "device", "--json", "--device", device], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise ProgramError(f"{program}: {error.strerror}") from None
    if run.returncode != 0:
        said = run.stderr.strip().splitlines() or [
            f"{program}: it ended with status {run.returncode}, and said nothing"
        ]
        raise ProgramError(said[-1].removeprefix("error: "))
    return run.stdout
