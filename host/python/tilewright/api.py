"""The types of the service's interface, with the fields and names of its JSON.

Made by make_api.py from the service's /openapi.json: change the Rust types, not this file.
"""

# ruff: noqa
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Union

from ._json import Message

Draw = Literal["random"]
"""A seed that is drawn: `random`, or -1 as other programs have it."""

JobStage = Literal["decode", "encode", "denoise", "generate"]
"""The kind of work that a job is."""

Objective = Literal["fastest", "balanced", "leanest"]
"""The objective of a plan."""

OutputFormat = Literal["png", "jpg", "webp", "safetensors", "latent", "mp4", "webm", "mkv", "gif"]
"""The format of a decode's output."""

StageAtWork = Literal["text", "encode", "denoise", "decode"]
"""The stage at work of a job that has several."""

State = Literal["queued", "running", "done", "failed", "cancelled", "expired"]
"""The state of a job."""

Seeds = Union[int, tuple[int, ...], Draw]
"""Seeds of 64 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alive(Message):
    """The answer of a server that is alive."""
    status: str
    """Always `alive`."""
    version: str
    """The program's version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision(Message):
    """A decision and its job."""
    canary: bool
    job: str
    """The job's id."""
    policy: str
    record: dict[str, Any]
    """The record, as `tilewright decode --json` or `sample --json` prints it."""
    revision: int
    route: str
    time: str
    """The time when the job was accepted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decisions(Message):
    """Decisions, newest first."""
    decisions: tuple[Decision, ...]
    next: str | None = None
    """The `before` of the next page; null on the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device(Message):
    """A device at work."""
    counts_weights: bool
    """The limit counts the weights that a job uses; otherwise it leaves them aside."""
    facts: dict[str, Any]
    """The device's properties, as policies are given them."""
    in_use_bytes: int
    """Handed out at the last look, weights included."""
    memory_limit_bytes: int
    """The most that a job may hold."""
    name: str
    """The device's name in the configuration."""
    pooled_bytes: int
    """Kept for the next allocations."""
    queue: int
    """The most that may."""
    queued: int
    """Jobs that wait."""
    running: bool
    """True if a job is at work."""
    weights_memory_bytes: int
    """The most weights that are kept on the hardware, in use or idle, for all models and all devices that
    share it. More only while they are in use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceList(Message):
    """Devices at work."""
    devices: tuple[Device, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeFields(Message):
    """A request for the latent of a picture or clip."""
    frames: int | None = None
    """The most frames of a clip that are taken, from its beginning; all of them if left out."""
    image_path: str | None = None
    """The picture's or clip's file on the server, absolute, below one of the configured roots; left out if it
    is uploaded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event(Message):
    """Something that happened."""
    detail: str
    """A line for people."""
    policy: str | None = None
    """The policy that it happened to."""
    revision: int | None = None
    """The revision that is in force since."""
    route: str | None = None
    """The route."""
    time: str
    """RFC 3339 in UTC."""
    what: str
    """One of: swapped, rolled-back, watchdog-rolled-back, paused, resumed, refused, promoted, canary-stopped,
    reloaded, reload-refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Events(Message):
    """Events, newest first."""
    events: tuple[Event, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job(Message):
    """A job, as callers see it. Times are RFC 3339 in UTC."""
    at: StageAtWork | None = None
    """The stage at work, of a job from a prompt; null before and after."""
    attempt: int | None = None
    """The attempt that `progress` belongs to, counted from 1 since `started`, while it runs; null before the
    first."""
    batch: int
    """Pictures or clips in the batch."""
    canary: bool
    """True if the policy decides on trial."""
    created: str
    """The time of acceptance."""
    device: str
    """The device's name."""
    digest: str
    """The module that the revision is made from."""
    error: str | None = None
    """The reason that there is no result, in a line."""
    finished: str | None = None
    """The time of its end."""
    format: OutputFormat
    """The format of the output."""
    frames: int
    """Frames of each."""
    height: int
    """Height in pixels."""
    id: str
    """The id; ids sort by the time of acceptance."""
    loading: float | None = None
    """The share of the weights that is loaded, 0 to 1, while they load; null before and after."""
    model: str
    """The model's name."""
    policy: str
    """The policy that decides for it."""
    position: int | None = None
    """Jobs before it on its device, while it waits."""
    profile: tuple[dict[str, Any], ...] | None = None
    """The profiles of the stages that have ended, in order, if the job was to be profiled: facts, times,
    categories, operators, kernels, layers, parts and advice. Of the lists of names, the 50 rows with the most
    time. Lists of jobs and events leave it out."""
    progress: float | None = None
    """The share that is done, 0 to 1, while it runs. It starts again with each attempt and never goes back
    within one."""
    request: JobSettings | None = None
    """The prompt and the settings of a job from a prompt, or the settings of a sample, as they are carried
    out; null of decodes."""
    results: tuple[JobResult, ...]
    """The files written; empty again when they are no longer kept."""
    revision: int
    """The policy's revision, in force when the job was accepted."""
    route: str
    """The route that took it."""
    sampling: SamplingProgress | None = None
    """The steps of a sample while it runs; null before the first has begun."""
    stage: JobStage | None = None
    """The kind of work."""
    started: str | None = None
    """The time when work on it last began."""
    state: State
    """The job's state."""
    steps: int | None = None
    """Steps of a sample."""
    tag: str | None = None
    """The tag of the request."""
    width: int
    """Width in pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRequest(Message):
    """A request for a decode; with `encode`, for a latent of a picture or clip; with `sample`, for a sample;
    with `prompt`, for a picture or clip of it."""
    allow: tuple[str, ...] = ()
    """Losses that plans may make, beside those that the route allows: `blended`, tiles and chunks that are
    cross-faded, where the whole or exact bands fit, too; `reuse=0.2`, as `sample.reuse`."""
    count_weights: bool = False
    """The memory limit, be it the job's, the route's or the device's, counts the weights, too; so do
    estimates and measured peaks then. Always so if the device's configuration says it. For decodes: of
    samples the weights always count."""
    deadline_s: int | None = None
    """Seconds from being accepted within which the job has to end; the server's limit if left out. More than
    that limit, `deadline` in its configuration and 3600 by default, is refused."""
    device: str | None = None
    """The device, by its name in the configuration; otherwise the one with the least waiting."""
    encode: EncodeFields | None = None
    """Encoding, by the model's vae: the result is the latent of a picture or, of a video VAE, of a clip."""
    format: OutputFormat | None = None
    """The format of the output; if left out, png for pictures, mp4 for clips, safetensors for samples and
    latent for encodes."""
    fps: str | None = None
    """Frames per second of a clip, as 24, 23.976 or 30000/1001; the model's own if left out."""
    latent_path: str | None = None
    """A latent's file on the server, absolute, below one of the configured roots; left out if the latent is
    uploaded."""
    loras: tuple[LoraField, ...] = ()
    """LoRAs on the model's transformer, of those that its configuration offers."""
    memory_limit_bytes: int | None = None
    """The most to hold at once, in bytes: of decodes weights aside if `count_weights` does not say otherwise,
    of samples with the weights. No more than the route's or the device's. A limit below the leanest plan for
    the latent is refused."""
    model: str
    """The model, by its name in the configuration."""
    negative_prompt: str | None = None
    """The prompt to lead away from; it counts if `sample.cfg` is not 1."""
    objective: Objective | None = None
    """The objective; the route's if left out."""
    profile: bool = False
    """The work is profiled: the job's `profile` says where its time went. It is rehearsed first, so that the
    job takes longer."""
    prompt: str | None = None
    """The prompt of a picture or clip, with weights as ComfyUI has them: the model's text encoders read it,
    its transformer samples as `sample` says, and its vae decodes."""
    sample: SampleFields | None = None
    """Sampling, by the model's transformer: without a prompt, the result is a latent."""
    scaled: bool = False
    """The latent carries the model's scaling, as diffusers saves it: that of a decode, or the result of an
    encode in safetensors."""
    tag: str | None = None
    """The owner or kind of work: tags take turns, and routes can ask for them. Printable ASCII."""
    tensor: str | None = None
    """The tensor to decode, if the file holds several."""
    text_tokens: int | None = None
    """The tokens that T5 reads at least, and as diffusers at most, for a prompt; the model's own if left out,
    or 256 as ComfyUI and 512 as diffusers."""


class JobOptions(TypedDict, total=False):
    """Keyword arguments: A request for a decode; with `encode`, for a latent of a picture or clip; with
    `sample`, for a sample; with `prompt`, for a picture or clip of it."""
    allow: tuple[str, ...] | list[Any]
    count_weights: bool
    deadline_s: int | None
    device: str | None
    format: OutputFormat | None
    fps: str | None
    loras: tuple[LoraField, ...] | list[Any]
    memory_limit_bytes: int | None
    objective: Objective | None
    profile: bool
    scaled: bool
    tag: str | None
    tensor: str | None
    text_tokens: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class JobResult(Message):
    """A file that a job has written."""
    bytes: int
    """The file's size."""
    content_type: str
    """The file's media type."""
    sample: int
    """The sample's place in the batch, from 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSettings(Message):
    """The settings of a job from a prompt, or of a sample, as they are carried out: those that were asked
    for, and the model's defaults where nothing was. The names are those of requests."""
    as_: str = ''
    """The reference that is followed: comfyui or diffusers."""
    batch: int = 0
    """Pictures or clips."""
    cfg: float = 0.0
    """The factor of guidance by the negative prompt or conditioning; 1 leaves it out."""
    defaults: tuple[str, ...] = ()
    """Names of the fields above that the request did not give: their values are defaults."""
    denoise: float = 0.0
    """The part of the way from noise that is gone: 1 is all of it."""
    fps: str | None = None
    """Frames per second of a clip."""
    frames: int = 0
    """Frames: 1 of a picture."""
    guidance: float | None = None
    """The guidance of a transformer that has it as an input; none of others."""
    height: int = 0
    """Height in pixels."""
    image: bool = False
    """It begins with a picture."""
    loras: tuple[LoraSetting, ...] = ()
    """Changes of the transformer's weights."""
    mask: bool = False
    """A mask says which part of the picture is made again."""
    negative_prompt: str | None = None
    """The prompt that guidance leads away from, if one was given; it counts if `cfg` is not 1."""
    parts: tuple[ModelPart, ...] = ()
    """The model's files."""
    prompt: str | None = None
    """The prompt; none of a sample."""
    reuse: float | None = None
    """The change of the transformer's output up to which the last output serves once more."""
    sampler: str = ''
    """The sampler."""
    scheduler: str | None = None
    """The scheduler; none for sigmas by hand, and as diffusers, which has its own."""
    seeds: tuple[int, ...] = ()
    """The seed of the whole batch, or one for each sample. One that was drawn is here."""
    shift: float | None = None
    """The shift of the sigmas; none for sigmas by hand."""
    sigmas: tuple[float, ...] | None = None
    """Sigmas by hand."""
    steps: int = 0
    """Steps; of sigmas by hand one less than those."""
    text_tokens: int | None = None
    """The tokens that T5 reads at least, and as diffusers at most; none of a sample."""
    width: int = 0
    """Width in pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Jobs(Message):
    """Jobs, newest first."""
    jobs: tuple[Job, ...]
    next: str | None = None
    """The `before` of the next page; null on the last. A search reads a bounded number of jobs at a time: a
    page may be short and still not the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraField(Message):
    """A LoRA that a request asks for."""
    expert: int | None = None
    """The expert that it is for, by its number: 0 for high noise, 1 for low noise. All of them if left out."""
    name: str
    """The LoRA's name: that of its file below the configured folder, without the ending."""
    strength: float = 1.0
    """The factor of its changes; 1 if left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraSetting(Message):
    """A LoRA."""
    digest: str = ''
    """As a model's."""
    expert: int | None = None
    """The expert that it is for, by its number; all of them if left out."""
    name: str = ''
    """The LoRA's name, as the request has it."""
    note: str | None = None
    """The part of it that has no place in the transformer, in a line."""
    strength: float = 0.0
    """The factor of its changes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model(Message):
    """A configured model: a VAE, a transformer, or both."""
    defaults: JobSettings | None = None
    """The settings of a job from a prompt that asks for nothing, if it takes prompts."""
    family: str
    """The family that its files were recognized as."""
    loras: tuple[str, ...]
    """The LoRAs that jobs may ask for."""
    name: str
    parameter_bytes: int
    """Bytes of the VAE's weights, as they are stored; of the transformer's, if there is no VAE."""
    quantized: bool
    """True if the VAE is quantized, or the transformer if there is no VAE."""
    spatial_scale: int
    """Pixels of the output along a side per pixel of the latent."""
    stages: tuple[JobStage, ...]
    """The kinds of work that it does."""
    temporal_scale: int
    """Frames of the output per frame of the latent, the first one aside."""
    transformer: dict[str, Any] | None = None
    """The transformer's properties, as policies are given them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelList(Message):
    """Configured models."""
    models: tuple[Model, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPart(Message):
    """A file of a model, without its path on the server."""
    bytes: int = 0
    """Bytes of all its files."""
    digest: str = ''
    """A digest of its contents, by which it is known under another name or on another machine."""
    name: str = ''
    """The file's name."""
    part: str = ''
    """The part of the model: transformer, text encoder, vision encoder or VAE."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Module(Message):
    """A module that is stored now."""
    digest: str
    name: str
    """As the module describes itself."""
    verdict: dict[str, Any]
    """Everything that the load gate found, as `tilewright policy check --json` prints it."""
    version: str
    """As the module describes itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy(Message):
    """A policy in service."""
    draining: tuple[Revision, ...]
    """Older ones that jobs still hold."""
    in_force: Revision
    """The revision that decides."""
    name: str
    """The policy's name in the configuration."""
    paused: bool
    """Not asked: the native default decides."""
    previous: Revision | None = None
    """The one before, which a rollback puts in force again."""
    refused: tuple[Refused, ...]
    """Newest first."""
    source: str
    """The policy's source, as the configuration names it."""
    warnings: tuple[str, ...]
    """Lines about what the revision in force does not do where routes name it, as stages of their jobs that
    it does not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyList(Message):
    """Policies in service."""
    policies: tuple[Policy, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready(Message):
    """The readiness of the server."""
    detail: str | None = None
    """The reason that it takes no work, or another fault, in a line."""
    ready: bool
    """True if it takes work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused(Message):
    """A module that was not let in, or was taken back."""
    origin: str
    """The module's origin, in words."""
    time: str
    """The time of the refusal."""
    why: str
    """In a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replacement(Message):
    """The module to put in force: a stored one, or one from elsewhere."""
    digest: str | None = None
    """A stored module, `sha256:…`; or `source`, not both. Neither: what the configuration says, as it is now."""
    settings: dict[str, Any] | None = None
    """Settings by name; those that are not among them take their defaults. If all are left out: those in
    force, for a module that describes itself by the same name; for another its defaults."""
    source: str | None = None
    """A policy that ships, by its name, or `oci://REGISTRY/NAME:TAG`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Revision(Message):
    """A version of a policy."""
    decisions: int
    """Decisions, those after failed attempts included."""
    digest: str
    """The module's digest, `sha256:…`."""
    failures: int
    """Decisions that the native default had to stand in for."""
    jobs: int
    """Jobs that ended under it."""
    name: str
    """As the module describes itself."""
    number: int
    """Counted from 1, restarts included."""
    origin: str
    """The module's origin, in words."""
    settings: dict[str, Any]
    """The settings that it was configured with, defaults included."""
    since: str
    """The time when it took over first."""
    stages: tuple[str, ...]
    """The stages that it answers: text, denoise, decode, encode. The native default decides on the others."""
    version: str
    """As the module describes itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Route(Message):
    """A route and the policies on trial on it."""
    canary: dict[str, Any] | None = None
    """The state of the canary's trial, if there is one."""
    canary_share: float | None = None
    """The canary's share of the route's jobs, if there is one."""
    conditions: dict[str, Any]
    """The conditions of the jobs that it takes: a condition that is left out holds for every job."""
    name: str
    policy: str
    """The policy that decides."""
    shadow: dict[str, Any] | None = None
    """The shadow's comparison, if there is one."""
    take_over: str
    """`next-job`, or `next-chunk` if a new revision takes over within a clip or between a sample's steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RouteList(Message):
    """Routes in order."""
    routes: tuple[Route, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleFields(Message):
    """A request for a sample. Names and defaults are those of `tilewright sample`."""
    as_: str | None = None
    """The reference that is followed: comfyui or diffusers."""
    batch: int | None = None
    """Samples; else as many as the noise, the latent or the conditioning has."""
    cfg: float | None = None
    """The factor of guidance by the negative conditioning."""
    denoise: float | None = None
    """The part of the way from noise that is gone: above 0, at most 1."""
    end_step: int | None = None
    """The step before which it ends."""
    frames: int | None = None
    """Frames of a clip; the model's usual number if left out."""
    guidance: float | None = None
    """The guidance of a transformer that has it as an input."""
    height: int | None = None
    """Height in pixels."""
    leftover_noise: bool = False
    """The noise of the last sigma stays in the result."""
    no_add_noise: bool = False
    """The latent has the noise of the first sigma already."""
    paths: SamplePaths | None = None
    """Files on the server, absolute, below one of the configured roots; left out if they are uploaded."""
    preview: bool = False
    """A picture of the sample so far is kept after each step, for `/v1/jobs/{id}/preview`. The model needs a
    `vae`: the colours are fitted to it, once."""
    reuse: float | None = None
    """The change of the transformer's output, over its size, up to which the last output serves once more."""
    sampler: str | None = None
    """The sampler, by ComfyUI's name."""
    scheduler: str | None = None
    """The scheduler, by ComfyUI's name."""
    seed: Seeds | None = None
    """The seed of the noise, or one for each sample; `random`, or -1, draws one, which the job shows."""
    shift: float | None = None
    """The shift of the sigmas."""
    sigmas: tuple[float, ...] | None = None
    """Sigmas by hand, one more than steps, in place of `steps`, `scheduler` and `denoise`."""
    start_step: int | None = None
    """The first step that is taken, from 0."""
    steps: int | None = None
    """Steps; the model's usual number if left out."""
    width: int | None = None
    """Width of the picture or clip in pixels; of the latent, if there is one."""


class SampleOptions(TypedDict, total=False):
    """Keyword arguments: A request for a sample. Names and defaults are those of `tilewright sample`."""
    as_: str | None
    batch: int | None
    cfg: float | None
    denoise: float | None
    end_step: int | None
    frames: int | None
    guidance: float | None
    height: int | None
    leftover_noise: bool
    no_add_noise: bool
    preview: bool
    reuse: float | None
    sampler: str | None
    scheduler: str | None
    seed: Seeds | None
    shift: float | None
    sigmas: tuple[float, ...] | list[Any] | None
    start_step: int | None
    steps: int | None
    width: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePaths(Message):
    """The files of a request for a sample, beside the latent."""
    conditioning: str | None = None
    """Conditioning."""
    image: str | None = None
    """The picture that a prompt's picture begins with: `denoise` is the share of it that is made again, and
    `mask` the part."""
    mask: str | None = None
    """A mask: 1 where the latent is made again."""
    negative: str | None = None
    """The conditioning that guidance leads away from."""
    noise: str | None = None
    """Noise, in place of that of a seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingProgress(Message):
    """The steps of a sample while it runs."""
    left_ms: float | None = None
    """The time left at that pace, in milliseconds."""
    preview: bool = False
    """There is a preview of the sample after this step."""
    step: int
    """Steps that are done."""
    step_ms: float | None = None
    """The mean time of a step so far, in milliseconds; before the first, the expected one. Null if neither is
    known."""
    steps: int
    """All steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial(Message):
    """The end of a trial."""
    revision: int | None = None
    """The revision of the route's policy that is in force since, if the canary was promoted."""
    route: str
    state: str
    """`promoted` or `stopped`."""


class JobFilter(TypedDict, total=False):
    """Keyword arguments of a listing."""
    state: State
    tag: str
    model: str
    device: str
    policy: str
    route: str
    q: str
    limit: int
    before: str
