"""Methods of single objects, replaced and given back."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

#: Does the work of a method; its first argument is the method that it stands in for.
Runner = Callable[..., Any]

#: The attribute that holds an object's replacements, the latest last.
STACK = "_tilewright_replacements"

#: The attribute by which copies are made of an object's state.
_STATE = "__getstate__"

#: The word for an attribute that an object does not have.
ABSENT = object()


class Uncopied:
    """A value of an object's attribute that no copy of the object has, be it pickled, deep or shallow."""

    def in_copies(self) -> Any:
        """The attribute's value in a copy, `ABSENT` if it has none."""
        return ABSENT


class Stand(Uncopied):
    """A method of one object in the place of its own. A copy of the object has its own again."""

    def __init__(self, owner: object, name: str, run: Runner) -> None:
        own: Any = getattr(owner, name, None)
        functools.update_wrapper(self, own)
        self._owner = owner
        self._name = name
        self._own = own
        self._run: Runner | None = run
        self._before = vars(owner).get(name, ABSENT)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._own(*args, **kwargs) if self._run is None else self._run(self._own, *args, **kwargs)

    def put(self) -> None:
        """Takes its place."""
        vars(self._owner)[self._name] = self

    def give_back(self) -> None:
        """Leaves its place. Others that have wrapped it since get what the object had before."""
        self._run = None
        if vars(self._owner).get(self._name) is self:
            if self._before is ABSENT:
                del vars(self._owner)[self._name]
            else:
                vars(self._owner)[self._name] = self._before

    def in_copies(self) -> Any:
        """The attribute as it was before."""
        return self._before

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (_own_method, (self._owner, self._name)) if self._before is ABSENT else (_same, (self._before,))


class Replacement:
    """Methods of an object that are replaced together. Several may be made for one object, as pipelines share their
    parts: the latest counts, and when it is removed the one before does. The object keeps those that are installed;
    what else holds a replacement does not keep the object by it.

    Args:
        owner: the object; its class has no slots.
        methods: what does the work of each method, by its name.
        on_put: called when the methods are put in place.
        on_given_back: called when they have been given back.
    """

    def __init__(
        self,
        owner: object,
        methods: Mapping[str, Runner],
        on_put: Callable[[], None] | None = None,
        on_given_back: Callable[[], None] | None = None,
    ) -> None:
        self._owner = weakref.ref(owner)
        self._methods = dict(methods)
        self._on_put = on_put
        self._on_given_back = on_given_back
        self._stands: list[Stand] = []

    def install(self) -> None:
        """Puts the methods in place."""
        owner = self._owner()
        if owner is None:
            return
        stack = cast("_Stack", vars(owner).setdefault(STACK, _Stack()))
        if stack:
            stack[-1].end()
        stack.append(self)
        try:
            self.begin()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Gives the methods back, or to the replacement before."""
        owner = self._owner()
        stack = _stack_of(owner)
        if self not in stack:
            return
        was_last = stack[-1] is self
        stack.remove(self)
        if was_last:
            self.end()
            if stack:
                stack[-1].begin()
        if not stack:
            del vars(owner)[STACK]

    @property
    def counts(self) -> bool:
        """True while its methods are those that are called."""
        stack = _stack_of(self._owner())
        return bool(stack) and stack[-1] is self

    def begin(self) -> None:
        """Begins to count."""
        owner = self._owner()
        if owner is None:
            return
        if self._on_put is not None:
            self._on_put()
        self._stands = [Stand(owner, name, run) for name, run in self._methods.items()]
        if _STATE not in vars(owner):
            # Found on the object itself by pickle, copy and deepcopy.
            self._stands.append(Stand(owner, _STATE, functools.partial(_state_of_copies, self._owner)))
        for one in self._stands:
            one.put()

    def end(self) -> None:
        """Counts no more."""
        for one in reversed(self._stands):
            one.give_back()
        self._stands = []
        if self._on_given_back is not None:
            self._on_given_back()


class _Stack(list[Replacement], Uncopied):
    """An object's replacements. A copy of the object has none."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _Stack, ()

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.__reduce__()


def is_replaced(owner: object) -> bool:
    """True if methods of the object are replaced."""
    return bool(_stack_of(owner))


def _stack_of(owner: object) -> _Stack:
    return _Stack() if owner is None else cast("_Stack", vars(owner).get(STACK, _Stack()))


def _state_of_copies(known: weakref.ref[Any], own: Callable[[], Any] | None) -> Any:
    """The state that copies of an object are made of."""
    owner = known()
    # Before Python 3.11 only classes that say so themselves have a state of their own.
    state: Any = vars(owner) if own is None else own()
    if not isinstance(state, dict):
        return state
    found: dict[Any, Any] = {}
    for name, value in cast("dict[Any, Any]", state).items():
        kept = value.in_copies() if isinstance(value, Uncopied) else value
        if kept is not ABSENT:
            found[name] = kept
    return found


def _own_method(owner: object, name: str) -> Any:
    return getattr(type(owner), name).__get__(owner)


def _same(value: Any) -> Any:
    return value
