"""The parts of a network that weights are moved by: its blocks, and what is in none of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

#: A list whose modules hold a smaller share of the weights than this is no list of blocks.
LEAST_SHARE = 0.01


@dataclass(slots=True)
class Part:
    """A block, or all that is in none: what moves together.

    Attributes:
        name: the module's name in the network, as `transformer_blocks.3`; empty for what is in no block.
        module: the block, or the network itself.
        tensors: its parameters and buffers by their names in the network, each once; a tensor that several parts share
            belongs to what is in no block.
    """

    name: str
    module: nn.Module
    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    @property
    def bytes(self) -> int:
        """Bytes of its tensors as they are now."""
        return sum(bytes_of(tensor) for tensor in self.tensors.values())


@dataclass(slots=True)
class Parts:
    """A network in parts.

    Attributes:
        rest: what is in no block.
        blocks: the blocks, in the order of their definition.
    """

    rest: Part
    blocks: list[Part]

    @classmethod
    def of(cls, network: nn.Module) -> Parts:
        """The parts of a network as it is now: adapters that were loaded into it belong to their blocks."""
        blocks = [Part(name, module) for name, module in _blocks(network)]
        rest = Part("", network)
        owners: dict[int, Part] = {}
        for block in blocks:
            for name, tensor in _named(block.module):
                known = owners.setdefault(id(tensor), block)
                if known is not block:
                    owners[id(tensor)] = rest
        for name, tensor in _named(network):
            owners.get(id(tensor), rest).tensors[name] = tensor
        return cls(rest, [block for block in blocks if block.tensors])

    def __iter__(self) -> Iterator[Part]:
        yield self.rest
        yield from self.blocks

    @property
    def bytes(self) -> int:
        """Bytes of all tensors as they are now."""
        return sum(part.bytes for part in self)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors with their names, each once."""
        for part in self:
            yield from part.tensors.items()


def bytes_of(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def is_plain(tensor: Tensor) -> bool:
    """True for numbers in an ordinary type: those of quantizers, and tensors that are yet to be loaded, are others'."""
    data = tensor.data
    return type(data) is Tensor and data.layout is torch.strided and not data.is_meta


def main_dtype(network: nn.Module) -> torch.dtype | None:
    """The floating type that most of a network's parameters are in; None if it has none."""
    counts: dict[torch.dtype, int] = {}
    for parameter in network.parameters():
        if parameter.is_floating_point():
            counts[parameter.dtype] = counts.get(parameter.dtype, 0) + parameter.numel()
    return max(counts, key=lambda dtype: counts[dtype], default=None)


def _named(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, each once."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def _blocks(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules of lists that hold a good share of the weights and are in no other such list."""
    whole = sum(bytes_of(tensor) for _, tensor in _named(network))
    found: list[tuple[str, nn.Module]] = []

    def walk(module: nn.Module, prefix: str) -> None:
        for name, child in module.named_children():
            path = f"{prefix}{name}"
            if isinstance(child, nn.ModuleList):
                held = sum(bytes_of(tensor) for _, tensor in _named(child))
                if len(child) > 0 and held >= whole * LEAST_SHARE:
                    found.extend((f"{path}.{index}", block) for index, block in child.named_children())
            else:
                walk(child, f"{path}.")

    walk(network, "")
    # A module that is in two lists runs twice, and is one block.
    seen: set[int] = set()
    return [(name, block) for name, block in found if not (id(block) in seen or seen.add(id(block)))]
