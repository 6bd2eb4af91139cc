"""Token-exact sequences: what was sampled, which tokens are trained, and how turns join.

Pure: no server, no tokenizer object, only ids and the two functions that turn text into ids
and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from atroposlib.envs.server_handling.generation import Generation
from atroposlib.errors import TokensMissing
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


def longest_extension(
    nodes: Iterable[SequenceNode],
    prompt_text: str,
    prompt_ids: Sequence[int],
    encode: Callable[[str], list[int]],
) -> Extension | None:
    """The longest earlier sequence that the new prompt continues, or None.

    A node fits when its tokens start the prompt's tokens. It also fits when its text starts
    the prompt's text: sampled tokens need not be those the tokenizer would choose for the
    same text, so the sampled ones are kept and only what follows is encoded. Anything else
    (a template that drops earlier thinking, an edited turn) starts a sequence of its own.

    A node that ends in a prompt holds no sample after it, and every sibling continues that
    prompt too: it is never extended. Of equal nodes the first wins.
    """
    best: Extension | None = None
    for node in nodes:
        if not node.ends_sampled:
            continue
        if best is not None and len(node.tokens) <= len(best.parent.tokens):
            continue
        if list(prompt_ids[: len(node.tokens)]) == node.tokens:
            best = Extension(node, list(prompt_ids))
        elif prompt_text.startswith(node.full_text):
            suffix = prompt_text[len(node.full_text) :]
            best = Extension(node, node.tokens + encode(suffix))
    return best


def grown_node(
    parent: SequenceNode | None, generation: Generation, full_text: str
) -> SequenceNode:
    """The sequence after one more sample; earlier samples of ``parent`` stay trained.

    ``parent`` counts only while its tokens really start what the server was given.
    """
    prompt = generation.prompt_ids
    masked, logprobs, versions = [], [], []
    if parent is not None and prompt[: len(parent.tokens)] == parent.tokens:
        masked, logprobs = list(parent.masked_tokens), list(parent.logprobs)
        versions = list(parent.versions)
    between = len(prompt) - len(masked)  # the new turn's text: given, not sampled
    node = SequenceNode(
        full_text=full_text,
        tokens=prompt + generation.tokens,
        masked_tokens=masked + [MASKED] * between + generation.tokens,
        logprobs=logprobs + [MASKED_LOGPROB] * between + generation.logprobs,
        versions=versions + [MASKED_VERSION] * between + generation.versions,
        metadata={"finish_reason": generation.finish_reason},
    )
    if len({len(node.tokens), len(node.masked_tokens), len(node.logprobs)}) != 1:
        raise TokensMissing("a sequence's tokens, mask and logprobs differ in length")
    return node


class SequenceList:
    """Sequences as a list: a turn replaces the sequence it continues.

    Replaced sequences are remembered for matching, so a second branch from the same turn
    carries that turn too, whether the branches run at once or one after the other.
    """

    def __init__(self) -> None:
        self.leaves: list[SequenceNode] = []
        self._replaced: list[SequenceNode] = []

    def candidates(self) -> list[SequenceNode]:
        """Leaves first: of two identical siblings the one not yet continued is taken."""
        return [*self.leaves, *self._replaced]

    def add(
        self, parent: SequenceNode | None, generation: Generation, text: str
    ) -> SequenceNode:
        node = grown_node(parent, generation, text)
        for i, leaf in enumerate(self.leaves):
            if leaf is parent:  # identity: equal siblings are different sequences
                self._replaced.append(leaf)
                self.leaves[i] = node
                return node
        self.leaves.append(node)
        return node

    def state(self) -> dict[str, Any]:
        return {"nodes": list(self.leaves)}


class SequenceTree:
    """Every turn as a node of its own: only its own sample is trained, parents are links.

    Keys are the full texts; an identical sibling gets ``#2``, ``#3``... appended.
    """

    def __init__(self) -> None:
        self.sequences: dict[str, SequenceNode] = {}
        self.children: dict[str, list[str]] = {}

    def candidates(self) -> list[SequenceNode]:
        return list(self.sequences.values())

    def add(
        self, parent: SequenceNode | None, generation: Generation, text: str
    ) -> SequenceNode:
        node = grown_node(None, generation, text)
        key, copies = text, 1
        while key in self.sequences:
            copies += 1
            key = f"{text}#{copies}"
        self.sequences[key] = node
        self.children[key] = []
        if parent is not None:
            parent_key = next(k for k, known in self.sequences.items() if known is parent)
            self.children[parent_key].append(key)
            node.metadata["parent"] = parent_key
        return node

    def state(self) -> dict[str, Any]:
        tree = {key: list(children) for key, children in self.children.items()}
        return {"sequences": dict(self.sequences), "tree": tree}
