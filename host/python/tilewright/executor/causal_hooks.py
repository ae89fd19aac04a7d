"""The hooks of the blocks that a layer is in: accelerate and diffusers bring weights to the device as a block's forward
begins, and take them away as it ends. Here layers run one by one, and their blocks are entered for them."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from torch import nn

from .layers import entered


@dataclass(slots=True)
class Blocks:
    """The blocks of a module that have hooks, and those that are entered now."""

    #: For each module within, the blocks around it that have hooks, the outermost first.
    _around: dict[int, tuple[nn.Module, ...]]
    _entered: list[tuple[nn.Module, AbstractContextManager[None]]] = field(default_factory=lambda: [])

    @classmethod
    @contextmanager
    def of(cls, root: nn.Module) -> Generator[Blocks, None, None]:
        """The blocks of a module. Whatever is entered is left at the end."""
        around: dict[int, tuple[nn.Module, ...]] = {}

        def walk(module: nn.Module, outer: tuple[nn.Module, ...]) -> None:
            around[id(module)] = outer
            inner = (*outer, module) if _has_hooks(module) else outer
            for child in module.children():
                walk(child, inner)

        walk(root, ())
        blocks = cls(around)
        try:
            yield blocks
        finally:
            blocks._leave(0)

    def enter(self, modules: Iterable[nn.Module]) -> None:
        """Enters the blocks around all of the modules, and leaves the others. A block stays entered as long as only its
        layers run."""
        chains = [self._around.get(id(module), ()) for module in modules]
        shared: list[nn.Module] = []
        for level in zip(*chains):
            if any(block is not level[0] for block in level):
                break
            shared.append(level[0])
        kept = 0
        while kept < min(len(shared), len(self._entered)) and self._entered[kept][0] is shared[kept]:
            kept += 1
        self._leave(kept)
        for block in shared[kept:]:
            context = entered(block)
            context.__enter__()
            self._entered.append((block, context))

    def _leave(self, kept: int) -> None:
        while len(self._entered) > kept:
            _, context = self._entered.pop()
            context.__exit__(None, None, None)


def _has_hooks(module: nn.Module) -> bool:
    return "_hf_hook" in module.__dict__ or "_diffusers_hook" in module.__dict__
