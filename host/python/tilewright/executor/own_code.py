"""Code of the user's in an autoencoder: hooks, methods and settings of modules that plans walk through without calling
them. A plan would leave such code out in silence, so that the module runs its own way where there is any.

A method is the library's if its function is, and so are the functions that it calls on its object. They are followed
by the names in their code: a class that overrides any of them, or an object that shadows one, is the user's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.modules import module as torch_modules

from .replacing import STACK, Stand
from .running import PlanError

#: Packages whose functions in an autoencoder do what plans do in their place.
LIBRARIES = frozenset(
    {"accelerate", "bitsandbytes", "comfy", "contextlib", "diffusers", "functools", "huggingface_hub", "peft"}
    | {"tilewright", "torch", "torchao", "transformers", "typing", "typing_extensions"}
)

#: Packages whose methods call others of the same object that plans stand in for.
_FOLLOWED = frozenset({"comfy", "diffusers"})

#: The attribute of a hooked function that only watches, as for a cancellation: true of one that changes no values, and
#: that a plan may leave out.
WATCHES = "tilewright_watches"

_MISSING = object()

Stage = Literal["decode", "encode"]


@dataclass(slots=True)
class _Methods:
    """The methods of a class that run when one of them is called.

    Attributes:
        names: the names in their code, attributes of the object among them.
        found: what the class has under these names.
        changed: the name of one that is the user's.
    """

    names: set[str]
    found: dict[str, object]
    changed: str | None

    def hold(self, of: type) -> bool:
        """True if the class has the same methods still."""
        return all(_class_attribute(of, name) is value for name, value in self.found.items())


_methods: WeakKeyDictionary[type, dict[str, _Methods]] = WeakKeyDictionary()


def check_own_code(module: nn.Module, stage: Stage, called: Collection[nn.Module]) -> None:
    """Makes sure that a plan leaves out no code of the user's.

    Args:
        module: an autoencoder.
        stage: the half that runs.
        called: the modules that a plan calls, with all in them; convolutions and linear layers are called if anybody
            has changed them.

    Raises:
        PlanError: a module has a hook, a method or a setting that a plan would leave out; it says which.
    """
    on_all: Mapping[str, Any] = vars(torch_modules)
    for name in ("_global_forward_pre_hooks", "_global_forward_hooks"):
        if _acts(on_all[name]):
            raise PlanError("a hook of yours is on all modules")
    known: dict[type, _Methods] = {}
    found = _changed_method(module, stage, {}) or _foreign_hook(module.__dict__)
    if found is not None:
        raise PlanError(f"the module's {found} is yours")
    half = module._modules.get("decoder" if stage == "decode" else "encoder")
    if half is None:
        return
    ids = {id(one) for one in called}
    todo = [("decoder" if stage == "decode" else "encoder", half)]
    while todo:
        path, part = todo.pop()
        if id(part) in ids:
            reason = _left_out_of_called(part)
        else:
            reason = _left_out(part, known)
            for name, child in part._modules.items():
                if child is not None:
                    todo.append((path if name == "_orig_mod" else f"{path}.{name}", child))
        if reason is not None:
            raise PlanError(f"{path} has {reason}")


def has_hooks(module: nn.Module) -> bool:
    """True if a module has hooks of PyTorch's that do more than watch."""
    own = module.__dict__
    return _acts(own["_forward_hooks"]) or _acts(own["_forward_pre_hooks"])


def has_library_forward(module: nn.Module) -> bool:
    """True if a module's forward is its library's, whatever hooks are around it."""
    return _changed_method(module, "forward", {}) is None


def own_method(module: nn.Module, name: str) -> Callable[..., Any]:
    """A module's method as its owner has it: what was put in its place by Tilewright is passed over, and so is what
    others have wrapped around that, which is what calls it."""
    stack: Any = vars(module).get(STACK)
    for stand in cast("list[Stand]", getattr(stack[-1], "_stands", [])) if stack else []:
        if stand.__dict__["_name"] == name:
            return _without_stands(stand)
    return _without_stands(getattr(module, name))


def _without_stands(method: Any) -> Any:
    while isinstance(method, Stand):
        method = method.__dict__["__wrapped__"] if "__wrapped__" in method.__dict__ else method.__dict__["_own"]
    return method


def _left_out(module: nn.Module, known: dict[type, _Methods]) -> str | None:
    """The user's code on a module that is walked through."""
    own = module.__dict__
    if own["_forward_hooks"] and _acts(own["_forward_hooks"]):
        return "a forward hook of yours"
    if own["_forward_pre_hooks"] and _acts(own["_forward_pre_hooks"]):
        return "a forward pre-hook of yours"
    found = _changed_method(module, "forward", known)
    if found is None and "processor" in own:
        # What diffusers' attentions have computed.
        processor: object = own["processor"]
        found = "processor" if _methods_of(type(processor), "__call__", known).changed is not None else None
    found = found or _foreign_hook(own)
    return None if found is None else f"a {found} of yours"


def _left_out_of_called(module: nn.Module) -> str | None:
    """The user's code in a layer that a plan calls, or computes by its weights."""
    own = module.__dict__
    is_hooked = "_hf_hook" in own or "_diffusers_hook" in own
    if is_hooked and "forward" in own and not _is_library(own["forward"]):
        return "a forward of yours"
    found = _foreign_hook(own)
    if found is not None:
        return f"a {found} of yours"
    if "padding_mode" in own and own["padding_mode"] != "zeros":
        return f"the padding mode {own['padding_mode']}"
    if "dilation" in own and (own["groups"] != 1 or any(one != 1 for one in own["dilation"])):
        return "groups or a dilation"
    return None


def _changed_method(module: nn.Module, entry: str, known: dict[type, _Methods]) -> str | None:
    """The name of a method that runs when `entry` is called, and is the user's."""
    methods = _methods_of(type(module), entry, known)
    if methods.changed is not None:
        return methods.changed
    for name in module.__dict__.keys() & methods.names:
        value: object = module.__dict__[name]
        if name == entry and (isinstance(value, Stand) or vars(module).get(STACK)):
            value = own_method(module, name)
        if not callable(value) or isinstance(value, (nn.Module, type)):
            continue
        is_others = isinstance(value, MethodType) and value.__self__ is not module
        if is_others or not _is_library(value):
            return name
    return None


def _methods_of(of: type, entry: str, known: dict[type, _Methods]) -> _Methods:
    """The methods of a class; `known` holds those that were looked at before in this check."""
    found = known.get(of)
    if found is not None:
        return found
    kept = _methods.setdefault(of, {})
    found = kept.get(entry)
    if found is None or not found.hold(of):
        found = kept[entry] = _followed(of, entry)
    known[of] = found
    return found


def _followed(of: type, entry: str) -> _Methods:
    methods = _Methods(set(), {}, None)
    todo = [entry, "__call__"] if entry == "forward" else [entry]
    while todo:
        name = todo.pop()
        if name in methods.names:
            continue
        methods.names.add(name)
        value = _class_attribute(of, name)
        if value is _MISSING:
            continue
        methods.found[name] = value
        for function in _functions_of(value):
            if not _is_library(function):
                methods.changed = name
                return methods
            if _package_of(function) in _FOLLOWED:
                todo.extend(_names_in(function))
    return methods


def _class_attribute(of: type, name: str) -> object:
    for base in of.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return _MISSING


def _functions_of(value: object) -> list[object]:
    """What runs when a class's attribute is used as a method or read."""
    if isinstance(value, property):
        return [] if value.fget is None else [value.fget]
    if isinstance(value, (staticmethod, classmethod)):
        return [cast(Any, value).__func__]
    return [value] if callable(value) and not isinstance(value, type) else []


def _is_library(function: object) -> bool:
    """True if a function is a library's, and so are those that it wraps."""
    if isinstance(function, Stand):
        return _is_library(_without_stands(function))
    if isinstance(function, MethodType):
        return _is_library(function.__func__)
    if isinstance(function, functools.partial):
        parts: list[object] = [cast(Any, function).func]
    elif isinstance(function, FunctionType):
        if _package_of(function) not in LIBRARIES:
            return False
        parts = list(_enclosed(function))
    else:
        package = str(getattr(type(function), "__module__", "")).partition(".")[0]
        return package == "builtins" or package in LIBRARIES
    wrapped: object = function.__dict__.get("__wrapped__")
    if wrapped is not None:
        parts.append(wrapped)
    return all(_is_library(part) for part in parts if part is not function)


def _package_of(function: object) -> str:
    """The package that a function's code is in: decorators change what it says of itself."""
    if isinstance(function, FunctionType):
        return str(function.__globals__.get("__name__", "")).partition(".")[0]
    return ""


def _enclosed(function: FunctionType) -> Iterator[FunctionType]:
    """The functions that a function has been made around."""
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:
            continue
        if isinstance(held, FunctionType) and held is not function:
            yield held


def _names_in(function: object) -> set[str]:
    """The names in a function's code, and in that of those inside it and of those that it is made around."""
    names: set[str] = set()
    seen: set[int] = set()
    functions, codes = [function], list[CodeType]()
    while functions:
        one = functions.pop()
        if not isinstance(one, FunctionType) or id(one) in seen:
            continue
        seen.add(id(one))
        codes.append(one.__code__)
        functions.extend(_enclosed(one))
        functions.append(one.__dict__.get("__wrapped__"))
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes.extend(part for part in code.co_consts if isinstance(part, CodeType))
    return names


def _acts(hooks: dict[int, object]) -> bool:
    """True if one of the hooks does more than watch."""
    return any(not getattr(hook, WATCHES, False) for hook in hooks.values())


def _foreign_hook(own: dict[str, Any]) -> str | None:
    """A hook in the form of accelerate's or diffusers', which plans run around layers, but of the user's making."""
    hook, registry = own.get("_hf_hook"), own.get("_diffusers_hook")
    if hook is None and registry is None:
        return None
    found: list[Any] = [] if hook is None else [hook]
    if registry is not None:
        found.extend(registry.hooks.values())
    while found:
        one = found.pop()
        if type(one).__module__.partition(".")[0] not in LIBRARIES:
            return f"hook {type(one).__name__}"
        found.extend(getattr(one, "hooks", ()))
    return None
