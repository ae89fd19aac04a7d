"""Work on a module that ends soon after a user cancels it, in whatever layer it is.

A layer on a processor may take longer than a user waits. There the work runs in a thread of its own, which is left
behind in its layer and ends with it; on a device with kernels of its own, layers are queued and take no time.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import torch
from comfy import model_management

Result = TypeVar("Result")

#: Seconds between two looks for a cancellation.
POLL = 0.05

#: Seconds that cancelled work has to end by itself before it is left behind.
GRACE = 0.75

#: One thread, as the second piece of work would need the memory of the first.
_pool = ThreadPoolExecutor(1, thread_name_prefix="tilewright")
_latest: Future[Any] | None = None


class Interruption:
    """Tells the layers of one piece of work that it is cancelled, also after ComfyUI has forgotten so."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()

    def __call__(self) -> bool:
        """True once the work is to end."""
        return self._cancelled.is_set() or model_management.processing_interrupted()

    def set(self) -> None:
        """Ends the work."""
        self._cancelled.set()

    def check(self) -> None:
        """Called before each layer.

        Raises:
            InterruptProcessingException: the work is to end.
        """
        if self():
            raise model_management.InterruptProcessingException


def call(work: Callable[[Interruption], Result], module: torch.nn.Module, device: torch.device) -> Result:
    """Calls `work`, and ends it when a user cancels.

    Args:
        work: does its work by calling the module's layers; it gets what tells it to end.
        module: the module.
        device: the device that the module runs on.

    Raises:
        InterruptProcessingException: the user has cancelled it.
    """
    from tilewright.executor.running import Cancelled

    model_management.throw_exception_if_processing_interrupted()
    interruption = Interruption()
    try:
        if not model_management.is_device_cpu(device):
            with _watched(module, interruption):
                return work(interruption)
        return _call_beside(work, module, interruption)
    except (Cancelled, model_management.InterruptProcessingException):
        _end()


def _call_beside(
    work: Callable[[Interruption], Result], module: torch.nn.Module, interruption: Interruption
) -> Result:
    global _latest

    _wait_for_latest()
    # Threads have these of their own: the running node, and the modes of gradients.
    context = contextvars.copy_context()
    infers, has_gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def run() -> Result:
        with torch.inference_mode(infers), torch.set_grad_enabled(has_gradients), _watched(module, interruption):
            return work(interruption)

    future = _latest = _pool.submit(context.run, run)
    try:
        while not future.done():
            if model_management.processing_interrupted():
                interruption.set()
                wait([future], GRACE)
                if not future.done():
                    _end()
                break
            wait([future], POLL)
        return future.result()
    finally:
        interruption.set()
        if future.done():
            # It holds the result.
            _latest = None


def _wait_for_latest() -> None:
    """Waits until cancelled work that was left behind has ended: it still holds memory."""
    while _latest is not None and not _latest.done():
        model_management.throw_exception_if_processing_interrupted()
        wait([_latest], POLL)


def _end() -> NoReturn:
    model_management.throw_exception_if_processing_interrupted()
    # Another place has seen the user's wish, and taken it back.
    raise model_management.InterruptProcessingException


@contextmanager
def _watched(module: torch.nn.Module, interruption: Interruption) -> Generator[None, None, None]:
    """Looks for a cancellation before each of the module's layers, in this thread alone: work that was left behind has
    its hooks yet when the next work calls the same layers."""
    own = threading.get_ident()

    def look(*_: Any) -> None:
        if threading.get_ident() == own:
            interruption.check()

    # It changes no values: the executor may compute a layer without it, and asks for an end between its own pieces.
    look.tilewright_watches = True  # pyright: ignore[reportFunctionMemberAccess]
    hooks = [
        layer.register_forward_pre_hook(look)
        for layer in module.modules()
        if next(layer.children(), None) is None
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
