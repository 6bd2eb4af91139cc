"""The nodes that a rollout samples, by whatever session, also in its tasks and threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from atroposlib.errors import TokensMissing
from atroposlib.generation.sampling.generation import FourTuple, from_four_tuple
from atroposlib.generation.sessions.sequences import Node, extend_node

# Nodes that a rollout sampled, also in its tasks and threads.
_NODES: ContextVar[list[Node] | None] = ContextVar("recorded_nodes", default=None)


@contextmanager
def recorded_nodes() -> Iterator[list[Node]]:
    """A list that receives each node sampled in this block, oldest first.

    The list of an enclosing block receives the nodes at the end.
    """
    nodes: list[Node] = []
    token = _NODES.set(nodes)
    try:
        yield nodes
    finally:
        _NODES.reset(token)
        if (enclosing := _NODES.get()) is not None:
            enclosing.extend(nodes)


def recorded_here() -> Sequence[Node]:
    """The nodes of the block around this call; empty outside of a block."""
    return _NODES.get() or ()


def record_nodes(nodes: Sequence[Node], parent: Node | None = None) -> None:
    """Add ``nodes``. Nodes that extend ``parent`` and hold its spans take its place."""
    recorded = _NODES.get()
    if recorded is None:
        return
    if parent is not None and any(
        node.tokens[: len(parent.tokens)] == parent.tokens
        and node.spans[: len(parent.spans)] == parent.spans
        for node in nodes
    ):
        recorded[:] = [node for node in recorded if node is not parent]
    recorded.extend(nodes)


def record_outputs(outputs: FourTuple, sampling: Mapping[str, float]) -> None:
    """Add the outputs of a token request that belongs to no session."""
    if _NODES.get() is None:
        return
    prompt_ids, tokens, logprobs, reasons = outputs
    try:
        made = from_four_tuple(prompt_ids, tokens, logprobs, reasons)
    except TokensMissing:  # the caller finds the error
        return
    record_nodes(
        [extend_node(None, replace(sample, sampling=sampling), "") for sample in made]
    )
