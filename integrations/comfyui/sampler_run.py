"""One sample of ComfyUI by a plan: what a plan decides is done at each call of the network, on this sample alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from comfy import model_management
from comfy.patcher_extension import WrappersMP, add_wrapper_with_key
from tilewright import records
from tilewright.executor.failures import failure_of

from .sampler_attention import in_pieces
from .sampler_reuse import OutputReuse

#: The key of this pack's wrappers.
KEY = "tilewright"

#: Chooses the plan to go on with after a failure, when so many steps are done; None if there is none.
NextPlan = Callable[[records.Failure, int], "records.DenoisePlan | None"]


class SampleRun:
    """A sample under a plan. A call of the network that runs out of memory is made again by the next plan, so that no
    finished step is lost.

    Attributes:
        plan: the plan at work.
        steps: steps that are done.
        seconds: the time of the steps so far.
        reuse: what the last outputs served for.
    """

    def __init__(self, plan: records.DenoisePlan, next_plan: NextPlan) -> None:
        self.plan = plan
        self.steps = 0
        self.seconds = 0.0
        self.reuse = OutputReuse()
        self._next_plan = next_plan

    def attach(self, model_options: dict[str, Any]) -> None:
        """Puts the run into the options of a sample's own handle on its model."""
        for kind, wrapper in (
            (WrappersMP.PREPARE_SAMPLING, self._prepare),
            (WrappersMP.SAMPLER_SAMPLE, self._sample),
            (WrappersMP.CALC_COND_BATCH, self._evaluate),
        ):
            add_wrapper_with_key(kind, KEY, wrapper, model_options, is_model_options=True)

    def _prepare(self, executor: Any, model: Any, shape: Sequence[int], conds: Any, **more: Any) -> Any:
        """ComfyUI reserves memory for a pass of twice this many samples: both conditionings."""
        together = self.plan.samples or shape[0]
        if self.plan.guidance == "in-turn":
            together = (together + 1) // 2
        return executor(model, [max(1, min(together, shape[0])), *shape[1:]], conds, **more)

    def _sample(
        self,
        executor: Any,
        guider: Any,
        sigmas: torch.Tensor,
        extra_args: dict[str, Any],
        callback: Callable[..., None] | None,
        *rest: Any,
        **named: Any,
    ) -> Any:
        begun = time.perf_counter()

        def step(index: int, denoised: Any, x: Any, total: int) -> None:
            self.steps = index + 1
            if self.plan.release == "each-step":
                model_management.soft_empty_cache()
            model_management.throw_exception_if_processing_interrupted()
            if callback is not None:
                callback(index, denoised, x, total)

        try:
            return executor(guider, sigmas, extra_args, step, *rest, **named)
        finally:
            self.seconds += time.perf_counter() - begun

    def _evaluate(
        self,
        executor: Any,
        model: Any,
        conds: list[Any],
        x: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict[str, Any],
    ) -> list[torch.Tensor]:
        """The network's outputs for each conditioning."""
        reuse = self.plan.reuse
        if isinstance(reuse, records.OutputStepReuse):
            served = self.reuse.served(x, timestep, len(conds), reuse.threshold)
            if served is not None:
                return served
        while True:
            model_management.throw_exception_if_processing_interrupted()
            try:
                outputs = self._by_plan(executor, model, conds, x, timestep, model_options)
                break
            except Exception as error:
                failure = failure_of(error)
                if failure is None and model_management.is_oom(error):
                    failure = records.OutOfMemoryFailure(bytes=0)
                following = None if failure is None else self._next_plan(failure, self.steps)
                if following is None:
                    raise
                self.plan = following
            # The failed call's tensors are held until here.
            model_management.soft_empty_cache()
        if isinstance(self.plan.reuse, records.OutputStepReuse):
            self.reuse.computed(x, timestep, outputs)
        return outputs

    def _by_plan(
        self,
        executor: Any,
        model: Any,
        conds: list[Any],
        x: torch.Tensor,
        timestep: torch.Tensor,
        model_options: dict[str, Any],
    ) -> list[torch.Tensor]:
        options = self._options(x.shape[0], model_options)
        passes = [index for index, cond in enumerate(conds) if cond is not None]
        if self.plan.guidance == "together" or len(passes) < 2:
            with _any_memory(model.current_patcher):
                return list(executor(model, conds, x, timestep, options))
        outputs: list[torch.Tensor | None] = [None] * len(conds)
        for index in passes:
            # Patches tell conditionings by their places, so each keeps its own.
            alone = [cond if place == index else None for place, cond in enumerate(conds)]
            with _any_memory(model.current_patcher):
                outputs[index] = executor(model, alone, x, timestep, options)[index]
        return [torch.zeros_like(x) if one is None else one for one in outputs]

    def _options(self, batch: int, model_options: dict[str, Any]) -> dict[str, Any]:
        """The options of a call by the plan; those given stay as they are."""
        options = dict(model_options)
        attention = self.plan.attention
        if isinstance(attention, records.PiecesAttention):
            options["transformer_options"] = {
                **options.get("transformer_options", {}), "optimized_attention_override": in_pieces(attention.queries),
            }  # fmt: skip
        if self.plan.samples is not None and self.plan.samples < batch:
            options["model_function_wrapper"] = _one_after_another(
                self.plan.samples, options.get("model_function_wrapper")
            )
        return options


@contextmanager
def _any_memory(patcher: Any) -> Generator[None, None, None]:
    """ComfyUI takes conditionings together that fit the memory by its own estimate; here the plan decides. It holds for
    this sample's own patcher alone."""
    had = patcher.__dict__.get("get_free_memory")
    patcher.get_free_memory = lambda device: 1 << 62
    try:
        yield
    finally:
        if had is None:
            del patcher.get_free_memory
        else:
            patcher.get_free_memory = had


def _one_after_another(most: int, inner: Callable[..., torch.Tensor] | None) -> Callable[..., torch.Tensor]:
    """A call of the network for `most` samples at a time, of each conditioning in it.

    Args:
        most: samples of a call.
        inner: another pack's wrapper, which then gets the smaller calls.
    """

    def wrapper(apply: Callable[..., torch.Tensor], call: dict[str, Any]) -> torch.Tensor:
        values, conds = call["input"], call["cond_or_uncond"]
        rows = values.shape[0]
        batch = rows // len(conds)
        outputs: list[torch.Tensor] = []
        places: list[int] = []
        for start in range(0, batch, most):
            model_management.throw_exception_if_processing_interrupted()
            end = min(start + most, batch)
            chosen = [cond * batch + one for cond in range(len(conds)) for one in range(start, end)]
            index = torch.tensor(chosen, device=values.device)
            part = {
                **call,
                "input": values.index_select(0, index),
                "timestep": call["timestep"].index_select(0, index),
                "c": {
                    name: _of_samples(value, index % batch, batch)
                    if name == "transformer_options"
                    else _rows(value, rows, index)
                    for name, value in call["c"].items()
                },
            }
            if inner is None:
                outputs.append(apply(part["input"], part["timestep"], **part["c"]))
            else:
                outputs.append(inner(apply, part))
            places += chosen
        order = torch.tensor(places, device=values.device).argsort()
        return torch.cat(outputs).index_select(0, order)

    return wrapper


def _of_samples(options: dict[str, Any], index: torch.Tensor, batch: int) -> dict[str, Any]:
    """The transformer's options for the chosen samples: of them, noise levels alone belong to samples."""
    sigmas = options.get("sigmas")
    if not isinstance(sigmas, torch.Tensor) or sigmas.shape[:1] != (batch,):
        return options
    return {**options, "sigmas": sigmas.index_select(0, index.unique().to(sigmas.device))}


def _rows(value: Any, rows: int, index: torch.Tensor) -> Any:
    """The chosen rows of what has one for each sample; anything else serves all of them."""
    if isinstance(value, torch.Tensor):
        if value.ndim > 0 and value.shape[0] == rows:
            return value.index_select(0, index.to(value.device))
        return value
    if isinstance(value, list):
        return [_rows(one, rows, index) for one in value]
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_rows(one, rows, index) for one in value)
    if type(value) is dict:
        # Of a control, lists of tensors by names.
        return {name: _rows(one, rows, index) for name, one in value.items()}
    return value
