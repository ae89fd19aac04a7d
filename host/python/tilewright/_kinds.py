"""The kinds of work, each with its types of records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, Union

from . import records

RequestT = TypeVar("RequestT", bound=Union[records.Request, records.DenoiseRequest, records.TextRequest])
CapabilitiesT = TypeVar(
    "CapabilitiesT", bound=Union[records.Capabilities, records.DenoiseCapabilities, records.TextCapabilities]
)
PlanT = TypeVar("PlanT", bound=Union[records.Plan, records.DenoisePlan, records.TextPlan])
CostT = TypeVar("CostT", bound=Union[records.Cost, records.DenoiseCost, records.TextCost])
RecordT = TypeVar("RecordT", bound=Union[records.Record, records.DenoiseRecord, records.TextRecord])


@dataclass(frozen=True)
class Kind:
    """A kind of work: its stages, the usual one first, and its types."""

    stages: tuple[records.Stage, ...]
    request: type[Any]
    capabilities: type[Any]
    plan: type[Any]
    cost: type[Any]
    attempt: type[Any]
    failed: type[Any]
    outcome: type[Any]
    record: type[Any]


VAE = Kind(
    ("decode", "encode"),
    records.Request,
    records.Capabilities,
    records.Plan,
    records.Cost,
    records.Attempt,
    records.FailedAttempt,
    records.Outcome,
    records.Record,
)
DENOISE = Kind(
    ("denoise",),
    records.DenoiseRequest,
    records.DenoiseCapabilities,
    records.DenoisePlan,
    records.DenoiseCost,
    records.DenoiseAttempt,
    records.DenoiseFailedAttempt,
    records.DenoiseOutcome,
    records.DenoiseRecord,
)
TEXT = Kind(
    ("text",),
    records.TextRequest,
    records.TextCapabilities,
    records.TextPlan,
    records.TextCost,
    records.TextAttempt,
    records.TextFailedAttempt,
    records.TextOutcome,
    records.TextRecord,
)

#: By stages and by types of requests.
OF_STAGE = {stage: kind for kind in (VAE, DENOISE, TEXT) for stage in kind.stages}
OF_REQUEST = {kind.request: kind for kind in (VAE, DENOISE, TEXT)}
