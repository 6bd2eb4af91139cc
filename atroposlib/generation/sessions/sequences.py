"""Token-exact sequences of a session: masks, logprobs, versions, prefix extension.

Pure: ids and texts in, sequences out; no server and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel, Field

from atroposlib.certificate.seals import SEAL, span_seal
from atroposlib.generation.sampling.generation import (
    NEUTRAL,
    UNKNOWN_VERSION,
    Generation,
)
from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION, ids
from atroposlib.wire.routing import RoutedExperts, experts_array, join_experts


class Node(Protocol):
    """A sampled sequence: a :class:`SequenceNode`, or a row of the agent proxy."""

    tokens: list[int]
    masked_tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    spans: list[dict[str, Any]]
    routed_experts: RoutedExperts | None
    images: list[str]
    metadata: Any


class SequenceNode(BaseModel):
    """A sequence of T tokens, ready to be a row of a scored group.

    Example: tokens [1, 5, 9, 2], masked_tokens [-100, -100, 9, 2],
    logprobs [1.0, 1.0, -0.2, -0.9], versions [-1, -1, 3, 3].
    """

    full_text: str  # text of the tokens, end-of-turn markers included
    tokens: list[int]  # (T,)
    masked_tokens: list[int]  # (T,) -100 where not trained
    logprobs: list[float]  # (T,) 1.0 where not trained
    versions: list[int] = Field(default_factory=list)  # (T,) -1 where not trained or unknown
    # (calls,) each as ``wire.SampledSpan``, ascending; calls of unknown sampling are left out
    spans: list[dict[str, Any]] = Field(default_factory=list)
    routed_experts: RoutedExperts | None = (
        None  # experts of the first tokens, where a server reports experts
    )
    images: list[str] = Field(default_factory=list)  # data URLs of the prompts, in order
    metadata: dict[str, Any] = Field(default_factory=dict)  # {"finish_reason": "stop"}

    @property
    def ends_sampled(self) -> bool:
        """Whether the last token was sampled; False after an empty continuation."""
        return bool(self.masked_tokens) and self.masked_tokens[-1] != MASKED


SAMPLING = (*NEUTRAL, "constraints")


def extended_by_text(nodes: Iterable[SequenceNode], prompt_text: str) -> SequenceNode | None:
    """The longest earlier sequence whose text is a prefix of the prompt, or None.

    A tokenizer may encode the same text differently from the sample, so the sampled tokens are
    kept and the caller encodes the rest. A prompt with a changed earlier turn (edited, or
    without its thinking) extends no sequence.
    """
    return _longest(node for node in nodes if prompt_text.startswith(node.full_text))


def extended_by_tokens(
    nodes: Iterable[SequenceNode], prompt_ids: Sequence[int], images: Sequence[str] = ()
) -> SequenceNode | None:
    """The longest earlier sequence whose tokens are a prefix of the prompt, or None."""
    return _longest(node for node in nodes if is_prefix(node, prompt_ids, images))


def _longest(nodes: Iterable[SequenceNode]) -> SequenceNode | None:
    """The longest sequence that ends with a sample; the first among equal lengths.

    A sequence without a sample equals the prompt that all its siblings continue.
    """
    extendable = [node for node in nodes if node.ends_sampled]
    return max(extendable, key=lambda node: len(node.tokens), default=None)


def is_prefix(
    parent: SequenceNode | None, prompt_ids: Sequence[int], images: Sequence[str]
) -> bool:
    """Whether a prompt begins with the tokens and the images of ``parent``.

    Different images may have the same placeholder tokens.
    """
    return (
        parent is not None
        and list(prompt_ids[: len(parent.tokens)]) == parent.tokens
        and list(images[: len(parent.images)]) == parent.images
    )


def extend_node(
    parent: SequenceNode | None, generation: Generation, full_text: str
) -> SequenceNode:
    """The sequence of ``parent`` and a further sample; earlier samples stay trained.

    ``parent`` is used only if its tokens are a prefix of the prompt that the server got.
    """
    prompt = generation.prompt_ids
    masked, logprobs, versions, spans = [], [], [], []
    routed = generation.routed_experts
    if parent is not None and is_prefix(parent, prompt, generation.images):
        masked, logprobs = list(parent.masked_tokens), list(parent.logprobs)
        versions, spans = list(parent.versions), list(parent.spans)
        if parent.routed_experts is not None:
            routed = join_experts((0, parent.routed_experts), (0, routed))
    between = len(prompt) - len(masked)  # tokens of the new turn, which were not sampled
    return SequenceNode(
        full_text=full_text,
        tokens=prompt + generation.tokens,
        masked_tokens=masked + [MASKED] * between + generation.tokens,
        logprobs=logprobs + [MASKED_LOGPROB] * between + generation.logprobs,
        versions=versions + [MASKED_VERSION] * between + generation.versions,
        spans=spans + sampled_span(generation, routed),
        routed_experts=routed,
        images=list(generation.images),
        metadata={"finish_reason": generation.finish_reason},
    )


def sampled_span(
    generation: Generation, routed: RoutedExperts | None = None
) -> list[dict[str, Any]]:
    """The sealed span of the sampled tokens, as ``wire.SampledSpan``; [] if unknown or empty.

    Args:
        routed: experts of the first tokens of the row that ends with the sample.
    """
    if generation.sampling is None or not generation.tokens:
        return []
    start = len(generation.prompt_ids)
    span: dict[str, Any] = {"start": start, "end": start + len(generation.tokens)}
    span.update(generation.sampling)
    if generation.logprob_kind is not None:
        span["logprobs"] = generation.logprob_kind
    span["finish_reason"] = generation.finish_reason
    if generation.seal is not None:
        return [{**span, SEAL: generation.seal}]
    seal = span_seal(
        ids.source().hex[:16],
        span,
        generation.prompt_ids + generation.tokens,
        generation.logprobs,
        generation.versions,
        None if routed is None else experts_array(routed),
    )
    return [{**span, SEAL: seal.text()}]


def sampled_part(node: Node, start: int) -> Generation:
    """The sample that ends ``node``, from token ``start`` on; the inverse of ``extend_node``."""
    span: dict[str, Any] = next(iter(node.spans[-1:]), {})
    if span.get("start") != start:
        span = {}
    return Generation(
        prompt_ids=node.tokens[:start],
        tokens=node.tokens[start:],
        logprobs=node.logprobs[start:],
        versions=node.versions[start:] or [UNKNOWN_VERSION] * (len(node.tokens) - start),
        finish_reason=str((node.metadata or {}).get("finish_reason") or "stop"),
        logprob_kind=span.get("logprobs"),
        sampling={k: span[k] for k in SAMPLING if k in span} or None,
        routed_experts=node.routed_experts,
        images=node.images,
        seal=span.get(SEAL),
    )


@dataclass(frozen=True)
class SequenceSample:
    """A sampled continuation and the text of the sequence that it ends."""

    generation: Generation
    full_text: str


class SequenceList:
    """Sequences as a list of leaves: a turn replaces the sequence that it extends.

    Every leaf is a whole trajectory whose trained tokens are all samples on its path; a turn
    that several branches extend is in each branch. Leaves are in the order in which their
    calls returned, choices of a call in choice order; the first takes its parent's place.
    """

    def __init__(self) -> None:
        self.leaves: list[SequenceNode] = []
        self._replaced: list[SequenceNode] = []

    def candidates(self) -> list[SequenceNode]:
        """Leaves first, so that among two identical siblings the unextended sibling is found."""
        return [*self.leaves, *self._replaced]

    def add(
        self, parent: SequenceNode | None, samples: Iterable[SequenceSample]
    ) -> list[SequenceNode]:
        """The nodes of a call's choices, in order."""
        place = None if parent is None else self._place_of(parent)
        if place is not None:
            parent = self.leaves[place]
        nodes = []
        for sample in samples:
            node = extend_node(parent, sample.generation, sample.full_text)
            if place is not None and is_prefix(
                parent, sample.generation.prompt_ids, sample.generation.images
            ):
                self._replaced.append(self.leaves[place])
                self.leaves[place] = node
                place = None  # further choices are new leaves
            else:
                self.leaves.append(node)
            nodes.append(node)
        return nodes

    def _place_of(self, parent: SequenceNode) -> int | None:
        """Index of the leaf ``parent``, or of an identical sibling.

        Concurrent calls may all have chosen the same sibling. Each call then takes a remaining
        sibling, so that no sibling stays unextended or is in two rows.
        """
        same = [
            i
            for i, leaf in enumerate(self.leaves)
            if (leaf.tokens, leaf.masked_tokens, leaf.images)
            == (parent.tokens, parent.masked_tokens, parent.images)
        ]
        return next((i for i in same if self.leaves[i] is parent), same[0] if same else None)

    def state(self) -> dict[str, Any]:
        return {"nodes": list(self.leaves)}


class SequenceTree:
    """Sequences as a tree: a node per turn, which trains only the sample of that turn.

    Keys are the full texts, with ``#2``, ``#3``... appended for identical siblings.
    """

    def __init__(self) -> None:
        self.sequences: dict[str, SequenceNode] = {}
        self.children: dict[str, list[str]] = {}
        self._key_of: dict[int, str] = {}  # keys: identities, because siblings may be equal

    def candidates(self) -> list[SequenceNode]:
        return list(self.sequences.values())

    def add(
        self, parent: SequenceNode | None, samples: Iterable[SequenceSample]
    ) -> list[SequenceNode]:
        """The nodes of a call's choices, in order."""
        return [self._add_one(parent, sample) for sample in samples]

    def _add_one(self, parent: SequenceNode | None, sample: SequenceSample) -> SequenceNode:
        node = extend_node(None, sample.generation, sample.full_text)
        key, copies = sample.full_text, 1
        while key in self.sequences:
            copies += 1
            key = f"{sample.full_text}#{copies}"
        self.sequences[key], self.children[key] = node, []
        self._key_of[id(node)] = key
        if parent is not None and is_prefix(
            parent, sample.generation.prompt_ids, sample.generation.images
        ):
            parent_key = self._key_of[id(parent)]
            self.children[parent_key].append(key)
            node.metadata["parent"] = parent_key
        return node

    def state(self) -> dict[str, Any]:
        tree = {key: list(children) for key, children in self.children.items()}
        return {"sequences": dict(self.sequences), "tree": tree}
