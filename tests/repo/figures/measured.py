"""A measured figure and its counted items."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from tests.repo.sources import Repository

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Measured:
    """A figure and its counted items, where they can be listed."""

    value: float
    items: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """How a figure is measured, and the value that it should fall to."""

    measure: Callable[[Repository], Measured]
    target: float


def counted(items: list[str]) -> Measured:
    return Measured(len(items), tuple(items))


def share(items: list[str], total: int, per: int) -> Measured:
    """Items per ``per`` of ``total``, to one decimal."""
    return Measured(round(per * len(items) / max(total, 1), 1), tuple(items))
