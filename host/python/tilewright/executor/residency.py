"""Places of weights: on the device that computes, or on the host, from where blocks come when they are needed.

Between forwards a network's tensors are always the ones that its owner knows, of the same types and values; a plan
decides on which device they lie. What a forward needs elsewhere, or in another type, is a copy for the length of that
forward. All that run a network see such copies, so its forwards take turns, whichever threads and pipelines they are
of.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from .parts import Part, Parts, bytes_of

#: The type that a tensor of this name is computed in; None leaves it as it is.
Cast = Callable[[str, Tensor], "torch.dtype | None"]

#: The locks of networks, whoever runs them.
_turns: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_finding = threading.Lock()


def turn_of(network: nn.Module) -> threading.RLock:
    """The lock of a network's weights: held by the thread whose forward it is, and by one that moves them."""
    with _finding:
        return _turns.setdefault(network, threading.RLock())


class Places:
    """The device that computes, and the host: where tensors lie, and how they come from one to the other.

    Attributes:
        device: the device that computes.
        host: the device of the host's memory.
        moved_bytes: bytes of weights that have come to the device.
    """

    def __init__(self, device: torch.device, host: torch.device | None = None) -> None:
        self.device = device
        self.host = host or torch.device("cpu")
        self.moved_bytes = 0
        self._stream: torch.cuda.Stream | None = None

    @property
    def are_apart(self) -> bool:
        """The device has memory beside the host's."""
        return self.device != self.host

    def is_on_device(self, tensor: Tensor) -> bool:
        """True if the tensor lies where is computed."""
        return tensor.device == self.device

    def to_device(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor on the device, perhaps in another type."""
        if not self.is_on_device(tensor):
            self.moved_bytes += bytes_of(tensor)
            tensor = tensor.to(self.device, non_blocking=True)
        return tensor if dtype is None else tensor.to(dtype)

    def to_host(self, tensor: Tensor, *, is_fast: bool = False) -> Tensor:
        """The tensor on the host; in pages that stay, from where copies are faster, if it is to come back often."""
        found = tensor.to(self.host)
        return found.pin_memory() if is_fast and self._has_stream and not found.is_pinned() else found

    def back(self, tensor: Tensor, device: torch.device) -> Tensor:
        """The tensor on the device where its owner had it, in memory as its owner's."""
        found = tensor.to(device)
        return found.clone() if found is tensor and self._has_stream and found.is_pinned() else found

    @property
    def _has_stream(self) -> bool:
        return self.device.type == "cuda"

    @contextmanager
    def ahead(self) -> Generator[Callable[[], None], None, None]:
        """Copies made in it run beside the work, where the device can do that; the given function has the work wait for
        them."""
        if not self._has_stream:
            yield lambda: None
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        done = torch.cuda.Event()
        with torch.cuda.stream(self._stream):
            yield lambda: done.wait(torch.cuda.current_stream(self.device))
            done.record(self._stream)

    def used(self, tensors: Iterable[Tensor]) -> None:
        """Tensors that were made ahead are used by the work: their memory is taken again only after it."""
        if self._has_stream:
            current = torch.cuda.current_stream(self.device)
            for tensor in tensors:
                if tensor.device.type == "cuda":
                    tensor.record_stream(current)

    def settle(self) -> None:
        """Waits until the device has done what it was asked to."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class _Copies:
    """Copies of a part's tensors for a forward, and the tensors that they stand for."""

    __slots__ = ("_pairs", "_ready", "_tensors")

    def __init__(self, part: Part, places: Places, cast: Cast | None, *, ahead: bool = False) -> None:
        self._tensors: list[Tensor] = []
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._ready: Callable[[], None] | None = None
        if ahead:
            with places.ahead() as self._ready:
                self._make(part, places, cast)
        else:
            self._make(part, places, cast)

    def _make(self, part: Part, places: Places, cast: Cast | None) -> None:
        for name, tensor in part.tensors.items():
            home = tensor.data
            dtype = None if cast is None else cast(name, tensor)
            if places.is_on_device(home) and dtype in (None, home.dtype):
                continue
            self._tensors.append(tensor)
            self._pairs.append((home, places.to_device(home, dtype)))

    def take(self, places: Places) -> None:
        """Puts the copies in the place of what they are of."""
        if self._ready is not None:
            self._ready()
            places.used(copy for _, copy in self._pairs)
        for tensor, (_, copy) in zip(self._tensors, self._pairs, strict=True):
            tensor.data = copy

    def leave(self) -> None:
        """Puts back what they are of."""
        for tensor, (home, _) in zip(self._tensors, self._pairs, strict=True):
            tensor.data = home

    @property
    def bytes(self) -> int:
        return sum(bytes_of(copy) for _, copy in self._pairs)


class Residency:
    """A network's weights: where they lie between forwards, and how a forward gets them.

    Args:
        network: the network.
        places: the device and the host.
    """

    def __init__(self, network: nn.Module, places: Places) -> None:
        # What is kept of a pipeline does not keep its networks.
        self._network = weakref.ref(network)
        self.places = places
        self.turn = turn_of(network)
        #: The device of each tensor that was moved, where its owner had it, and the address that it was moved to.
        self._origins: MutableMapping[Tensor, tuple[torch.device, int]] = WeakTensorKeyDictionary()
        #: The blocks in the order in which the last forward ran them.
        self._order: list[str] = []
        #: Copies in another type that serve until the sample ends.
        self._expanded: dict[str, _Copies] = {}
        self.weights_bytes = 0
        """The most bytes of weights that the latest forward had on the device at once."""

    @property
    def network(self) -> nn.Module:
        """The network, which somebody else keeps."""
        found = self._network()
        assert found is not None, "a network that is gone has no forward"
        return found

    @property
    def parts(self) -> Parts:
        """The network's parts as it is now."""
        return Parts.of(self.network)

    def named_parameters(
        self, own: Callable[..., Iterable[tuple[str, nn.Parameter]]], *args: Any, **kwargs: Any
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """The network's parameters, by its method `own`, of the types that its owner knows: a pipeline in another thread
        that asks for the network's type waits for the end of a forward that computes in another one."""
        with self.turn:
            return iter(list(own(*args, **kwargs)))

    def place(self, *, device: bool, ahead: int | None = None) -> float:
        """Moves the weights to where a plan has them between forwards; those of streamed blocks wait on the host.

        Args:
            device: the plan computes on the device.
            ahead: blocks that are read ahead; None if all stay on the device.

        Returns:
            The seconds that it took.
        """
        if not self.places.are_apart:
            return 0.0
        with self.turn:
            return self._place(device=device, ahead=ahead)

    def leave(self) -> None:
        """Moves the weights to the host, unless another thread's forward needs them."""
        if self.turn.acquire(blocking=False):
            try:
                self.place(device=False)
            finally:
                self.turn.release()

    def _place(self, *, device: bool, ahead: int | None) -> float:
        started = time.perf_counter()
        parts = self.parts
        streamed = device and ahead is not None
        # Tensors that leave make room for those that come.
        for part in parts.blocks if streamed else parts if not device else ():
            for tensor in part.tensors.values():
                if self.places.is_on_device(tensor.data):
                    self._move(tensor, self.places.to_host(tensor.data, is_fast=streamed))
        for part in (parts.rest,) if streamed else parts if device else ():
            for tensor in part.tensors.values():
                if not self.places.is_on_device(tensor.data):
                    self._move(tensor, self.places.to_device(tensor.data))
        self.places.settle()
        return time.perf_counter() - started

    def _move(self, tensor: Tensor, moved: Tensor) -> None:
        known = self._origins.get(tensor)
        # A tensor that its owner has moved since is where its owner wants it.
        is_ours = known is not None and known[1] == tensor.data.data_ptr()
        origin = known[0] if known is not None and is_ours else tensor.data.device
        tensor.data = moved
        self._origins[tensor] = origin, moved.data_ptr()

    def restore(self) -> None:
        """Moves the weights back to where their owner had them."""
        network = self._network()
        if network is None:
            return
        with self.turn:
            self.forget_expanded()
            if not len(self._origins):
                return
            for _, tensor in Parts.of(network).tensors():
                origin, address = self._origins.get(tensor, (None, 0))
                if origin is not None and address == tensor.data.data_ptr():
                    tensor.data = self.places.back(tensor.data, origin)
            self._origins.clear()
            self.places.settle()

    def forget_expanded(self) -> None:
        """Lets go of copies in another type."""
        self._expanded.clear()

    @contextmanager
    def forward(
        self, *, ahead: int | None = None, cast: Cast | None = None, expanded: bool = False
    ) -> Generator[None, None, None]:
        """One forward of the network within it finds all weights on the device, and in the types of `cast`. Another
        thread's waits for its end.

        Args:
            ahead: blocks that are copied ahead while the one before computes: with 0 a block comes when its turn does,
                None if those that don't lie on the device come all at once.
            cast: the types that tensors are computed in.
            expanded: copies in another type are kept for the next forward.
        """
        with self.turn, self._weights_of_forward(ahead, cast, expanded):
            yield

    @contextmanager
    def _weights_of_forward(self, ahead: int | None, cast: Cast | None, expanded: bool) -> Generator[None, None, None]:
        parts = self.parts
        if ahead is None and not expanded and cast is None and all(
            self.places.is_on_device(tensor.data) for _, tensor in parts.tensors()
        ):
            self.weights_bytes = parts.bytes
            yield
            return
        one = _Forward(parts, self.places, cast, ahead, self._order)
        if expanded:
            for part in parts:
                if part.name not in self._expanded:
                    self._expanded[part.name] = _Copies(part, self.places, cast)
            one.use_all(self._expanded)
        elif ahead is None and cast is None:
            one.use_all({part.name: _Copies(part, self.places, None) for part in parts})
        else:
            one.stream()
        try:
            yield
        finally:
            one.end()
            self._order = one.order or self._order
            self.weights_bytes = one.most_bytes


class _Forward:
    """One forward: hooks on blocks that bring their weights and let go of them."""

    def __init__(self, parts: Parts, places: Places, cast: Cast | None, ahead: int | None, order: list[str]) -> None:
        self._parts = parts
        self._places = places
        self._cast = cast
        self._ahead = ahead or 0
        self._expected = [name for name in order] or [block.name for block in parts.blocks]
        self._by_name = {block.name: block for block in parts.blocks}
        self._handles: list[RemovableHandle] = []
        #: Copies that wait for their turn, and those in use.
        self._coming: dict[str, _Copies] = {}
        self._used: dict[str, _Copies] = {}
        self.order: list[str] = []
        self._on_device = sum(
            bytes_of(tensor) for _, tensor in parts.tensors() if places.is_on_device(tensor.data)
        )
        self.most_bytes = self._on_device

    def use_all(self, copies: dict[str, _Copies]) -> None:
        """Copies of all parts serve at once."""
        for name, one in copies.items():
            one.take(self._places)
            self._used[name] = one
        self._count()

    def stream(self) -> None:
        """Blocks come and go."""
        rest = _Copies(self._parts.rest, self._places, self._cast)
        rest.take(self._places)
        self._used[""] = rest
        self._count()
        for block in self._parts.blocks:
            self._handles += [
                block.module.register_forward_pre_hook(self._coming_hook(block)),
                block.module.register_forward_hook(self._leaving_hook(block)),
            ]

    def end(self) -> None:
        """Everything is as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for one in self._used.values():
            one.leave()
        self._used.clear()
        self._coming.clear()

    def _coming_hook(self, block: Part) -> Callable[..., None]:
        def come(module: nn.Module, inputs: object) -> None:
            if block.name in self._used:
                return
            copies = self._coming.pop(block.name, None) or _Copies(block, self._places, self._cast)
            copies.take(self._places)
            self._used[block.name] = copies
            self.order.append(block.name)
            self._read_ahead(block.name)
            self._count()

        return come

    def _leaving_hook(self, block: Part) -> Callable[..., None]:
        def go(module: nn.Module, inputs: object, output: object) -> None:
            copies = self._used.pop(block.name, None)
            if copies is not None:
                copies.leave()

        return go

    def _read_ahead(self, name: str) -> None:
        if self._ahead == 0 or name not in self._expected:
            return
        first = self._expected.index(name) + 1
        for following in self._expected[first : first + self._ahead]:
            is_new = following not in self._coming and following not in self.order
            # The first forward may run blocks in another order than they are defined in.
            if is_new and following in self._by_name and len(self._coming) < self._ahead:
                self._coming[following] = _Copies(self._by_name[following], self._places, self._cast, ahead=True)

    def _count(self) -> None:
        copied = sum(one.bytes for one in (*self._used.values(), *self._coming.values()))
        self.most_bytes = max(self.most_bytes, self._on_device + copied)
