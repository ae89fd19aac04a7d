"""Policies for a pipeline of diffusers, in the process that runs it.

`govern` has a policy decide how a pipeline's VAE decodes and encodes, and where the weights of its text encoders and
its denoiser lie; what the pipeline is asked for stays as it is. `release` gives everything back.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from . import records
from ._json import expect
from .errors import ModelError, PolicyError
from .executor.autoencoders import Autoencoder, find_autoencoder
from .executor.denoisers import Denoiser
from .executor.device import device_of, placed
from .executor.encoders import Encoder
from .executor.governed_vae import GovernedVae
from .executor.governor import VaeGovernor
from .executor.placement import AnyRecord, Placement, Resident, others_way
from .executor.replacing import Replacement, Uncopied
from .executor.residency import Places, Residency
from .model import LIMIT, read_field
from .policy import Policy

__all__ = ["Governed", "govern", "release"]

#: The attribute of a governed pipeline.
ATTRIBUTE = "tilewright"

#: The names that pipelines have for what they consist of.
_ENCODERS = ("text_encoder",)
_DENOISERS = ("transformer", "unet", "prior")

_OBJECTIVES = ("fastest", "balanced", "leanest")

_Kept = TypeVar("_Kept", Replacement, Denoiser)


def govern(
    pipe: Any,
    policy: Policy | str = "adaptive",
    *,
    memory_limit: int | str | None = None,
    objective: records.Objective = "balanced",
    settings: Mapping[str, records.Value] | None = None,
    allows_blended: bool = False,
    device: torch.device | str | int | None = None,
    places: Places | None = None,
) -> Governed:
    """Has a policy decide for a pipeline, from its next call on. A pipeline that is governed already is governed anew.

    Args:
        pipe: a pipeline of diffusers.
        policy: a shipped policy's name, the path of a .wasm file, or a policy.
        memory_limit: the most bytes of the device's memory that a stage may hold, or a text as `"8GiB"`; 80 % of what
            is free if it is left out. Of text encoders and samples it counts the weights, of decodes and encodes it
            does not.
        objective: what counts most.
        settings: the policy's settings, by their names.
        allows_blended: tiles and chunks that are cross-faded are allowed where an exact plan fits, too.
        device: the device that computes; the pipeline's own if it is left out. Weights that lie elsewhere come to it as
            plans have it.
        places: the device and the host's memory, in place of what `device` names.

    Returns:
        What governs it, which is `pipe.tilewright`, too.

    Raises:
        TypeError: `pipe` is no pipeline, or another argument is of a wrong class.
        PolicyError: there is no such policy, the file is none, or a setting is wrong.
        ModelError: the limit, the objective or the device can't be used.
    """
    components = _components(pipe)
    expect("policy", policy, Policy, str)
    expect("allows_blended", allows_blended, bool)
    expect("settings", settings, Mapping, type(None))
    expect("places", places, Places, type(None))
    # A truth value is a number to Python, and no device.
    expect("device", device, torch.device, str, *(() if isinstance(device, bool) else (int,)), type(None))
    if objective not in _OBJECTIVES:
        raise ModelError(f"objective: expected {', '.join(_OBJECTIVES[:-1])} or {_OBJECTIVES[-1]}, not {objective!r}")
    limit: int | None = None if memory_limit is None else read_field("memory_limit", memory_limit, LIMIT)
    if isinstance(policy, Policy) and settings:
        raise PolicyError("settings: a policy that is made has its own: give its name, or leave the settings out")
    decides = policy if isinstance(policy, Policy) else Policy(policy, settings=settings)
    if places is None:
        own = cast(torch.device, pipe._execution_device)
        try:
            places = Places(placed(own if device is None else torch.device(device)))
        except RuntimeError as error:
            raise ModelError(f"device: {str(error).splitlines()[0]}") from None
    device_of(places.device)
    placement = Placement(decides, places, memory_limit=limit, objective=objective)
    governed = Governed(pipe, placement, components, allows_blended=allows_blended)
    before: Any = getattr(pipe, ATTRIBUTE, None)
    if isinstance(before, Governed):
        before.release()
    governed._install(pipe, moves=device is not None)  # pyright: ignore[reportPrivateUsage]
    return governed


def release(pipe: Any) -> None:
    """Gives a pipeline back as it was before it was governed; does nothing to one that is not.

    Raises:
        TypeError: it is no pipeline.
    """
    _components(pipe)
    found: Any = getattr(pipe, ATTRIBUTE, None)
    if isinstance(found, Governed):
        found.release()


class Governed(Uncopied):
    """A governed pipeline's decisions and what came of them. `govern` makes it. It keeps neither the pipeline nor its
    parts."""

    def __init__(
        self, pipe: Any, placement: Placement, components: Mapping[str, Any], *, allows_blended: bool
    ) -> None:
        self._pipe: weakref.ref[Any] = weakref.ref(pipe)
        self._placement = placement
        #: Until they are installed; then the objects keep them, as they keep the denoisers.
        self._made: list[Replacement] = []
        self._replacements: list[weakref.ref[Replacement]] = []
        self._on_pipe: list[weakref.ref[Replacement]] = []
        self._denoisers: list[weakref.ref[Denoiser]] = []
        self._others: list[tuple[str, weakref.ref[nn.Module]]] = []
        self._finalizer: weakref.finalize[Any, Any] | None = None
        for name, component in components.items():
            if not isinstance(component, nn.Module):
                continue
            if name.startswith(_ENCODERS):
                self._add_encoder(name, component)
            elif name.startswith(_DENOISERS):
                self._add_denoiser(name, component)
            else:
                self._others.append((name, weakref.ref(component)))
                autoencoder = find_autoencoder(component)
                if autoencoder is not None:
                    self._add_vae(name, component, autoencoder, allows_blended=allows_blended)
                elif "vae" in name or "vqvae" in name or "vqgan" in name:
                    placement.note(f"{name}: {type(component).__name__} is decoded as it is: there are no plans for it")
        if not any(name.endswith("vae") for name, _ in self._others):
            placement.note("the pipeline has no VAE: the rest of it is governed")
        self._replacements += [weakref.ref(one) for one in self._made]
        on_pipe = Replacement(pipe, {"progress_bar": self._progress_bar, "maybe_free_model_hooks": self._after_call})
        self._made.append(on_pipe)
        self._on_pipe.append(weakref.ref(on_pipe))

    @property
    def policy(self) -> Policy:
        """The policy."""
        return self._placement.policy

    @property
    def records(self) -> list[AnyRecord]:
        """The records of all stages in the order in which they ended, the latest last; the latest 256."""
        return list(self._placement.records)

    @property
    def notes(self) -> list[str]:
        """Lines on what is left to others, and why."""
        return list(self._placement.notes)

    @property
    def is_released(self) -> bool:
        """The pipeline is not governed by this any more."""
        return self._finalizer is None

    def release(self) -> None:
        """Gives the pipeline back as it was. Records stay."""
        if self._finalizer is None:
            return
        self._finalizer.detach()
        self._finalizer = None
        for one in _alive(self._denoisers):
            one.close(failed=True)
        for replacement in _alive(self._on_pipe):
            replacement.remove()
        _undo(self._replacements, self._placement)
        pipe = self._pipe()
        if pipe is not None and getattr(pipe, ATTRIBUTE, None) is self:
            del vars(pipe)[ATTRIBUTE]

    def _install(self, pipe: Any, *, moves: bool) -> None:
        self._finalizer = weakref.finalize(pipe, _undo, self._replacements, self._placement)
        self._finalizer.atexit = False
        try:
            for replacement in self._made:
                replacement.install()
            vars(pipe)[ATTRIBUTE] = self
            if moves:
                self._move_others()
        except BaseException:
            self.release()
            raise
        finally:
            self._made.clear()

    def _move_others(self) -> None:
        """Has what no plan moves on the device that computes."""
        for name, known in self._others:
            module = known()
            if module is None:
                continue
            way = others_way(module)
            if way is None:
                self._placement.moved.append(Residency(module, self._placement.places))
                self._placement.moved[-1].place(device=True)
            else:
                self._placement.note(f"{name}: {way}, so its weights stay as they are")

    def _add_encoder(self, name: str, module: nn.Module) -> None:
        resident = self._resident(name, module)
        encoder = Encoder(resident, self._placement)
        self._made.append(_replacement(resident, module, encoder.forward))

    def _add_denoiser(self, name: str, module: nn.Module) -> None:
        resident = self._resident(name, module)
        denoiser = Denoiser(resident, self._placement, _Schedule(self._pipe))
        self._denoisers.append(weakref.ref(denoiser))
        self._made.append(_replacement(resident, module, denoiser.forward))

    def _resident(self, name: str, module: nn.Module) -> Resident:
        resident = Resident(name, module, self._placement.places)
        self._placement.add(resident)
        way = others_way(module)
        if way is not None:
            self._placement.note(f"{name}: {way}, so its weights stay as they are")
        return resident

    def _add_vae(self, name: str, module: nn.Module, autoencoder: Autoencoder, *, allows_blended: bool) -> None:
        placement = self._placement
        governor = VaeGovernor(
            autoencoder,
            placement.policy,
            memory_limit=placement.memory_limit,
            objective=placement.objective,
            allows_blended=allows_blended,
            on_record=functools.partial(_keep, name, placement),
        )
        placement.add_fixed(module)
        vae = GovernedVae(module, governor, placement)
        self._made.append(
            Replacement(module, {"decode": vae.decode, "encode": vae.encode}, vae.put_aside, vae.give_back)
        )

    def _progress_bar(self, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return _Bar(own(*args, **kwargs), _alive(self._denoisers))

    def _after_call(self, own: Callable[..., Any]) -> None:
        own()
        self._placement.make_room()

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        # A copy of the pipeline is not governed.
        return _nothing, ()

    def __repr__(self) -> str:
        state = "released" if self.is_released else f"{len(self._placement.records)} records"
        return f"<tilewright.diffusers.Governed by {self.policy!r}, {state}>"


def _replacement(resident: Resident, module: nn.Module, forward: Callable[..., Any]) -> Replacement:
    residency = resident.residency
    methods = {"forward": forward, "named_parameters": residency.named_parameters}
    return Replacement(module, methods, None, residency.restore)


def _nothing() -> None:
    return None


def _keep(name: str, placement: Placement, record: records.Record) -> None:
    """Keeps a record of a VAE, and says so if the VAE is not as plans know it."""
    placement.records.append(record)
    said = "" if record.fallback is None else record.fallback.detail
    # Sizes that have no price are the work's, and no change of the VAE.
    if said.startswith("run whole, as the module does") and "no plan has a price" not in said:
        placement.note(f"{name}: {said}")


def _alive(known: Sequence[weakref.ref[_Kept]]) -> list[_Kept]:
    return [one for one in (ref() for ref in known) if one is not None]


def _undo(replacements: Sequence[weakref.ref[Replacement]], placement: Placement) -> None:
    """Gives back what was replaced in a pipeline's parts."""
    # They go with the replacements, and have yet to be restored.
    residents = placement.residents
    for replacement in reversed(_alive(replacements)):
        replacement.remove()
    placement.restore()
    del residents


class _Schedule:
    """The facts that a pipeline knows of the sample that it makes."""

    def __init__(self, pipe: weakref.ref[Any]) -> None:
        self._pipe = pipe

    def __call__(self) -> tuple[str, Sequence[float], Any]:
        pipe = self._pipe()
        scheduler = getattr(pipe, "scheduler", None)
        sigmas = getattr(scheduler, "sigmas", None)
        is_list = isinstance(sigmas, Tensor) and sigmas.dim() == 1
        values = cast("list[float]", cast(Any, sigmas).tolist()) if is_list else []
        try:
            guided = bool(getattr(pipe, "do_classifier_free_guidance", False))
        except AttributeError:
            guided = False
        return type(scheduler).__name__, values, guided


class _Bar:
    """A pipeline's progress bar, which tells when a sample begins, goes on and ends."""

    def __init__(self, bar: Any, denoisers: Sequence[Denoiser]) -> None:
        self._bar = bar
        self._denoisers = denoisers

    def __enter__(self) -> _Bar:
        self._open(self._bar.total)
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        self._close(failed=error is not None)
        return self._bar.__exit__(kind, error, trace)

    def __iter__(self) -> Generator[Any, None, None]:
        self._open(self._bar.total)
        failed = True
        try:
            for one in self._bar:
                yield one
                for denoiser in self._denoisers:
                    denoiser.stepped()
            failed = False
        finally:
            self._close(failed=failed)

    def update(self, n: float = 1) -> Any:
        """Steps are done."""
        for denoiser in self._denoisers:
            denoiser.stepped(int(n))
        return self._bar.update(n)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bar, name)

    def _open(self, total: Any) -> None:
        for denoiser in self._denoisers:
            denoiser.open(int(total or 1))

    def _close(self, *, failed: bool) -> None:
        for denoiser in self._denoisers:
            denoiser.close(failed=failed)


def _components(pipe: Any) -> Mapping[str, Any]:
    """The parts that a pipeline consists of.

    Raises:
        TypeError: it is no pipeline.
    """
    if not any(one.__name__ == "DiffusionPipeline" for one in type(pipe).__mro__):
        raise TypeError(f"pipe: expected a pipeline of diffusers, not {type(pipe).__name__}")
    return cast("Mapping[str, Any]", pipe.components)
