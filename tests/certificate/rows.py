"""A group as sessions and environments write it: two rows of two calls, sealed."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from atroposlib.certificate.claims import Circumstances
from atroposlib.certificate.seals import TASK
from atroposlib.envs.rollout.filters import AcceptedGroup, FilterRules, filter_group
from atroposlib.envs.rollout.groups import ScoredDataGroup, from_nodes
from atroposlib.generation.sampling.generation import Generation
from atroposlib.generation.sessions.sequences import SequenceNode, extend_node
from atroposlib.wire.routing import experts_entry

SOURCE, TASK_DIGEST = "sha256:ab", "0123456789abcdef"
KNOWN = Circumstances(
    arrived_version=5,
    incarnation=2,
    max_token_len=16,
    vocab_size=100,
    source_digest=SOURCE,
    fresh_versions=frozenset({3, 4, 5}),
)
SAMPLING = {"temperature": 0.7, "top_p": 1.0}


def node(seed: int, routed: bool = False) -> SequenceNode:
    """A row of 11 tokens: a prompt of 3, a call, 2 tokens of a tool, a call."""
    draw = np.random.default_rng(seed)
    first = _call(draw, [1, 2, 3], 3, version=3, routed=routed)
    parent = extend_node(None, first, "a")
    second = _call(draw, [*parent.tokens, 8, 9], 3, version=4, routed=routed)
    return extend_node(parent, second, "b")


def _call(
    draw: np.random.Generator, prompt: list[int], count: int, version: int, routed: bool
) -> Generation:
    length = len(prompt) + count
    experts = experts_entry(draw.integers(0, 8, (length - 1, 2, 2)))
    return Generation(
        prompt_ids=prompt,
        tokens=draw.integers(10, 100, count).tolist(),
        logprobs=(-draw.exponential(1.0, count)).tolist(),
        versions=[version] * count,
        finish_reason="stop",
        logprob_kind="scaled",
        sampling=SAMPLING,
        routed_experts=experts if routed else None,
    )


def sealed_group(routed: bool = False, **changes: Any) -> AcceptedGroup:
    """The group as an environment sends it."""
    group = from_nodes([node(1, routed), node(2, routed)], [0.0, 1.0])
    group = cast(ScoredDataGroup, {**group, "incarnation": 2, **changes})
    group["metadata"] = {**(group.get("metadata") or {}), TASK: TASK_DIGEST}
    verdict = filter_group(group, FilterRules(2, source_digest=SOURCE))
    assert isinstance(verdict, AcceptedGroup), verdict
    return verdict
