"""A pipeline's networks on one device: which of them are there, and which leave so that others have room."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Union

import torch
from torch import nn

from .. import records
from ..errors import PolicyError
from ..model import Device
from ..policy import Policy
from .device import device_of
from .fitting import Question
from .parts import Parts, bytes_of, is_plain
from .residency import Places, Residency

#: A record of any stage.
AnyRecord = Union[records.Record, records.DenoiseRecord, records.TextRecord]

#: Records that are kept, and lines for people.
MOST_RECORDS, MOST_NOTES = 256, 64


class Resident:
    """A network whose weights a pipeline's plans may move.

    Attributes:
        name: the pipeline's name of it.
        residency: where its weights lie.
        may_leave: it need not stay on the device once its work is done.
    """

    def __init__(self, name: str, network: nn.Module, places: Places) -> None:
        self.name = name
        self.residency = Residency(network, places)
        self.may_leave = False

    @property
    def network(self) -> nn.Module:
        """The network, which somebody else keeps."""
        return self.residency.network

    @property
    def is_movable(self) -> bool:
        """True if its weights are plain tensors that nobody else moves, casts or compiles."""
        return others_way(self.network) is None

    def on_device(self) -> int:
        """Bytes of its weights that are on the device."""
        places = self.residency.places
        return sum(
            bytes_of(tensor) for _, tensor in Parts.of(self.network).tensors() if places.is_on_device(tensor.data)
        )


class Placement:
    """The common state of a pipeline's stages: the policy, the device, the limit, and the networks that take turns.
    It keeps no network: who governs one keeps its `Resident` by the network itself.

    Args:
        policy: decides.
        places: the device and the host.
        memory_limit: the most bytes of the device's memory to hold; None for a share of what is free.
        objective: what counts most.
    """

    def __init__(
        self, policy: Policy, places: Places, *, memory_limit: int | None, objective: records.Objective
    ) -> None:
        self.policy = policy
        self.places = places
        self.memory_limit = memory_limit
        self.objective: records.Objective = objective
        self._residents: list[weakref.ref[Resident]] = []
        self._fixed: list[weakref.ref[nn.Module]] = []
        self.moved: list[Residency] = []
        """The modules that were moved to the device for as long as the pipeline is governed."""
        self.records: deque[AnyRecord] = deque(maxlen=MOST_RECORDS)
        self.notes: list[str] = []

    @property
    def residents(self) -> list[Resident]:
        """The networks that plans move, those that are still there."""
        return [one for one in (known() for known in self._residents) if one is not None]

    def add(self, resident: Resident) -> None:
        """Adds a network that plans move."""
        self._residents.append(weakref.ref(resident))

    def add_fixed(self, module: nn.Module) -> None:
        """Adds a network that stays where it is."""
        self._fixed.append(weakref.ref(module))

    @property
    def device(self) -> Device:
        """The device, with what is free of its memory now."""
        return device_of(self.places.device)

    def note(self, line: str) -> None:
        """Adds a line for people, once; the first 64 are kept."""
        if line not in self.notes and len(self.notes) < MOST_NOTES:
            self.notes.append(line)

    def taken(self, but: Resident) -> int:
        """Bytes of the device's memory that other networks of the pipeline hold; none of it on a processor, whose limit
        is a network's own."""
        if not self.places.are_apart:
            return 0
        fixed = sum(
            bytes_of(tensor)
            for module in (known() for known in self._fixed)
            if module is not None
            for _, tensor in Parts.of(module).tensors()
            if self.places.is_on_device(tensor.data)
        )
        return fixed + sum(one.on_device() for one in self.residents if one is not but)

    def make_room(self, but: Resident | None = None) -> None:
        """Lets networks leave the device whose work is done."""
        for one in self.residents:
            if one is not but and one.may_leave and one.is_movable:
                one.residency.leave()

    def free(self, needed: int) -> None:
        """Lets networks leave, in the order in which they ran, until so many bytes are free."""
        if not self.places.are_apart:
            return
        self.make_room()
        for one in self.residents:
            if one.is_movable and one.on_device() and self._is_short(needed):
                one.residency.leave()

    def _is_short(self, needed: int) -> bool:
        if self.memory_limit is not None:
            held = sum(one.on_device() for one in self.residents)
            if held + needed > self.memory_limit:
                return True
        if self.places.device.type != "cuda":
            return False
        free, _ = torch.cuda.mem_get_info(self.places.device)
        cached = torch.cuda.memory_reserved(self.places.device) - torch.cuda.memory_allocated(self.places.device)
        return free + cached < needed

    def tell(
        self,
        question: Question[
            records.DenoiseRequest, records.DenoiseCapabilities, records.DenoisePlan, records.DenoiseCost
        ]
        | Question[records.TextRequest, records.TextCapabilities, records.TextPlan, records.TextCost],
        record: records.DenoiseRecord | records.TextRecord,
    ) -> None:
        """Keeps a record, and lets the policy learn from its outcome."""
        self.records.append(record)
        if record.outcome is None:
            return
        try:
            self.policy.learn(
                question.request,
                record.plan,
                record.outcome,
                capabilities=question.capabilities,
                device=question.device,
            )
        except PolicyError as error:
            self.note(f"the policy did not learn: {error}")

    def restore(self) -> None:
        """All weights lie where their owner had them."""
        for one in self.residents:
            one.residency.restore()
        while self.moved:
            self.moved.pop().restore()


def others_way(network: nn.Module) -> str | None:
    """The way in which others have the weights of a network in hand, in a few words; None if nobody has."""
    # torch.compile makes a module of another class, or hides code in the module.
    if type(network).__name__ == "OptimizedModule" or getattr(network, "_compiled_call_impl", None) is not None:
        return "it is compiled"
    if getattr(network, "hf_device_map", None):
        return "device_map has placed it"
    if getattr(network, "hf_quantizer", None) is not None or getattr(network, "is_quantized", False):
        return "it is quantized"
    for module in network.modules():
        # Accelerate's hooks, and those of diffusers.
        if hasattr(module, "_hf_hook"):
            return "Accelerate offloads it"
        hooks = getattr(getattr(module, "_diffusers_hook", None), "hooks", {})
        if any("group_offloading" in name for name in hooks):
            return "group offloading moves it"
        if "layerwise_casting" in hooks:
            return "layerwise casting casts it"
    if not all(is_plain(tensor) for _, tensor in Parts.of(network).tensors()):
        return "its weights are not plain tensors"
    return None


def is_trained(network: nn.Module) -> bool:
    """True while gradients of its weights are asked for, which weights that come and go have none of."""
    return torch.is_grad_enabled() and network.training and any(one.requires_grad for one in network.parameters())


def keep_types(network: nn.Module) -> Callable[[str], bool]:
    """Tells of a tensor's name if the network's authors keep it in f32 whatever the rest is in."""
    kept: list[str] = []
    for module in network.modules():
        for attribute in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"):
            found = getattr(type(module), attribute, None)
            kept += [str(one) for one in found] if found else []
    return lambda name: any(one in name.split(".") for one in kept)
