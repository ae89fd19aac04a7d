"""Text encoders' forwards by policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

from torch import nn

from .. import records
from .calls import Call, record_of
from .failures import failure_of
from .fitting import text_question, torch_dtype
from .inputs import check_output, device_of_inputs, first_tensor, moved, sizes_of
from .networks import Weights, encoder_heads, encoder_kind, encoder_width
from .parts import bytes_of
from .peak import Peak, collect


class Encoder(Call[records.TextRequest, records.TextCapabilities, records.TextPlan, records.TextCost]):
    """A text encoder's forwards."""

    def forward(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The output of `own`, by the policy's plan, on the device of the inputs. Threads take turns."""
        with self.resident.residency.turn:
            return self._forward(own, args, kwargs)

    def _forward(self, own: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.is_left_alone():
            return own(*args, **kwargs)
        ids = first_tensor(args, kwargs)
        if ids is None or ids.dim() < 2:
            return own(*args, **kwargs)
        texts, length = max(int(ids.shape[0]), 1), max(int(ids.shape[1]), 1)
        key = sizes_of((args, kwargs))
        subject = self.subject(key, texts, length, encoder_width(self.network))
        question = text_question(
            subject,
            encoder_kind(self.network),
            (length,) * texts,
            encoder_heads(self.network),
            self._table_bytes(),
            memory_limit=self.placement.memory_limit,
            objective=self.placement.objective,
            taken=self.placement.taken(self.resident),
        )
        attempts: list[Any] = []
        decision, plan, notes = self.decide(question, attempts)
        while True:
            if attempts:
                collect(self.placement.places.device)
            try:
                output, outcome = self._run(plan, own, args, kwargs)
            except Exception as error:
                failure = failure_of(error)
                if failure is None:
                    raise
                attempts.append(replace(decision.failed(failure), plan=plan))
                following = self.following(question, attempts)
                if following is None:
                    raise
                decision, plan, notes = following
            else:
                break
        self.resident.may_leave = not plan.kept
        outcome = replace(outcome, attempts=len(attempts) + 1)
        if plan.place == "device" or not self.placement.places.are_apart:
            self.keep(key, outcome.peak_bytes, torch_dtype(plan.precision), outcome.elapsed_ms / 1000)
        record = record_of(decision, plan, notes, attempts, outcome)
        self.placement.tell(question, cast(records.TextRecord, record))
        return output

    def _run(
        self, plan: records.TextPlan, own: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Any, records.TextOutcome]:
        places, residency = self.placement.places, self.resident.residency
        on_host = places.are_apart and plan.place == "host"
        device = places.host if on_host else places.device
        if not on_host:
            self.placement.make_room(self.resident)
        loading = residency.place(device=not on_host)
        dtype = torch_dtype(plan.precision)
        weights_cast, types = self.casts(dtype)
        back = device_of_inputs(args, kwargs) or device
        given = moved(args, device, types), moved(dict(kwargs), device, types)
        with Peak(device) as peak, ExitStack() as stack:
            if not on_host:
                stack.enter_context(residency.forward(cast=weights_cast, expanded=plan.weights == "expanded"))
            output = own(*given[0], **given[1])
        residency.forget_expanded()
        output = moved(output, back, None if types is None else (types[1], types[0]))
        if types is not None and types[1].itemsize < types[0].itemsize:
            check_output(output)
        held = residency.weights_bytes if not on_host else 0
        measured = peak.bytes or 0
        return output, records.TextOutcome(
            elapsed_ms=peak.seconds * 1000,
            load_ms=loading * 1000,
            peak_bytes=0 if on_host else measured,
            weights_bytes=held,
            host_bytes=measured + Weights.of(self.network).stored_bytes if on_host else 0,
            attempts=1,
            pool=peak.pool,
        )

    def _table_bytes(self) -> int:
        tables = (one.weight for one in self.network.modules() if isinstance(one, nn.Embedding))
        return sum(bytes_of(weight) for weight in {id(one): one for one in tables}.values())
