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


class DenoiseWork(_Size, _Aims, total=False):
    """Keyword arguments: a sample, by the pixels of its picture or clip."""

    frames: int
    """Frames of a clip; 1 if it is left out."""
    batch: int
    """Samples; 1 if it is left out."""
    steps: int | None
    """Steps; the model's usual ones if they are left out."""
    sigmas: Sequence[float] | None
    """The sigmas, one more than steps, in place of the scheduler's."""
    sampler: str
    """The sampler, by ComfyUI's name; `euler` if it is left out."""
    scheduler: str
    """The scheduler, by ComfyUI's name; `simple` if it is left out."""
    text_tokens: int | None
    """Tokens of the conditioning; the model's usual ones if they are left out."""
    negative_tokens: int | None
    """Tokens of the conditioning to lead away from: with them, each step has a second pass."""
    image_tokens: int | None
    """Tokens of a picture's conditioning; without them there is none."""
    guidance: float | None
    """The guidance that Flux.1 dev has as an input."""
    reuse: float | None
    """The change of the network's output, over its size, up to which the last one may serve once more."""


class _Texts(TypedDict):
    tokens: Sequence[int]
    """The tokens of each text."""


class TextWork(_Texts, _Aims, total=False):
    """Keyword arguments: a text encoder's run."""


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
    """What is in a model's files: an autoencoder of pictures or clips, a denoiser, or a text encoder. Only shapes and
    types are read.

    Args:
        paths: the files or folders of one model; of WAN 2.2's two experts first the one for high noise.
        family: the family, where the files can't tell: `sd`, `sdxl`, `sd3` or `flux`.
        scaling: the scaling factor of latents, in place of the family's.
        shift: their shift, in place of the family's.
        boundary: the sigma at which two experts take turns.
        loras: LoRAs as `tilewright sample --lora` has them: `FILE`, `FILE:0.5` or `FILE:0.5@high`.

    Raises:
        ModelError: a file can't be read, or is no such model.
    """

    __slots__ = ("_paths", "native")

    def __init__(
        self,
        *paths: AnyPath,
        family: str | None = None,
        scaling: float | None = None,
        shift: float | None = None,
        boundary: float | None = None,
        loras: Sequence[AnyPath] = (),
    ) -> None:
        from ._extension import native

        names = [os.fspath(path) for path in paths]
        options: dict[str, Any] = {"family": family, "scaling": scaling, "shift": shift, "boundary": boundary}
        if loras:
            options["loras"] = [os.fspath(lora) for lora in loras]
        self._paths = names
        self.native = native.Model(names, _given(options))

    @property
    def kind(self) -> Literal["vae", "video-vae", "denoiser", "text-encoder"]:
        """What it is."""
        return self.native.kind

    def inspect(self) -> dict[str, Any]:
        """What the files have in them: family, layout and types, as `tilewright inspect --json` prints it."""
        found: dict[str, Any] = json.loads(self.native.inspect())
        return found

    def decode(self, device: Device, **request: Unpack[VaeWork]) -> VaeQuote:
        """A decode of latents [N, C, h, w] or [N, C, T, h, w], by its output: pictures [N, 3, H, W] or clips.

        Args:
            device: what it is to run on.
            request: `width`, `height` and what else counts.

        Raises:
            ModelError: the model has no decoder, the sizes are none of its, or not even the leanest plan fits.
        """
        return Quote(self.native.decode(device.native, _given(request)))

    def encode(self, device: Device, **request: Unpack[VaeWork]) -> VaeQuote:
        """An encode of pictures [N, 3, H, W] or of a clip, by its input.

        Args:
            device: what it is to run on.
            request: `width`, `height` and what else counts.

        Raises:
            ModelError: the model has no encoder, the sizes are none of its, or not even the leanest plan fits.
        """
        return Quote(self.native.encode(device.native, _given(request)))

    def denoise(self, device: Device, **request: Unpack[DenoiseWork]) -> DenoiseQuote:
        """A sample by a denoiser.

        Args:
            device: what it is to run on.
            request: `width`, `height` and what else counts.

        Raises:
            ModelError: it is no denoiser, the sizes are none of its, or not even the leanest plan fits.
        """
        return Quote(self.native.denoise(device.native, _given(request)))

    def text(self, device: Device, **request: Unpack[TextWork]) -> TextQuote:
        """A text encoder's run.

        Args:
            device: what it is to run on; one with a host lets plans choose between the two.
            request: `tokens`, the tokens of each text, and what else counts.

        Raises:
            ModelError: it is no text encoder, or not even the leanest plan fits.
        """
        return Quote(self.native.text(device.native, _given(request)))

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
        """The prices of plans, in their order. A plan that can't be carried out has the reason instead, in one line."""
        asked = f"[{','.join([text_of(plan) for plan in plans])}]"
        answers: list[dict[str, Any]] = json.loads(self.native.estimate(asked))
        return [self.kind.cost.from_json(one["cost"]) if "cost" in one else one["error"] for one in answers]

    def estimate(self, plan: PlanT) -> CostT:
        """The price of a plan.

        Raises:
            ModelError: it can't be carried out.
        """
        [cost] = self.estimates([plan])
        if isinstance(cost, str):
            raise ModelError(cost)
        return cost

    def layers(self, plan: PlanT) -> list[dict[str, Any]]:
        """The time of each layer by a plan, of a sample that of a step: `name` as the file calls it, `runs`, and
        `seconds` in all of them."""
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
    return json.dumps(given, default=list)


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
        run = subprocess.run([program, "device", "--json", "--device", device], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ProgramError(f"{program}: {error.strerror}") from None
    if run.returncode != 0:
        said = run.stderr.strip().splitlines() or [f"{program}: it ended with status {run.returncode}, and said nothing"]
        raise ProgramError(said[-1].removeprefix("error: "))
    return run.stdout
