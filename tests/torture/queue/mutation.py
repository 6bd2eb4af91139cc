"""Record of a seeded bug: a patch, and the judges that must detect it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from atroposlib.api.store.sql import schema

Patch = Callable[[], None]


class Judge(Enum):
    """The check that must detect the bug."""

    MACHINE = "machine"  # the state machine
    POWER = "power"  # the power cuts
    ROT = "rot"  # the bit rot


MUTANTS: dict[str, tuple[Judge, Patch]] = {}


def mutant(patch: Patch, judge: Judge = Judge.MACHINE) -> Patch:
    MUTANTS[patch.__name__] = (judge, patch)
    return patch


def noticed_by(judge: Judge) -> Callable[[Patch], Patch]:
    return lambda patch: mutant(patch, judge)


def wrap(module: Any, name: str, around: Callable[..., Any]) -> None:
    """``around(original, *args, **kwargs)`` takes the place of a function."""
    original = getattr(module, name)
    setattr(module, name, lambda *args, **kwargs: around(original, *args, **kwargs))


@dataclass
class Rewriting:
    """A connection that executes other SQL wherever ``old`` stands in it."""

    connection: Any
    old: str
    new: str

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        return self.connection.execute(statement.replace(self.old, self.new), values)

    def execute_many(self, statement: str, rows: Sequence[Any]) -> None:
        self.connection.execute_many(statement.replace(self.old, self.new), rows)


def rewrite_operation(operation: type, old: str, new: str) -> None:
    """As :func:`rewrite`, for the SQL that an operation sends."""
    wrap(
        operation,
        "__call__",
        lambda original, op, connection: original(op, Rewriting(connection, old, new)),
    )


def rewrite(module: Any, name: str, old: str, new: str) -> None:
    """Change the SQL that a function of a module sends, wherever ``old`` stands in it."""

    def rewritten(original: Callable[..., Any], first: Any, *args: Any) -> Any:
        if not isinstance(first, schema.QueueCounters):
            return original(Rewriting(first, old, new), *args)
        plain = first.connection
        first.connection = Rewriting(plain, old, new)
        try:
            return original(first, *args)
        finally:
            first.connection = plain

    wrap(module, name, rewritten)
