"""A device apart from the host, as far as a processor can be one: tensors "on the device" are counted copies."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tilewright.executor.residency import Places


class Apart(Places):
    """A processor that is its own device, with a count of what is on it.

    Attributes:
        most_bytes: the most bytes of weights that were on the device at once.
        copies: tensors that have come to the device.
    """

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), torch.device("cpu"))
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most_bytes = 0
        self.copies = 0

    @property
    def are_apart(self) -> bool:
        return True

    def is_on_device(self, tensor: Tensor) -> bool:
        found = self._storages.get(tensor.untyped_storage().data_ptr())
        return found is not None and not found[0].expired()

    def to_device(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        is_there = self.is_on_device(tensor)
        if is_there and dtype in (None, tensor.dtype):
            return tensor
        if not is_there:
            self.moved_bytes += tensor.numel() * tensor.element_size()
            self.copies += 1
        made = tensor.detach().to(dtype or tensor.dtype, copy=True)
        self._add(made)
        return made

    def to_host(self, tensor: Tensor, *, is_fast: bool = False) -> Tensor:
        return tensor.detach().clone()

    def back(self, tensor: Tensor, device: torch.device) -> Tensor:
        return tensor.detach().clone() if self.is_on_device(tensor) else tensor

    def held_bytes(self) -> int:
        """Bytes that are on the device now."""
        self._prune()
        return sum(size for _, size in self._storages.values())

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            self._storages[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
            self.most_bytes = max(self.most_bytes, self.held_bytes())

    def _prune(self) -> None:
        self._storages = {key: one for key, one in self._storages.items() if not one[0].expired()}
