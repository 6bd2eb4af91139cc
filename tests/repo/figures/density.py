"""Density: signs of code that was fitted into a bound instead of being written out."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.repo.figures.measured import Function, Measured, counted
from tests.repo.sources import SOURCE, Repository


def spread_literals(repository: Repository) -> Measured:
    """Places where a tuple or list is written out and spread at once: ``f(*(a, b), c)``.

    Arguments of calls, and items of tuples, lists and sets.
    """
    items: list[str] = []
    for source in repository.under(*SOURCE):
        for node in source.nodes:
            for value in spread_in(node):
                if isinstance(value, (ast.Tuple, ast.List)):
                    items.append(f"{source.path}:{value.lineno}: *{ast.unparse(value)}")
    return counted(items)


def spread_in(node: ast.AST) -> Iterator[ast.expr]:
    """Values that a call, tuple, list or set takes with a star."""
    values: list[ast.expr] = []
    if isinstance(node, ast.Call):
        values = node.args
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        values = node.elts
    return (value.value for value in values if isinstance(value, ast.Starred))


def spread_tuples(repository: Repository) -> Measured:
    """Calls that take a tuple with a star which the same function built: ``Row(*named)``.

    The checker and the reader lose which value is which argument.
    """
    items: list[str] = []
    for source in repository.under(*SOURCE):
        for function in source.nodes:
            if isinstance(function, Function):
                own = list(own_nodes(function))
                tuples = {name for node in own for name in tuples_bound(node)}
                items += [
                    f"{source.path}:{call.lineno}: {ast.unparse(call.func)}(*{value.id})"
                    for call in own
                    if isinstance(call, ast.Call)
                    for value in spread_in(call)
                    if isinstance(value, ast.Name) and value.id in tuples
                ]
    return counted(items)


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function without those of functions and classes inside of it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, (*Function, ast.ClassDef)):
            yield child
            yield from own_nodes(child)


def tuples_bound(node: ast.AST) -> list[str]:
    """Names that an assignment binds to a tuple that is written out."""
    if not isinstance(node, ast.Assign) or not is_tuple(node.value):
        return []
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def is_tuple(value: ast.expr) -> bool:
    if isinstance(value, ast.IfExp):
        return is_tuple(value.body) or is_tuple(value.orelse)
    return isinstance(value, ast.Tuple)
