"""The types of decisions and their records, with the fields and names of their JSON. Sizes are bytes, times
milliseconds.

Those of decodes and encodes have the plain names, as `Request`; those of samples and of text encoders begin with
`Denoise` and `Text`. Made by make_records.py from the schemas of records: change the Rust types, not this file.
"""

# ruff: noqa
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Union

from ._json import Message

Backend = Literal["cpu", "cuda", "rocm", "metal"]
"""The kind of device that the work runs on.

- `cpu`: The host's own processor.
- `cuda`: NVIDIA.
- `rocm`: AMD; libtorch addresses it as `cuda`.
- `metal`: Apple.
"""

Dtype = Literal["f32", "tf32", "bf16", "f16", "f8-e4m3", "f8-e5m2", "i8", "i4"]
"""The element type of a tensor.

- `f32`: IEEE single precision.
- `tf32`: f32 whose convolutions round their operands to 10 bits of mantissa on NVIDIA's tensor cores. Tensors
  stay f32: a plan names it as `Precision::Mixed` alone.
- `bf16`: bfloat16: the range of f32, 8 bits of precision.
- `f16`: IEEE half precision: overflows above 65504.
- `f8-e4m3`: 8-bit float, 4 exponent bits.
- `f8-e5m2`: 8-bit float, 5 exponent bits.
- `i8`: 8-bit integer.
- `i4`: 4-bit integer, two to a byte.
"""

FallbackReason = Literal["error", "nonsense", "trap", "out-of-fuel", "timeout", "out-of-memory", "out-of-service", "exhausted", "not-answered"]
"""The reason why the host's own plan replaces a policy's answer.

- `error`: The policy answered with an error.
- `nonsense`: The answer makes no sense.
- `trap`: The guest trapped.
- `out-of-fuel`: The guest used up its fuel.
- `timeout`: The guest used up its time.
- `out-of-memory`: The guest asked for more memory than it may have.
- `out-of-service`: The policy failed too often and is no longer asked.
- `exhausted`: The policy's attempts are used up: the last ones are the host's own.
- `not-answered`: The policy leaves the stage to the host.
"""

GuidanceOrder = Literal["together", "in-turn"]
"""The order of a step's passes.

- `together`: One pass of both conditionings.
- `in-turn`: One pass after the other.
"""

Layout = Literal["channels-first", "channels-last"]
"""The order of a tensor's elements in memory.

- `channels-first`: [N, C, H, W] in memory.
- `channels-last`: [N, H, W, C] in memory.
"""

Objective = Literal["fastest", "balanced", "leanest"]
"""The user's priority.

- `fastest`: Shortest time within the memory limit.
- `balanced`: Memory is worth some time.
- `leanest`: Least memory.
"""

Place = Literal["device", "host"]
"""The place that an encoder runs in.

- `device`: The device of the request.
- `host`: The host's processor, beside a device of its own; the only place if there is no other.
"""

Products = Literal["precision", "fp8", "int8"]
"""The operands of matrix products.

- `precision`: In the plan's precision.
- `fp8`: In FP8 (E4M3) where the weights are stored so: activations are rounded to it by one scale for each
  product.
- `int8`: In 8-bit integers where the weights are stored in blocks of integers: activations are rounded to
  them by one scale for each 32, and the sums of a block are exact.
"""

Release = Literal["keep", "at-end", "each-step"]
"""The time at which memory that the pool holds but nothing uses is freed.

- `keep`: Never.
- `at-end`: When the work ends.
- `each-step`: After each tile or chunk.
"""

Stage = Literal["text", "denoise", "decode", "encode"]
"""A stage of generation.

- `text`: A text to its embedding.
- `denoise`: A step of a diffusion model.
- `decode`: Latents to pixels.
- `encode`: Pixels to latents.
"""

WeightForm = Literal["packed", "expanded"]
"""The form that weights are kept in.

- `packed`: As stored, expanded where they are used.
- `expanded`: In the type of products.
"""

Value = Union[bool, int, float, str]
"""The value of a policy's setting."""

Options = tuple[tuple[str, Value], ...]
"""The options that a plan sets. Those with their defaults are left out once it is checked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt(Message):
    """A plan that failed, as policies see it."""
    plan: Plan
    """The plan."""
    failure: Failure
    """The reason of the failure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedAttention(Message):
    """In the device's fused kernel, without scores in memory, where it has one."""
    kind: Literal["fused"] = 'fused'


@dataclass(frozen=True, kw_only=True, slots=True)
class PiecesAttention(Message):
    """In products, for the given number of queries at once: their scores are in memory meanwhile."""
    kind: Literal["pieces"] = 'pieces'
    queries: int
    """Queries."""


Attention = Union[FusedAttention, PiecesAttention]
"""The way in which attention is computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostAnswers(Message):
    """The host's answers to a policy's questions. An answer does not change within a call, so each is
    recorded once, in the order of first asking."""
    estimates: tuple[Estimate, ...] = ()
    """Prices of plans. The plans are as they were priced: after checking, and without those that make no
    sense."""
    trials: tuple[Trials, ...] = ()
    """Earlier measurements."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities(Message):
    """The engine's capabilities for the request at hand; answers are checked against them. The default stands
    for capabilities that were not recorded."""
    dtypes: tuple[Dtype, ...]
    """The types that convolutions can run in on this device."""
    tile_unit: int
    """Tiles and overlaps are multiples of this many pixels."""
    tile_least: int
    """The smallest side of a tile, in pixels."""
    batch_most: int
    """The most samples or tiles that run together."""
    exact: bool
    """`exact` tiles can be run."""
    carried: bool
    """Chunks that carry the causal cache can be run."""
    offload: bool
    """Activations can wait in host memory."""
    prefetch_most: int
    """The most inputs that can be copied ahead."""
    options: tuple[PlanOption, ...] = ()
    """The options that are offered beside a plan's fields."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost(Message):
    """The expected cost of a plan for the request at hand."""
    peak_bytes: int
    """The highest memory use, in bytes; with the weights if the request's limit counts them."""
    elapsed_ms: float
    """Time of the work, without loading."""
    tiles: int
    """Tiles in all, over samples and chunks."""
    shapes: int
    """Distinct tensor shapes that the convolutions will see; each new one may cost a kernel search."""
    rework: float
    """Output computed over output kept: 1.0 if nothing is computed twice."""
    weights_bytes: int = 0
    """Bytes of weights in the peak: 0 if the limit does not count them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseAttempt(Message):
    """A plan that failed, as policies see it."""
    plan: DenoisePlan
    """The plan."""
    failure: Failure
    """The reason of the failure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseHostAnswers(Message):
    """The host's answers to a policy's questions. An answer does not change within a call, so each is
    recorded once, in the order of first asking."""
    estimates: tuple[DenoiseEstimate, ...] = ()
    """Prices of plans. The plans are as they were priced: after checking, and without those that make no
    sense."""
    trials: tuple[DenoiseTrials, ...] = ()
    """Earlier measurements."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseCapabilities(Message):
    """The plans of a sample that can be carried out. The default stands for capabilities that were not
    recorded."""
    dtypes: tuple[Dtype, ...]
    """The types that products can run in on this device."""
    fp8_products: bool
    """Products in FP8 can be run: the device has them and the weights are stored so."""
    fused_attention: bool
    """Attention runs in a fused kernel without scores in memory."""
    queries_least: int
    """The fewest queries of a piece of attention."""
    ahead_most: int
    """The most blocks that are read ahead."""
    parts_most: int
    """The most parts of a feed-forward layer."""
    reuse_most: float
    """The change of the network's output up to which the user allows the last one to serve again; 0 if each
    is to be computed."""
    int8_products: bool = False
    """Products in 8-bit integers can be run: the device has them and the weights are stored in blocks of
    integers."""
    options: tuple[PlanOption, ...] = ()
    """The options that are offered beside a plan's fields."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseCost(Message):
    """The expected cost of a plan."""
    peak_bytes: int
    """The highest memory use beside the weights, in bytes."""
    weights_bytes: int
    """Bytes of weights that are held at once."""
    step_ms: float
    """Time of a step."""
    moved_bytes: int = 0
    """Bytes of weights that come to the device again in each step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseEstimate(Message):
    """A plan and its price."""
    plan: DenoisePlan
    """The plan as it was priced."""
    cost: ExactDenoiseCost | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseExactTrial(Message):
    """The part of a `Trial` that policies get."""
    plan: DenoisePlan
    """The plan that was carried out."""
    elapsed_ns: int
    """Time of all steps without loading, in nanoseconds."""
    step_ns: int
    """Mean time of a step, in nanoseconds."""
    peak_bytes: int
    """The highest memory use beside the weights, in bytes."""
    weights_bytes: int
    """Bytes of weights that were held at once."""
    moved_bytes: int
    """Bytes of weights that came to the device again, in all steps."""
    attempts: int
    """Attempts, the one that succeeded included."""
    load_ns: int = 0
    """Time of loading, in nanoseconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseExchange(Message):
    """The calls of one policy's session that belong to one record. A policy remembers from call to call. So a
    replay makes all calls of a session in one instance, in the order of their numbers, over all records that
    they are spread over."""
    session: str
    """Identifies one policy in use by one process."""
    calls: tuple[DenoiseCall, ...]
    """In order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseFailedAttempt(Message):
    """An attempt that failed, with the decision that led to it."""
    plan: DenoisePlan
    """The plan."""
    failure: Failure
    """The reason of the failure."""
    adjusted: tuple[str, ...]
    """The changes made to the answer."""
    fuel: int
    """Fuel that the guest used."""
    answer: DenoisePlan | None = None
    """The policy's answer; null if it gave none."""
    fallback: Fallback | None = None
    """Set if the host's own plan replaced the answer."""
    step: int | None = None
    """Steps of a sample that were finished before it: the next plan went on from there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseMeasured(Message):
    """The part of a `DenoiseOutcome` that policies get."""
    elapsed_ns: int
    """Time of all steps without loading, in nanoseconds."""
    step_ns: int
    """Mean time of a step, in nanoseconds."""
    peak_bytes: int
    """The highest memory use beside the weights, in bytes."""
    weights_bytes: int
    """Bytes of weights that were held at once."""
    moved_bytes: int
    """Bytes of weights that came to the device again, in all steps."""
    attempts: int
    """Attempts, the one that succeeded included."""
    load_ns: int = 0
    """Time of loading, in nanoseconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseOffer(Message):
    """The plans that can be carried out, and the clip under way."""
    dtypes: tuple[Dtype, ...]
    """The types that products can run in on this device."""
    fp8_products: bool
    """Products in FP8 can be run: the device has them and the weights are stored so."""
    fused_attention: bool
    """Attention runs in a fused kernel without scores in memory."""
    queries_least: int
    """The fewest queries of a piece of attention."""
    ahead_most: int
    """The most blocks that are read ahead."""
    parts_most: int
    """The most parts of a feed-forward layer."""
    reuse_most: float
    """The change of the network's output up to which the user allows the last one to serve again; 0 if each
    is to be computed."""
    done: int | None = None
    """Delivered frames of a clip, or finished steps of a sample; records of 0.2 have `frames_done`, and
    earlier ones have the number in the request's hints."""
    int8_products: bool = False
    """Products in 8-bit integers can be run: the device has them and the weights are stored in blocks of
    integers."""
    options: tuple[PlanOption, ...] = ()
    """The options that are offered beside a plan's fields."""
    running: DenoisePlan | None = None
    """The plan of work of which a part is done; null before that, and for pictures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseOutcome(Message):
    """The measurements of a sample."""
    elapsed_ms: float
    """Time of all steps, without loading."""
    load_ms: float
    """Time spent reading and converting the weights before the first step."""
    step_ms: float
    """Mean time of a step."""
    peak_bytes: int
    """The highest memory use beside weights that are kept as stored, in bytes."""
    weights_bytes: int
    """Bytes of weights that were held at once."""
    moved_bytes: int
    """Bytes of weights that were read again, in all steps."""
    pool: PoolStatistics
    """The memory pool's work."""
    attempts: int = 1
    """Attempts, the one that succeeded included."""
    reuse_deviation: float = 0.0
    """The largest change that was passed over so, over the size of what changed."""
    reused: int = 0
    """Calls of the network that the last output served, or runs of it that the last blocks did."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OffStepReuse(Message):
    """Each call is computed."""
    kind: Literal["off"] = 'off'


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputStepReuse(Message):
    """The last output serves while the change of the output, as estimated from that of the input, stays below
    the threshold (EasyCache, arXiv:2507.02860)."""
    kind: Literal["output"] = 'output'
    threshold: float
    """The change over the output's size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstBlockStepReuse(Message):
    """All blocks after the first are reused while the change that the first block makes differs from that of
    the last computed run by less than the threshold (first-block cache)."""
    kind: Literal["first-block"] = 'first-block'
    threshold: float
    """The difference over the change's size."""


StepReuse = Union[OffStepReuse, OutputStepReuse, FirstBlockStepReuse]
"""Reuse of the network's work from step to step, up to a change of its output over its size. It is lossy, and
a user has to allow it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecideDenoiseQuestion(Message):
    """A plan for the request."""
    kind: Literal["decide"] = 'decide'
    offer: DenoiseOffer
    """The plans that can be carried out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoverDenoiseQuestion(Message):
    """A plan for the request after failures."""
    kind: Literal["recover"] = 'recover'
    offer: DenoiseOffer
    """The plans that can be carried out."""
    attempts: tuple[DenoiseAttempt, ...]
    """The failed attempts, the latest last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnDenoiseQuestion(Message):
    """The outcome of a plan: nothing is answered."""
    kind: Literal["learn"] = 'learn'
    plan: DenoisePlan
    """The plan that was carried out."""
    measured: DenoiseMeasured
    """The measured outcome."""
    offer: DenoiseOffer | None = None
    """The plans that could be carried out; records of earlier programs lack it."""


DenoiseQuestion = Union[DecideDenoiseQuestion, RecoverDenoiseQuestion, LearnDenoiseQuestion]
"""The function that a policy is called for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseRecord(Message):
    """A decision, its outcome, and everything needed to make the decision again. Sizes are bytes, times
    milliseconds."""
    tilewright: str
    """The host's version."""
    time: str
    """The time of the decision, RFC 3339 in UTC."""
    request: DenoiseRequest
    """The request."""
    device: Device
    """The device that the work runs on."""
    policy: PolicyIdentity
    """The policy that decided."""
    plan: DenoisePlan
    """The plan that was carried out: the answer after checking, or the host's own plan."""
    adjusted: tuple[str, ...]
    """The changes made to the answer."""
    decision_ms: float
    """Time spent deciding."""
    fuel: int
    """Fuel that the guest used."""
    attempts: tuple[DenoiseFailedAttempt, ...]
    """The attempts that failed before, in order."""
    answer: DenoisePlan | None = None
    """The policy's answer; null if it gave none."""
    capabilities: DenoiseCapabilities | None = None
    """The plans that could be carried out; records of earlier programs have them in the request's hints only."""
    estimate: DenoiseCost | None = None
    """The plan's price; null if it has none."""
    exchange: DenoiseExchange | None = None
    """The policy's inputs, questions and answers, call by call; only with `--record full`."""
    expected: DenoiseCost | None = None
    """The price corrected by earlier measurements, if there were any."""
    fallback: Fallback | None = None
    """Set if the host's own plan replaced the answer."""
    outcome: DenoiseOutcome | None = None
    """The measurements; null if nothing was made."""
    resumed_frames: int = 0
    """Output frames of a clip, or steps of a sample, that an earlier run had done and this run continued
    from: its time is of the others alone."""
    stage: Stage | None = None
    """The stage; records of earlier programs name it in the request's hints only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseReply(Message):
    """The result of a call. A call of `learn` has only the fuel and the reason of a failure."""
    adjusted: tuple[str, ...]
    """The changes made to the answer."""
    fuel: int
    """Fuel that the guest used."""
    answer: DenoisePlan | None = None
    """The policy's answer; null if it gave none."""
    fallback: Fallback | None = None
    """The reason why there is no usable answer, or why the policy did not learn."""
    plan: DenoisePlan | None = None
    """The plan after checking; null for `learn`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseRequest(Message):
    """A request for a sample."""
    model: DenoiserModel
    """The denoiser."""
    batch: int
    """Samples."""
    frames: int
    """Latent frames."""
    height: int
    """Latent pixels."""
    width: int
    """Latent pixels."""
    text_tokens: int
    """Tokens of the text."""
    image_tokens: int
    """Tokens of pictures or frames."""
    steps: int
    """Steps."""
    passes: int
    """Passes of a step: two with guidance by a negative conditioning."""
    sampler: str
    """The sampler's name."""
    sigmas: tuple[float, ...]
    """The sigmas, one more than steps."""
    memory_limit: int
    """The most bytes to hold at once, weights included."""
    host_free_bytes: int = 0
    """Bytes of host memory that are free."""
    host_total_bytes: int = 0
    """Bytes of host memory; 0 if the system does not tell."""
    objective: Objective = 'balanced'
    """The aim."""
    reuse: float | None = None
    """The change of the network's output, over its size, up to which the last output may serve once more;
    null if each is to be computed."""
    transfer_rate: int = 0
    """Bytes a second from host memory to a GPU; 0 of a CPU, and if it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseTrials(Message):
    """An answer to a question for earlier measurements."""
    most: int
    """The most trials asked for."""
    trials: tuple[DenoiseExactTrial, ...]
    """Newest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiserModel(Message):
    """A denoiser, as far as plans depend on it."""
    family: str
    """"flux", "wan-2.1" or "wan-2.2": the family whose latents it makes."""
    parameters: int
    """Weights in all; of two experts, those of one."""
    stored_bytes: int
    """Bytes of the weights as stored; of two experts, those of one."""
    stored: str
    """The type that most of the weights are stored in, as files name it: `bf16`, `q4_k`."""
    blocks: int
    """Blocks of a pass."""
    largest_block_bytes: int
    """Bytes of the largest block as stored."""
    experts: int
    """Experts that take turns."""
    stored_types: tuple[StoredType, ...] = ()
    """The types that the weights are stored in, the most common first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device(Message):
    """The device that the work will run on, as measured by the host."""
    backend: Backend
    """The kind of device."""
    name: str
    """For people: "AMD Radeon 8060S"."""
    arch: str
    """For rules: "gfx1151", "sm_90", "x86-64-v4"."""
    compute_units: int
    """Streaming multiprocessors, compute units or cores."""
    total_bytes: int
    """All memory of the device, in bytes."""
    free_bytes: int
    """Memory that was free when the device was examined, in bytes."""
    unified: bool
    """Host and device share one memory, as on an APU."""
    fast_dtypes: tuple[Dtype, ...]
    """The types that a probe on this device found no slower than f32, fastest first."""
    hints: tuple[Hint, ...] = ()
    """Facts that have no field, of a GPU: the versions of its libraries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderModel(Message):
    """An encoder, as far as plans depend on it."""
    kind: str
    """"clip-l", "openclip-bigg", "t5-xxl", "umt5-xxl", "clip-vision-h" or "clip-vision-l"; of another width,
    kind and width, as "t5-1024"."""
    stored_types: tuple[StoredType, ...]
    """The types that the weights are stored in, the most common first."""
    parameter_bytes: int
    """Bytes of the weights as stored, without the tables that tokens are looked up in."""
    blocks: int
    """Blocks."""
    width: int
    """The width of a token."""
    head_width: int
    """The width of an attention head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate(Message):
    """A plan and its price."""
    plan: Plan
    """The plan as it was priced."""
    cost: ExactCost | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactCost(Message):
    """A `Cost`, exact to the bit."""
    peak_bytes: int
    """The highest memory use, in bytes; with the weights if the request's limit counts them."""
    elapsed_ns: int
    """Time of the work without loading, in nanoseconds."""
    tiles: int
    """Tiles in all."""
    shapes: int
    """Distinct tensor shapes."""
    rework: str
    """Output computed over output kept, as text: JSON's numbers have no infinity, and some readers drop the
    last digit."""
    weights_bytes: int = 0
    """Bytes of weights in the peak: 0 if the limit does not count them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactDenoiseCost(Message):
    """A `DenoiseCost`, exact to the nanosecond."""
    peak_bytes: int
    """The highest memory use beside the weights, in bytes."""
    weights_bytes: int
    """Bytes of weights that are held at once."""
    moved_bytes: int
    """Bytes of weights that come to the device again in each step."""
    step_ns: int
    """Time of a step, in nanoseconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactTextCost(Message):
    """A `TextCost`, exact to the nanosecond."""
    elapsed_ns: int
    """Time of all texts without loading, in nanoseconds."""
    load_ns: int
    """Time of loading, in nanoseconds."""
    peak_bytes: int
    """The highest use of the device's memory beside the weights, in bytes."""
    weights_bytes: int
    """Bytes of weights in the device's memory."""
    host_bytes: int
    """The highest use of the host's memory beside a device of its own, in bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactTrial(Message):
    """The part of a `Trial` that policies get."""
    plan: Plan
    """The plan that was carried out."""
    elapsed_ns: int
    """Time of the work that succeeded, in nanoseconds."""
    peak_bytes: int
    """The highest memory use, in bytes; with the weights if the request's limit counts them."""
    attempts: int
    """Attempts, the one that succeeded included."""
    load_ns: int = 0
    """Time of loading, in nanoseconds."""
    weights_bytes: int = 0
    """Bytes of weights in the peak: 0 if the limit does not count them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange(Message):
    """The calls of one policy's session that belong to one record. A policy remembers from call to call. So a
    replay makes all calls of a session in one instance, in the order of their numbers, over all records that
    they are spread over."""
    session: str
    """Identifies one policy in use by one process."""
    calls: tuple[Call, ...]
    """In order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedAttempt(Message):
    """An attempt that failed, with the decision that led to it."""
    plan: Plan
    """The plan."""
    failure: Failure
    """The reason of the failure."""
    adjusted: tuple[str, ...]
    """The changes made to the answer."""
    fuel: int
    """Fuel that the guest used."""
    answer: Plan | None = None
    """The policy's answer; null if it gave none."""
    fallback: Fallback | None = None
    """Set if the host's own plan replaced the answer."""
    step: int | None = None
    """Steps of a sample that were finished before it: the next plan went on from there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutOfMemoryFailure(Message):
    """An allocation failed."""
    kind: Literal["out-of-memory"] = 'out-of-memory'
    bytes: int
    """The bytes that could not be allocated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NonFiniteFailure(Message):
    """The result held NaN or infinity."""
    kind: Literal["non-finite"] = 'non-finite'
    values: int
    """The number of values that were not finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OverLimitFailure(Message):
    """The peak went over the limit."""
    kind: Literal["over-limit"] = 'over-limit'
    bytes: int
    """The peak in bytes."""


Failure = Union[OutOfMemoryFailure, NonFiniteFailure, OverLimitFailure]
"""The reason why a plan did not give an output."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback(Message):
    """The host's own plan was taken, and the reason."""
    reason: FallbackReason
    """The kind of failure."""
    detail: str
    """One line for the person who reads the record."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hint(Message):
    """A fact that this version of the contract has no field for."""
    name: str
    """The fact's name."""
    value: str
    """The fact, as text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured(Message):
    """The part of an `Outcome` that policies get."""
    elapsed_ns: int
    """Time of the work that succeeded, in nanoseconds."""
    peak_bytes: int
    """The highest memory use, in bytes; with the weights if the request's limit counts them."""
    attempts: int
    """Attempts, the one that succeeded included."""
    load_ns: int = 0
    """Time of loading, in nanoseconds."""
    weights_bytes: int = 0
    """Bytes of weights in the peak: 0 if the limit does not count them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model(Message):
    """The loaded weights."""
    family: str
    """"sd", "sdxl", "sd3", "flux", "wan-2.1", …"""
    stored: Dtype
    """The type that the file stores."""
    quantized: bool
    """The weights are quantized integers."""
    parameter_bytes: int
    """Bytes of the parameters as stored."""
    spatial_scale: int
    """Output pixels per latent pixel."""
    temporal_scale: int
    """Output frames per latent frame."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer(Message):
    """The plans that can be carried out, and the clip under way."""
    dtypes: tuple[Dtype, ...]
    """The types that convolutions can run in on this device."""
    tile_unit: int
    """Tiles and overlaps are multiples of this many pixels."""
    tile_least: int
    """The smallest side of a tile, in pixels."""
    batch_most: int
    """The most samples or tiles that run together."""
    exact: bool
    """`exact` tiles can be run."""
    carried: bool
    """Chunks that carry the causal cache can be run."""
    offload: bool
    """Activations can wait in host memory."""
    prefetch_most: int
    """The most inputs that can be copied ahead."""
    done: int | None = None
    """Delivered frames of a clip, or finished steps of a sample; records of 0.2 have `frames_done`, and
    earlier ones have the number in the request's hints."""
    options: tuple[PlanOption, ...] = ()
    """The options that are offered beside a plan's fields."""
    running: Plan | None = None
    """The plan of work of which a part is done; null before that, and for pictures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome(Message):
    """Measurements of a plan that was carried out."""
    elapsed_ms: float
    """Time of the attempt that succeeded, without loading and failed attempts."""
    load_ms: float
    """Time spent reading and converting the weights."""
    peak_bytes: int
    """The highest memory use, in bytes; with the weights if the request's limit counts them."""
    attempts: int
    """Attempts, the one that succeeded included."""
    pool: PoolStatistics
    """The memory pool's work."""
    cold: bool = False
    """True if the process ran on its GPU in this format for the first time: libraries were loaded and kernels
    compiled meanwhile, so that the time says little of the next."""
    weights_bytes: int = 0
    """Bytes of weights in the peak: 0 if the limit does not count them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan(Message):
    """The way in which work will be run."""
    space: Space
    """The division of the area."""
    time: Time
    """The division of the frames."""
    batch: int
    """Samples, or tiles of one shape, that run together."""
    precision: Precision
    """Element types."""
    layout: Layout
    """Memory order."""
    release: Release
    """The time at which unused memory is freed."""
    offload: bool
    """Activations that wait are kept in host memory."""
    prefetch: int
    """Inputs copied to the device ahead of their turn."""
    reason: str
    """The policy's reason in a few words, for the person who reads the decision."""
    options: Options = ()
    """The options that are set beside these fields."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanOption(Message):
    """A choice that the host offers beside the fields of a plan."""
    name: str
    """The name in plans and in settings."""
    summary: str
    """For people, in a few words."""
    values: Values
    """The values that it may have."""
    default: Value
    """The value of a plan that does not name the option."""
    lossy: bool = False
    """Other values change the output by more than rounding does: a user has to allow them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyIdentity(Message):
    """The policy that decided, identified to the byte."""
    name: str
    """As the policy describes itself."""
    version: str
    """As the policy describes itself."""
    digest: str
    """`sha256:` and the digest of the file, in hexadecimal."""
    settings: Mapping[str, Value]
    """The settings that it was configured with, defaults included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolStatistics(Message):
    """The memory pool's work during a task."""
    hits: int
    """Requests served from memory that was held."""
    misses: int
    """Requests that had to go to the system or the driver."""
    held_bytes: int
    """Bytes held when the work ended, in use or not."""
    fragmentation: float = 0.0
    """Fragmentation of the held memory that was not in use when the work ended, from 0 (one piece) to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UniformPrecision(Message):
    """Everything in this type."""
    kind: Literal["uniform"] = 'uniform'
    dtype: Dtype


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedPrecision(Message):
    """Convolutions and matrix products in this type; norms, softmax and sums in f32."""
    kind: Literal["mixed"] = 'mixed'
    dtype: Dtype


Precision = Union[UniformPrecision, MixedPrecision]
"""The element types that the work is done in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecideQuestion(Message):
    """A plan for the request."""
    kind: Literal["decide"] = 'decide'
    offer: Offer
    """The plans that can be carried out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoverQuestion(Message):
    """A plan for the request after failures."""
    kind: Literal["recover"] = 'recover'
    offer: Offer
    """The plans that can be carried out."""
    attempts: tuple[Attempt, ...]
    """The failed attempts, the latest last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnQuestion(Message):
    """The outcome of a plan: nothing is answered."""
    kind: Literal["learn"] = 'learn'
    plan: Plan
    """The plan that was carried out."""
    measured: Measured
    """The measured outcome."""
    offer: Offer | None = None
    """The plans that could be carried out; records of earlier programs lack it."""


Question = Union[DecideQuestion, RecoverQuestion, LearnQuestion]
"""The function that a policy is called for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record(Message):
    """A decision, its outcome, and everything needed to make the decision again. Sizes are bytes, times
    milliseconds."""
    tilewright: str
    """The host's version."""
    time: str
    """The time of the decision, RFC 3339 in UTC."""
    request: Request
    """The request."""
    device: Device
    """The device that the work runs on."""
    policy: PolicyIdentity
    """The policy that decided."""
    plan: Plan
    """The plan that was carried out: the answer after checking, or the host's own plan."""
    adjusted: tuple[str, ...]
    """The changes made to the answer."""
    decision_ms: float
    """Time spent deciding."""
    fuel: int
    """Fuel that the guest used."""
    attempts: tuple[FailedAttempt, ...]
    """The attempts that failed before, in order."""
    answer: Plan | None = None
    """The policy's answer; null if it gave none."""
    capabilities: Capabilities | None = None
    """The plans that could be carried out; records of earlier programs have them in the request's hints only."""
    estimate: Cost | None = None
    """The plan's price; null if it has none."""
    exchange: Exchange | None = None
    """The policy's inputs, questions and answers, call by call; only with `--record full`."""
    expected: Cost | None = None
    """The price corrected by earlier measurements, if there were any."""
    fallback: Fallback | None = None
    """Set if the host's own plan replaced the answer."""
    outcome: Outcome | None = None
    """The measurements; null if nothing was made."""
    resumed_frames: int = 0
    """Output frames of a clip, or steps of a sample, that an earlier run had done and this run continued
    from: its time is of the others alone."""
    stage: Stage | None = None
    """The stage; records of earlier programs name it in the request's hints only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply(Message):
    """The result of a call. A call of `learn` has only the fuel and the reason of a failure."""
    adjusted: tuple[str, ...]
    """The changes made to the answer."""
    fuel: int
    """Fuel that the guest used."""
    answer: Plan | None = None
    """The policy's answer; null if it gave none."""
    fallback: Fallback | None = None
    """The reason why there is no usable answer, or why the policy did not learn."""
    plan: Plan | None = None
    """The plan after checking; null for `learn`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request(Message):
    """A request for a decode or an encode. Extents are pixels and frames of the frames' side."""
    model: Model
    """The loaded weights."""
    batch: int
    """Samples."""
    frames: int
    """Output frames; 1 for pictures."""
    height: int
    """Output height in pixels."""
    width: int
    """Output width in pixels."""
    memory_limit: int
    """The memory limit of the work, in bytes."""
    objective: Objective
    """The user's priority."""
    hints: tuple[Hint, ...]
    """Facts that have no field."""
    allows_blended: bool = True
    """The user allows blended tiles and chunks where an exact plan fits; otherwise they are the last resort.
    Records of earlier programs lack it: there they were allowed."""
    host_free_bytes: int = 0
    """Bytes of host memory that are free."""
    host_total_bytes: int = 0
    """Bytes of host memory; 0 if the system does not tell."""
    limit_counts_weights: bool = False
    """The memory limit counts the weights, and so do costs and measured peaks; otherwise none of them does."""
    transfer_rate: int = 0
    """Bytes a second from host memory to a GPU; 0 of a CPU, and if it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeSpace(Message):
    """No division."""
    kind: Literal["whole"] = 'whole'


@dataclass(frozen=True, kw_only=True, slots=True)
class BlendedSpace(Message):
    """Tiles that run alone and are cross-faded where they overlap."""
    kind: Literal["blended"] = 'blended'
    height: int
    """Pixels."""
    width: int
    """Pixels."""
    overlap: int
    """Pixels that neighbouring tiles share, along either axis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactSpace(Message):
    """Tiles that share borders and norm statistics: the whole picture's output, in less memory."""
    kind: Literal["exact"] = 'exact'
    height: int
    """Pixels."""
    width: int
    """Pixels."""
    overlap: int
    """Pixels that neighbouring tiles share, along either axis."""


Space = Union[WholeSpace, BlendedSpace, ExactSpace]
"""The division of the picture's area."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredType(Message):
    """Weights that are stored in one type."""
    name: str
    """As files name it: `bf16`, `q4_k`."""
    bytes: int
    """Bytes of such weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextAttempt(Message):
    """A plan that failed, as policies see it."""
    plan: TextPlan
    """The plan."""
    failure: Failure
    """The reason of the failure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextHostAnswers(Message):
    """The host's answers to a policy's questions. An answer does not change within a call, so each is
    recorded once, in the order of first asking."""
    estimates: tuple[TextEstimate, ...] = ()
    """Prices of plans. The plans are as they were priced: after checking, and without those that make no
    sense."""
    trials: tuple[TextTrials, ...] = ()
    """Earlier measurements."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextCapabilities(Message):
    """The plans of an encoder's run that can be carried out. The default stands for capabilities that were
    not recorded."""
    dtypes: tuple[Dtype, ...]
    """The types that products can run in."""
    places: tuple[Place, ...]
    """The places that the encoder can run in."""
    weights: tuple[WeightForm, ...]
    """The forms that weights can be held in."""
    kept: bool
    """The encoder can stay loaded for the next run in this process."""
    options: tuple[PlanOption, ...] = ()
    """The options that are offered beside a plan's fields."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextCost(Message):
    """The expected cost of a plan. A processor's memory, and memory that a device shares with it, is the
    device's."""
    elapsed_ms: float
    """Time of all texts, without loading."""
    load_ms: float
    """Time of loading; 0 if the encoder is loaded already."""
    peak_bytes: int
    """The highest use of the device's memory beside the weights, in bytes."""
    weights_bytes: int
    """Bytes of weights in the device's memory."""
    host_bytes: int
    """The highest use of the host's memory beside a device of its own, in bytes, weights included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextEstimate(Message):
    """A plan and its price."""
    plan: TextPlan
    """The plan as it was priced."""
    cost: ExactTextCost | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TextExactTrial(Message):
    """The part of a `Trial` that policies get."""
    plan: TextPlan
    """The plan that was carried out."""
    elapsed_ns: int
    """Time of all texts without loading, in nanoseconds."""
    load_ns: int
    """Time of loading, in nanoseconds."""
    peak_bytes: int
    """The highest use of the device's memory beside the weights, in bytes."""
    weights_bytes: int
    """Bytes of weights in the device's memory."""
    host_bytes: int
    """The highest use of the host's memory beside a device of its own, in bytes."""
    attempts: int
    """Attempts, the one that succeeded included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextExchange(Message):
    """The calls of one policy's session that belong to one record. A policy remembers from call to call. So a
    replay makes all calls of a session in one instance, in the order of their numbers, over all records that
    they are spread over."""
    session: str
    """Identifies one policy in use by one process."""
    calls: tuple[TextCall, ...]
    """In order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFailedAttempt(Message):
    """An attempt that failed, with the decision that led to it."""
    plan: TextPlan
    """The plan."""
    failure: Failure
    """The reason of the failure."""
    adjusted: tuple[str, ...]
    """The changes made to the answer."""
    fuel: int
    """Fuel that the guest used."""
    answer: TextPlan | None = None
    """The policy's answer; null if it gave none."""
    fallback: Fallback | None = None
    """Set if the host's own plan replaced the answer."""
    step: int | None = None
    """Steps of a sample that were finished before it: the next plan went on from there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextMeasured(Message):
    """The part of a `TextOutcome` that policies get."""
    elapsed_ns: int
    """Time of all texts without loading, in nanoseconds."""
    load_ns: int
    """Time of loading, in nanoseconds."""
    peak_bytes: int
    """The highest use of the device's memory beside the weights, in bytes."""
    weights_bytes: int
    """Bytes of weights in the device's memory."""
    host_bytes: int
    """The highest use of the host's memory beside a device of its own, in bytes."""
    attempts: int
    """Attempts, the one that succeeded included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextOffer(Message):
    """The plans that can be carried out, and the clip under way."""
    dtypes: tuple[Dtype, ...]
    """The types that products can run in."""
    places: tuple[Place, ...]
    """The places that the encoder can run in."""
    weights: tuple[WeightForm, ...]
    """The forms that weights can be held in."""
    kept: bool
    """The encoder can stay loaded for the next run in this process."""
    done: int | None = None
    """Delivered frames of a clip, or finished steps of a sample; records of 0.2 have `frames_done`, and
    earlier ones have the number in the request's hints."""
    options: tuple[PlanOption, ...] = ()
    """The options that are offered beside a plan's fields."""
    running: TextPlan | None = None
    """The plan of work of which a part is done; null before that, and for pictures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextOutcome(Message):
    """The measurements of an encoder's run."""
    elapsed_ms: float
    """Time of all texts, without loading and failed attempts."""
    load_ms: float
    """Time spent reading and converting the weights."""
    peak_bytes: int
    """The highest use of the device's memory beside the weights, in bytes."""
    weights_bytes: int
    """Bytes of weights in the device's memory."""
    host_bytes: int
    """The highest use of the host's memory beside a device of its own, in bytes, weights included."""
    attempts: int
    """Attempts, the one that succeeded included."""
    pool: PoolStatistics
    """The memory pool's work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextPlan(Message):
    """The way in which texts are encoded. Narrow types are lossy, and their names say so."""
    precision: Precision
    """The types that it is computed in."""
    place: Place
    """The place that it runs in."""
    weights: WeightForm
    """The form that weights are held in; packed ones stay in the file's pages on a processor."""
    kept: bool
    """The encoder stays loaded afterwards; otherwise its memory is freed."""
    reason: str
    """The reason, for people."""
    options: Options = ()
    """The options that are set beside these fields."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecideTextQuestion(Message):
    """A plan for the request."""
    kind: Literal["decide"] = 'decide'
    offer: TextOffer
    """The plans that can be carried out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoverTextQuestion(Message):
    """A plan for the request after failures."""
    kind: Literal["recover"] = 'recover'
    offer: TextOffer
    """The plans that can be carried out."""
    attempts: tuple[TextAttempt, ...]
    """The failed attempts, the latest last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnTextQuestion(Message):
    """The outcome of a plan: nothing is answered."""
    kind: Literal["learn"] = 'learn'
    plan: TextPlan
    """The plan that was carried out."""
    measured: TextMeasured
    """The measured outcome."""
    offer: TextOffer | None = None
    """The plans that could be carried out; records of earlier programs lack it."""


TextQuestion = Union[DecideTextQuestion, RecoverTextQuestion, LearnTextQuestion]
"""The function that a policy is called for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRecord(Message):
    """A decision, its outcome, and everything needed to make the decision again. Sizes are bytes, times
    milliseconds."""
    tilewright: str
    """The host's version."""
    time: str
    """The time of the decision, RFC 3339 in UTC."""
    request: TextRequest
    """The request."""
    device: Device
    """The device that the work runs on."""
    policy: PolicyIdentity
    """The policy that decided."""
    plan: TextPlan
    """The plan that was carried out: the answer after checking, or the host's own plan."""
    adjusted: tuple[str, ...]
    """The changes made to the answer."""
    decision_ms: float
    """Time spent deciding."""
    fuel: int
    """Fuel that the guest used."""
    attempts: tuple[TextFailedAttempt, ...]
    """The attempts that failed before, in order."""
    answer: TextPlan | None = None
    """The policy's answer; null if it gave none."""
    capabilities: TextCapabilities | None = None
    """The plans that could be carried out; records of earlier programs have them in the request's hints only."""
    estimate: TextCost | None = None
    """The plan's price; null if it has none."""
    exchange: TextExchange | None = None
    """The policy's inputs, questions and answers, call by call; only with `--record full`."""
    expected: TextCost | None = None
    """The price corrected by earlier measurements, if there were any."""
    fallback: Fallback | None = None
    """Set if the host's own plan replaced the answer."""
    outcome: TextOutcome | None = None
    """The measurements; null if nothing was made."""
    resumed_frames: int = 0
    """Output frames of a clip, or steps of a sample, that an earlier run had done and this run continued
    from: its time is of the others alone."""
    stage: Stage | None = None
    """The stage; records of earlier programs name it in the request's hints only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextReply(Message):
    """The result of a call. A call of `learn` has only the fuel and the reason of a failure."""
    adjusted: tuple[str, ...]
    """The changes made to the answer."""
    fuel: int
    """Fuel that the guest used."""
    answer: TextPlan | None = None
    """The policy's answer; null if it gave none."""
    fallback: Fallback | None = None
    """The reason why there is no usable answer, or why the policy did not learn."""
    plan: TextPlan | None = None
    """The plan after checking; null for `learn`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRequest(Message):
    """A request for the states of texts by one encoder."""
    model: EncoderModel
    """The encoder."""
    tokens: tuple[int, ...]
    """The tokens of each text."""
    memory_limit: int
    """The most bytes of the device's memory to hold at once, weights included."""
    host_free_bytes: int = 0
    """Bytes of host memory that are free."""
    host_total_bytes: int = 0
    """Bytes of host memory; 0 if the system does not tell."""
    objective: Objective = 'balanced'
    """The aim."""
    transfer_rate: int = 0
    """Bytes a second from host memory to a GPU; 0 of a CPU, and if it is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextTrials(Message):
    """An answer to a question for earlier measurements."""
    most: int
    """The most trials asked for."""
    trials: tuple[TextExactTrial, ...]
    """Newest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile(Message):
    """A tile, in pixels of the frames' side (a decode's output, an encode's input)."""
    height: int
    """Pixels."""
    width: int
    """Pixels."""
    overlap: int
    """Pixels that neighbouring tiles share, along either axis."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeTime(Message):
    """No division."""
    kind: Literal["whole"] = 'whole'


@dataclass(frozen=True, kw_only=True, slots=True)
class CarriedTime(Message):
    """Chunks that carry the causal cache."""
    kind: Literal["carried"] = 'carried'
    frames: int
    """Frames of a chunk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlendedTime(Message):
    """Chunks that run alone and are cross-faded."""
    kind: Literal["blended"] = 'blended'
    frames: int
    """Frames of a chunk."""
    overlap: int
    """Frames that neighbouring chunks share."""


Time = Union[WholeTime, CarriedTime, BlendedTime]
"""The division of a clip's frames; counts are frames of pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trials(Message):
    """An answer to a question for earlier measurements."""
    most: int
    """The most trials asked for."""
    trials: tuple[ExactTrial, ...]
    """Newest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlagValues(Message):
    """`true` or `false`."""
    kind: Literal["flag"] = 'flag'


@dataclass(frozen=True, kw_only=True, slots=True)
class IntegerValues(Message):
    """A whole number."""
    kind: Literal["integer"] = 'integer'
    least: int
    """The least."""
    most: int
    """The most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NumberValues(Message):
    """Any number."""
    kind: Literal["number"] = 'number'
    least: float
    """The least."""
    most: float
    """The most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextValues(Message):
    """One of these words."""
    kind: Literal["text"] = 'text'
    words: tuple[str, ...]
    """The words."""


Values = Union[FlagValues, IntegerValues, NumberValues, TextValues]
"""The values that an option may have; both ends of a range belong to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call(Message):
    """One call of a policy."""
    sequence: int
    """Counted over the session, from 0."""
    request: Request
    """The request as the host put it. A guest of contract 0.1 also gets the offer's hints that the request
    lacks."""
    device: Device
    """The device that the work runs on."""
    question: Question
    """The function that was called, with its other inputs."""
    reply: Reply
    """The result of the call."""
    heard: HostAnswers = HostAnswers()
    """The host's answers to the policy's questions during the call."""
    stage: Stage | None = None
    """The stage; records of earlier programs name it in the request's hints only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseCall(Message):
    """One call of a policy."""
    sequence: int
    """Counted over the session, from 0."""
    request: DenoiseRequest
    """The request as the host put it. A guest of contract 0.1 also gets the offer's hints that the request
    lacks."""
    device: Device
    """The device that the work runs on."""
    question: DenoiseQuestion
    """The function that was called, with its other inputs."""
    reply: DenoiseReply
    """The result of the call."""
    heard: DenoiseHostAnswers = DenoiseHostAnswers()
    """The host's answers to the policy's questions during the call."""
    stage: Stage | None = None
    """The stage; records of earlier programs name it in the request's hints only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DenoisePlan(Message):
    """The way in which a sample is computed. None of it changes what was asked for; narrow types are lossy,
    and their names say so."""
    precision: Precision
    """The types that it is computed in."""
    weights: WeightForm
    """The form that weights are kept in."""
    guidance: GuidanceOrder
    """The order of a step's passes."""
    reason: str
    """The reason, for people."""
    ahead: int | None = None
    """Blocks of weights that are read ahead while the one before computes, after which they are given back:
    with 0, a block comes from the host when its turn does. Null if all are kept."""
    attention: Attention = FusedAttention()
    """The way in which attention is computed."""
    feed_forward: int = 1
    """The parts of the tokens that go through a feed-forward layer one after the other."""
    options: Options = ()
    """The options that are set beside these fields."""
    products: Products = 'precision'
    """The operands of matrix products."""
    release: Release = 'keep'
    """The time at which unused memory of the pool is freed."""
    reuse: StepReuse = OffStepReuse()
    """Reuse of the network's work from step to step."""
    samples: int | None = None
    """Samples of a pass that go through the network together; null for all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextCall(Message):
    """One call of a policy."""
    sequence: int
    """Counted over the session, from 0."""
    request: TextRequest
    """The request as the host put it. A guest of contract 0.1 also gets the offer's hints that the request
    lacks."""
    device: Device
    """The device that the work runs on."""
    question: TextQuestion
    """The function that was called, with its other inputs."""
    reply: TextReply
    """The result of the call."""
    heard: TextHostAnswers = TextHostAnswers()
    """The host's answers to the policy's questions during the call."""
    stage: Stage | None = None
    """The stage; records of earlier programs name it in the request's hints only."""
