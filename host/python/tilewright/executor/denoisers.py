"""Denoisers' forwards by policy, of which many make a sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor

from .. import records
from ..errors import ModelError
from ..model import DenoiseQuote
from .calls import Call, record_of
from .failures import failure_of
from .fitting import ATTENTION, OWN, Question, Subject, denoise_question, torch_dtype
from .inputs import check_output, device_of_inputs, first_tensor, moved, sizes_of
from .networks import family_of, priced_model
from .peak import Peak, collect, trim
from .placement import Placement, Resident

#: Inputs that hold the conditioning of a denoiser, by their names in diffusers.
_TEXT = "encoder_hidden_states"

#: Denoisers whose pipelines run guidance as a pass of its own.
_IN_TURN = ("WanTransformer3DModel", "QwenImageTransformer2DModel")


@dataclass(slots=True)
class _Sample:
    """A sample under way."""

    question: Question[records.DenoiseRequest, records.DenoiseCapabilities, records.DenoisePlan, records.DenoiseCost]
    decision: Any
    plan: records.DenoisePlan
    notes: tuple[str, ...]
    guided: Any
    key: Any
    attempts: list[Any]
    peak: Peak
    loading: float = 0.0
    spent: float = 0.0
    highest: int = 0
    weights: int = 0
    moved_before: int = 0
    calls: int = 0


class Denoiser(Call[records.DenoiseRequest, records.DenoiseCapabilities, records.DenoisePlan, records.DenoiseCost]):
    """A denoiser's forwards: the policy is asked at the first of a sample, and again when one fails.

    Args:
        resident: the denoiser.
        placement: what the pipeline's stages share.
        schedule: tells the sampler's name, its sigmas, and a word on guidance, as far as the pipeline knows them.
    """

    def __init__(
        self,
        resident: Resident,
        placement: Placement,
        schedule: Callable[[], tuple[str, Sequence[float], Any]],
    ) -> None:
        super().__init__(resident, placement)
        self._schedule = schedule
        self._steps = 0
        self._done = 0
        self._is_open = False
        self._sample: _Sample | None = None
        #: Passes of a step, by the word on guidance, as samples had them.
        self._passes: dict[Any, int] = {}
        #: Kernels of attention that were there before.
        self._kernels: list[tuple[Any, Any]] = []

    def open(self, steps: int) -> None:
        """A sample of so many steps begins."""
        with self.resident.residency.turn:
            self.close()
            self._steps, self._done, self._is_open = steps, 0, True

    def stepped(self, steps: int = 1) -> None:
        """Steps are done."""
        self._done += steps
        sample = self._sample
        if sample is not None and sample.plan.release == "each-step":
            trim(self.placement.places.device)

    def close(self, *, failed: bool = False) -> None:
        """The sample ends. One that failed, or had no forward, leaves no record."""
        with self.resident.residency.turn:
            self._close(failed=failed)

    def _close(self, *, failed: bool) -> None:
        sample, self._sample = self._sample, None
        is_open, self._is_open = self._is_open, False
        if sample is None:
            return
        self._end(sample)
        self._give_kernels_back()
        self.resident.residency.forget_expanded()
        if sample.plan.release == "at-end":
            trim(self.placement.places.device)
        if failed:
            return
        steps = max(self._done if is_open else 1, 1)
        passes = max(round(sample.calls / steps), 1)
        self._passes[sample.guided] = passes
        elapsed = sample.spent * 1000
        self.keep(sample.key, sample.highest, torch_dtype(sample.plan.precision), sample.spent / max(sample.calls, 1))
        outcome = records.DenoiseOutcome(
            elapsed_ms=elapsed,
            load_ms=sample.loading * 1000,
            step_ms=elapsed / steps,
            peak_bytes=sample.highest,
            weights_bytes=sample.weights,
            moved_bytes=max(self.placement.places.moved_bytes - sample.moved_before, 0),
            pool=sample.peak.pool,
            attempts=len(sample.attempts) + 1,
        )
        record = record_of(sample.decision, sample.plan, sample.notes, sample.attempts, outcome)
        self.placement.tell(sample.question, cast(records.DenoiseRecord, record))

    def _end(self, sample: _Sample) -> None:
        """Ends a measurement."""
        sample.peak.__exit__(None, None, None)
        sample.spent += sample.peak.seconds
        residency = self.resident.residency
        come = max(residency.weights_bytes - self.resident.on_device(), 0)
        sample.highest = max(sample.highest, max((sample.peak.bytes or 0) - come, 0))
        sample.weights = max(sample.weights, residency.weights_bytes)

    def forward(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The output of `own`, by the sample's plan, on the device of the inputs. Threads take turns."""
        with self.resident.residency.turn:
            return self._forward(own, args, kwargs)

    def _forward(self, own: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.is_left_alone():
            return own(*args, **kwargs)
        values = first_tensor(args, kwargs)
        if values is None:
            return own(*args, **kwargs)
        alone = not self._is_open
        if self._sample is None:
            self._begin(args, kwargs)
        sample = self._sample
        assert sample is not None
        while True:
            started = time.perf_counter()
            try:
                output = self._run(sample.plan, own, args, kwargs)
            except Exception as error:
                failure = failure_of(error)
                following = None
                if failure is not None:
                    self._end(sample)
                    sample.spent = max(sample.spent - (time.perf_counter() - started), 0.0)
                    failed = sample.decision.failed(failure, step=self._done)
                    sample.attempts.append(replace(failed, plan=sample.plan))
                    following = self.following(sample.question, sample.attempts)
                if following is None:
                    self.close(failed=True)
                    raise
                sample.decision, sample.plan, sample.notes = following
            else:
                break
            collect(self.placement.places.device)
            self._place(sample)
        sample.calls += 1
        sample.weights = max(sample.weights, self.resident.residency.weights_bytes)
        if alone:
            # A forward outside of a sample's loop is a sample of one step.
            self.close()
        return output

    def _begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        sampler, sigmas, guided = self._schedule()
        steps = max(self._steps if self._is_open else 1, 1)
        question = self._question(args, kwargs, steps, (sampler, tuple(sigmas), guided))
        decision, plan, notes = self.decide(question, ())
        peak = Peak(self.placement.places.device)
        sample = _Sample(question, decision, plan, notes, guided, sizes_of((args, kwargs)), [], peak)
        self._place(sample)
        self._sample = sample

    def _question(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        steps: int,
        schedule: tuple[str, tuple[float, ...], Any],
    ) -> Question[records.DenoiseRequest, records.DenoiseCapabilities, records.DenoisePlan, records.DenoiseCost]:
        sampler, sigmas, guided = schedule
        config: Any = getattr(self.network, "config", {})
        values = first_tensor(args, kwargs)
        assert values is not None
        size, pictures = _extents(values, kwargs, config)
        text = kwargs.get(_TEXT)
        texts = int(text.shape[1]) if isinstance(text, Tensor) and text.dim() == 3 else 0
        key = sizes_of((args, kwargs))
        subject = self.subject(key, size[0], pictures + texts, _width(config))
        usual = 2 if guided and type(self.network).__name__ in _IN_TURN else 1
        passes = self._passes.get(guided, usual)
        if len(sigmas) != steps + 1:
            sigmas = tuple(1 - step / steps for step in range(steps + 1))
        taken = self.placement.taken(self.resident)
        limit = subject.limit(self.placement.memory_limit, taken)
        return denoise_question(
            subject,
            family_of(self.network),
            size,
            (texts, pictures),
            (steps, passes, sampler, sigmas),
            memory_limit=self.placement.memory_limit,
            objective=self.placement.objective,
            taken=taken,
            quote=self._quote(subject, size, texts, steps, passes, limit),
            has_backends=any(True for _ in self._processors()),
        )

    def _quote(
        self, subject: Subject, size: tuple[int, int, int, int], texts: int, steps: int, passes: int, limit: int
    ) -> DenoiseQuote | None:
        """Prices by the package's own model of the network, where there is one."""
        model = priced_model(self.network)
        if model is None:
            return None
        batch, frames, height, width = size
        is_clip = type(self.network).__name__ == "WanTransformer3DModel"
        more: dict[str, Any] = {"frames": (frames - 1) * 4 + 1, "has_negative": passes > 1} if is_clip else {}
        try:
            return model.denoise(
                subject.device,
                width=width * 8,
                height=height * 8,
                batch=batch,
                steps=steps,
                text_tokens=texts,
                memory_limit=limit,
                objective=self.placement.objective,
                **more,
            )
        except ModelError as error:
            self.placement.note(f"{self.resident.name}: priced by its operations, as the model can't be: {error}")
            return None

    def _place(self, sample: _Sample) -> None:
        """Has weights and kernels as a plan says, and begins to measure."""
        self.placement.make_room(self.resident)
        residency = self.resident.residency
        residency.forget_expanded()
        sample.loading += residency.place(device=True, ahead=sample.plan.ahead)
        self._give_kernels_back()
        kernel = dict(sample.plan.options).get(ATTENTION, OWN)
        if kernel != OWN:
            for processor in self._processors():
                self._kernels.append((processor, processor._attention_backend))
                processor._attention_backend = kernel
        sample.moved_before = sample.moved_before or self.placement.places.moved_bytes
        sample.peak = Peak(self.placement.places.device)
        sample.peak.__enter__()

    def _run(
        self, plan: records.DenoisePlan, own: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        dtype = torch_dtype(plan.precision)
        weights_cast, types = self.casts(dtype)
        device = self.placement.places.device
        back = device_of_inputs(args, kwargs) or device
        given = moved(args, device, types), moved(dict(kwargs), device, types)
        forward = self.resident.residency.forward(
            ahead=plan.ahead, cast=weights_cast, expanded=weights_cast is not None and plan.weights == "expanded"
        )
        with forward:
            output = own(*given[0], **given[1])
        output = moved(output, back, None if types is None else (types[1], types[0]))
        if types is not None and types[1].itemsize < types[0].itemsize:
            check_output(output)
        return output

    def _processors(self) -> list[Any]:
        """The objects that compute attention and can be told another kernel: one of each of diffusers' modules."""
        found = [getattr(module, "processor", None) for module in self.network.modules()]
        return [one for one in found if one is not None and hasattr(one, "_attention_backend")]

    def _give_kernels_back(self) -> None:
        for processor, kernel in self._kernels:
            processor._attention_backend = kernel
        self._kernels.clear()


def _extents(values: Tensor, kwargs: Mapping[str, Any], config: Any) -> tuple[tuple[int, int, int, int], int]:
    """Samples, latent frames, height and width; and the tokens of pictures."""
    shape = [max(int(extent), 1) for extent in values.shape]
    if len(shape) == 3:
        # Tokens of 2x2 latent pixels, whose places another input may tell.
        ids = kwargs.get("img_ids")
        if isinstance(ids, Tensor) and ids.dim() >= 2:
            last = ids.reshape(-1, ids.shape[-1]).amax(0)
            height, width = (int(last[-2]) + 1) * 2, (int(last[-1]) + 1) * 2
        else:
            side = max(int(shape[1] ** 0.5), 1)
            height, width = side * 2, -(-shape[1] // side) * 2
        return (shape[0], 1, height, width), shape[1]
    patch: Any = getattr(config, "patch_size", None) or 1
    sides = [int(one) for one in cast("Sequence[int]", patch)] if isinstance(patch, (list, tuple)) else [int(patch)]
    frames = shape[2] if len(shape) == 5 else 1
    height, width = shape[-2:] if len(shape) >= 4 else (1, shape[-1])
    tokens = max(height // sides[-1], 1) * max(width // sides[-1], 1) * frames
    return (shape[0], frames, height, width), tokens


def _width(config: Any) -> int:
    """The width of a denoiser's token, as far as its configuration tells."""
    heads, width = getattr(config, "num_attention_heads", None), getattr(config, "attention_head_dim", None)
    if isinstance(heads, int) and isinstance(width, int):
        return heads * width
    channels = getattr(config, "block_out_channels", None)
    return int(channels[0]) if channels else 1024
