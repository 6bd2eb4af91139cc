"""Token-exact sequences: what was sampled, which tokens are trained, and how turns join.

Pure: no server, no tokenizer object, only ids and the two functions that turn text into ids
and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from atroposlib.generation.sampling.generation import Generation
from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION


class SequenceNode(BaseModel):
    """One sequence of T tokens, ready to be a row of a scored group.

    Example: tokens [1, 5, 9, 2], masked_tokens [-100, -100, 9, 2],
    logprobs [1.0, 1.0, -0.2, -0.9], versions [-1, -1, 3, 3].
    """

    full_text: str  # what the tokens decode to, end-of-turn markers included
    tokens: list[int]  # (T,)
    masked_tokens: list[int]  # (T,) -100 where not trained
    logprobs: list[float]  # (T,) 1.0 where not trained
    versions: list[int] = Field(default_factory=list)  # (T,) -1 where not trained or unknown
    metadata: dict[str, Any] = Field(default_factory=dict)  # {"finish_reason": "stop"}

    @property
    def ends_sampled(self) -> bool:
        """Whether the last token was sampled; False after an empty continuation."""
        return bool(self.masked_tokens) and self.masked_tokens[-1] != MASKED


@dataclass(frozen=True)
class Extension:
    """``parent`` is a token prefix of ``input_ids`` (P,), the prompt to send."""

    parent: SequenceNode
    input_ids: list[int]


def text_extension(
    nodes: Iterable[SequenceNode],
    prompt_text: str,
    encode_after: Callable[[SequenceNode, str], list[int]],
) -> Extension | None:
    """The longest earlier sequence whose text the new prompt goes on with, or None.

    Sampled tokens need not be those the tokenizer would choose for the same text, so the
    sampled ones are kept and only what follows is encoded, by ``encode_after(node, text)``.
    Anything else (a template that drops earlier thinking, an edited turn) continues nothing.
    """
    for node in _longest_first(nodes):
        if prompt_text.startswith(node.full_text):
            suffix = prompt_text[len(node.full_text) :]
            return Extension(node, node.tokens + encode_after(node, suffix))
    return None


def token_extension(
    nodes: Iterable[SequenceNode], prompt_ids: Sequence[int]
) -> Extension | None:
    """The longest earlier sequence whose tokens the new prompt starts with, or None."""
    for node in _longest_first(nodes):
        if is_prefix(node, prompt_ids):
            return Extension(node, list(prompt_ids))
    return None


def _longest_first(nodes: Iterable[SequenceNode]) -> list[SequenceNode]:
    """Sequences that can be continued; of equally long ones the first stays first.

    A node that ends in a prompt holds no sample after it, and every sibling continues that
    prompt too: it is never extended.
    """
    extendable = [node for node in nodes if node.ends_sampled]
    return sorted(extendable, key=lambda node: -len(node.tokens))


def is_prefix(parent: SequenceNode | None, prompt_ids: Sequence[int]) -> bool:
    """Whether ``prompt_ids`` begin with the tokens of ``parent``."""
    return parent is not None and list(prompt_ids[: len(parent.tokens)]) == parent.tokens


def extend_node(
    parent: SequenceNode | None, generation: Generation, full_text: str
) -> SequenceNode:
    """The sequence after one more sample; earlier samples of ``parent`` stay trained.

    ``parent`` counts only while its tokens really start what the server was given.
    """
    prompt = generation.prompt_ids
    masked, logprobs, versions = [], [], []
    if parent is not None and is_prefix(parent, prompt):
        masked, logprobs = list(parent.masked_tokens), list(parent.logprobs)
        versions = list(parent.versions)
    between = len(prompt) - len(masked)  # the new turn's text: given, not sampled
    return SequenceNode(
        full_text=full_text,
        tokens=prompt + generation.tokens,
        masked_tokens=masked + [MASKED] * between + generation.tokens,
        logprobs=logprobs + [MASKED_LOGPROB] * between + generation.logprobs,
        versions=versions + [MASKED_VERSION] * between + generation.versions,
        metadata={"finish_reason": generation.finish_reason},
    )


@dataclass(frozen=True)
class SequenceSample:
    """One sampled continuation and the text of the sequence that it ends."""

    generation: Generation
    full_text: str


class SequenceList:
    """Sequences as a list: a turn replaces the sequence it continues.

    Every leaf is a whole trajectory: its trained tokens are all samples on its way. A turn
    that several branches continue is in each of them, whether they ran at once or one after
    the other, and a sequence that nothing continued stays. Leaves are in the order in which
    their calls returned, choices of one call in choice order; a replaced leaf passes its
    place on to the first choice that continues it.
    """

    def __init__(self) -> None:
        self.leaves: list[SequenceNode] = []
        self._replaced: list[SequenceNode] = []

    def candidates(self) -> list[SequenceNode]:
        """Leaves first: of two identical siblings the one not yet continued is taken."""
        return [*self.leaves, *self._replaced]

    def add(
        self, parent: SequenceNode | None, samples: Iterable[SequenceSample]
    ) -> list[SequenceNode]:
        """The nodes of one call's choices, in order."""
        place = None if parent is None else self._place_of(parent)
        if place is not None:
            parent = self.leaves[place]
        nodes = []
        for sample in samples:
            node = extend_node(parent, sample.generation, sample.full_text)
            if place is not None and is_prefix(parent, sample.generation.prompt_ids):
                self._replaced.append(self.leaves[place])
                self.leaves[place] = node
                place = None  # further choices branch off
            else:
                self.leaves.append(node)
            nodes.append(node)
        return nodes

    def _place_of(self, parent: SequenceNode) -> int | None:
        """Where ``parent`` is a leaf, or an identical sibling of it is.

        Calls that run at once may all have chosen the same one of several siblings; each
        then takes one that is left, or a sibling would stay behind and another count twice.
        """
        same = [
            i
            for i, leaf in enumerate(self.leaves)
            if leaf.tokens == parent.tokens and leaf.masked_tokens == parent.masked_tokens
        ]
        return next((i for i in same if self.leaves[i] is parent), same[0] if same else None)

    def state(self) -> dict[str, Any]:
        return {"nodes": list(self.leaves)}


class SequenceTree:
    """Every turn as a node of its own: only its own sample is trained, parents are links.

    Keys are the full texts; an identical sibling gets ``#2``, ``#3``... appended.
    """

    def __init__(self) -> None:
        self.sequences: dict[str, SequenceNode] = {}
        self.children: dict[str, list[str]] = {}
        self._key_of: dict[int, str] = {}  # by identity: siblings may be equal

    def candidates(self) -> list[SequenceNode]:
        return list(self.sequences.values())

    def add(
        self, parent: SequenceNode | None, samples: Iterable[SequenceSample]
    ) -> list[SequenceNode]:
        """The nodes of one call's choices, in order."""
        return [self._add_one(parent, sample) for sample in samples]

    def _add_one(self, parent: SequenceNode | None, sample: SequenceSample) -> SequenceNode:
        node = extend_node(None, sample.generation, sample.full_text)
        key, copies = sample.full_text, 1
        while key in self.sequences:
            copies += 1
            key = f"{sample.full_text}#{copies}"
        self.sequences[key], self.children[key] = node, []
        self._key_of[id(node)] = key
        if parent is not None and is_prefix(parent, sample.generation.prompt_ids):
            parent_key = self._key_of[id(parent)]
            self.children[parent_key].append(key)
            node.metadata["parent"] = parent_key
        return node

    def state(self) -> dict[str, Any]:
        tree = {key: list(children) for key, children in self.children.items()}
        return {"sequences": dict(self.sequences), "tree": tree}
