"""Record of all sequences that one rollout sampled, to complete the rows made of them.

with recorded_nodes() as nodes:
    ...                     # managed sessions, also in tasks and threads started here
with_sampled(group, nodes)  # envs/rollout/sampled.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from atroposlib.errors import TokensMissing
from atroposlib.generation.sampling.generation import FourTuple, from_four_tuple
from atroposlib.generation.sessions.sequences import Node, extend_node

_NODES: ContextVar[list[Node] | None] = ContextVar("recorded_nodes", default=None)


@contextmanager
def recorded_nodes() -> Iterator[list[Node]]:
    """A list that receives each node sampled in this block, oldest first."""
    nodes: list[Node] = []
    token = _NODES.set(nodes)
    try:
        yield nodes
    finally:
        _NODES.reset(token)


def recorded_here() -> Sequence[Node]:
    """The nodes of the block around this call; none outside of one."""
    return _NODES.get() or ()


def record(nodes: Sequence[Node], parent: Node | None = None) -> None:
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
    except TokensMissing:  # for the caller to find
        return
    record([extend_node(None, replace(one, sampling=sampling), "") for one in made])
