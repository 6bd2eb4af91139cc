"""Attributes of an environment whose values its runtime holds.

The names are the original's: released environments read and set the values. The definition of a
name by a subclass replaces the attribute; the runtime reads its value, never the name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from atroposlib.envs.runtime.env_runtime import EnvRuntime, runtime_of
from atroposlib.envs.settings.config import SLOT

T = TypeVar("T")
Kind = TypeVar("Kind", bound=EnvRuntime)


class RuntimeSlot(Generic[Kind]):
    """The attribute ``SLOT``: of a class the kind of its runtime, of an environment the runtime."""

    def __init__(self, kind: type[Kind]) -> None:
        self._kind = kind

    @overload
    def __get__(self, env: None, owner: type[Any]) -> type[Kind]: ...
    @overload
    def __get__(self, env: object, owner: type[Any]) -> Kind: ...
    def __get__(self, env: object | None, owner: type[Any]) -> type[Kind] | Kind:
        if env is None:
            return self._kind
        runtime: Kind = runtime_of(env)  # type: ignore[assignment]  # made by this kind
        return runtime


class RuntimeAttribute(Generic[T]):
    """An attribute of the environment, under its name in the original, held by the runtime.

    Args:
        path: attribute of the runtime, or ``part.attribute`` of a part.
        form: converts a value that is set.
    """

    def __init__(self, path: str, form: Callable[[Any], T] | None = None) -> None:
        self._part, _, self._name = path.rpartition(".")
        self._form = form

    def __set_name__(self, owner: type[object], name: str) -> None:
        self._public = name

    def _holder(self, env: object) -> Any:
        runtime = runtime_of(env)
        return getattr(runtime, self._part) if self._part else runtime

    def __get__(self, env: object, owner: type[object] | None = None) -> T:
        if env is None:
            return self  # type: ignore[return-value]  # read from the class
        early = vars(env)
        if self._public in early and not isinstance(early.get(SLOT), EnvRuntime):
            value: T = early[self._public]
            return value
        held: T = getattr(self._holder(env), self._name)
        return held

    def __set__(self, env: object, value: T) -> None:
        # As in the original, the constructor replaces values that were set before its call.
        if isinstance(vars(env).get(SLOT), EnvRuntime):
            setattr(self._holder(env), self._name, self._form(value) if self._form else value)
        else:
            vars(env)[self._public] = value
