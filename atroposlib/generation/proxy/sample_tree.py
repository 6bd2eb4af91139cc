"""Trie of a session's samples, and the fewest rows that train every sampled token once.

Pure. Each sample holds only the tokens since the sample that it continues, so memory grows
linearly with the length of a session, not with its square.

    add(prompt, tokens) per choice -> trie -> rows(): a row per leaf

A sample shared by several leaves (the agent branched) is trained in the first leaf's row.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from atroposlib.generation.sampling.generation import Generation
from atroposlib.generation.sessions.sequences import sampled_span
from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION
from atroposlib.wire.routing import RoutedExperts, join_experts

_ID_BYTES = 4


class Turn(msgspec.Struct, kw_only=True):
    """A choice of a completion within a row; its tokens are ``tokens[start:end]``."""

    completion_id: str
    choice: int
    start: int
    end: int
    trained: bool  # False where an earlier row of the session trains these tokens
    finish_reason: str
    reward: float | None  # posted for this completion
    discounted: float | None  # rewards of this turn and of later turns in the row


class SessionRow(msgspec.Struct, kw_only=True):
    """A row of a scored group, T tokens long, in the shape of ``SequenceNode``.

    Example: tokens [1, 5, 9, 2], masked_tokens [-100, -100, 9, 2],
    logprobs [1.0, 1.0, -0.2, -0.9], versions [-1, -1, 3, 3], reward 1.0.
    """

    tokens: list[int]  # (T,)
    masked_tokens: list[int]  # (T,) -100 where not trained here
    logprobs: list[float]  # (T,) 1.0 where not trained here
    versions: list[int]  # (T,) -1 where not trained here, or unknown
    # spans of the turns trained here, each as ``wire.SampledSpan``
    spans: list[dict[str, Any]]
    routed_experts: RoutedExperts | None = None  # experts of the first tokens
    images: list[str] = []  # data URLs of the prompts, in order
    reward: float | None  # None: no reward was posted, which differs from 0
    turns: list[Turn]
    metadata: dict[str, str]  # {"finish_reason": "stop"}


@dataclass(frozen=True)
class Rewards:
    """Posted rewards: per completion, and for the whole session."""

    of: Mapping[str, float] = field(default_factory=dict)
    session: float | None = None
    discount: float = 1.0


@dataclass(frozen=True)
class _Sample:
    completion_id: str
    choice: int
    parent: int | None  # index of the sample that this sample continues
    start: int  # position of its first sampled token in the whole sequence
    segment: bytes  # int32 ids from the parent's end: prompt tokens, then sampled tokens
    logprobs: array[float]  # (sampled,)
    versions: array[int]  # (sampled,)
    span: list[dict[str, Any]]  # a single span; empty if the sampling is unknown
    # experts from the parent's last token on, and its place
    routed: tuple[int, RoutedExperts | None]
    finish_reason: str
    images: list[str]  # images of the whole sequence

    @property
    def end(self) -> int:
        return self.start + len(self.logprobs)


class SampleTree:
    """All samples of a session, in order of completion."""

    def __init__(self) -> None:
        self._samples: list[_Sample] = []
        self._children: dict[int | None, list[int]] = {None: []}

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, completion_id: str, choice: int, output: Generation) -> None:
        """Add a choice. An empty choice has nothing to train and is left out."""
        if not output.tokens:
            return
        whole = array("i", [*output.prompt_ids, *output.tokens]).tobytes()
        images = list(output.images)
        parent, at = self._deepest(whole[: len(output.prompt_ids) * _ID_BYTES], images)
        index = len(self._samples)
        # The parent's last token was sampled and not read: its experts are known here only.
        known = max(0, at // _ID_BYTES - 1)
        self._samples.append(
            _Sample(
                completion_id=completion_id,
                choice=choice,
                parent=parent,
                start=len(output.prompt_ids),
                segment=whole[at:],
                logprobs=array("d", output.logprobs),
                versions=array("q", output.versions),
                span=sampled_span(output),
                routed=(known, join_experts((0, output.routed_experts), start=known)),
                finish_reason=output.finish_reason,
                images=images,
            )
        )
        self._children[parent].append(index)
        self._children[index] = []

    def rows(
        self, rewards: Rewards = Rewards(), undelivered: frozenset[str] = frozenset()
    ) -> list[SessionRow]:
        """A row per sample without a continuation, oldest first.

        Args:
            undelivered: completions that no client received. The agent's later actions cannot
                depend on these, so they are left out unless a sample continues from there.
        """
        dropped = {
            i
            for i, sample in enumerate(self._samples)
            if sample.completion_id in undelivered and not self._children[i]
        }
        rows: list[SessionRow] = []
        trained: set[int] = set()
        for leaf in range(len(self._samples)):
            if leaf in dropped or any(child not in dropped for child in self._children[leaf]):
                continue
            path = self._path(leaf)
            fresh = [i for i in path if i not in trained]
            if fresh:
                rows.append(self._row(path, frozenset(fresh), rewards))
                trained.update(fresh)
        return rows

    def _deepest(self, prompt: bytes, images: list[str]) -> tuple[int | None, int]:
        """The sample with the longest sequence that is a prefix of ``prompt``; its end in bytes.

        Different images may have the same placeholder tokens, so they are compared too.

        Among samples with equal tokens, a sample without a continuation is preferred.
        """
        best: tuple[int, bool, int] = (0, True, 0)  # end, still a leaf, minus index
        deepest: int | None = None
        open_nodes = [(index, 0) for index in self._children[None]]
        while open_nodes:
            index, at = open_nodes.pop()
            segment, seen = self._samples[index].segment, self._samples[index].images
            if not prompt.startswith(segment, at) or images[: len(seen)] != seen:
                continue
            end = at + len(segment)
            rank = (end, not self._children[index], -index)
            if deepest is None or rank > best:
                best, deepest = rank, index
            open_nodes += [(child, end) for child in self._children[index]]
        return deepest, best[0]

    def _path(self, leaf: int) -> list[int]:
        path: list[int] = []
        index: int | None = leaf
        while index is not None:
            path.append(index)
            index = self._samples[index].parent
        return path[::-1]

    def _row(self, path: Sequence[int], fresh: frozenset[int], rewards: Rewards) -> SessionRow:
        samples = [self._samples[i] for i in path]
        tokens = array("i", b"".join(sample.segment for sample in samples)).tolist()
        masked = [MASKED] * len(tokens)
        logprobs = [MASKED_LOGPROB] * len(tokens)
        versions = [MASKED_VERSION] * len(tokens)
        for index, sample in zip(path, samples):
            if index in fresh:
                span = slice(sample.start, sample.end)
                masked[span] = tokens[span]
                logprobs[span] = sample.logprobs.tolist()
                versions[span] = sample.versions.tolist()
        own = [rewards.of.get(sample.completion_id) for sample in samples]
        returns = discounted_returns(own, rewards.session, rewards.discount)
        return SessionRow(
            tokens=tokens,
            masked_tokens=masked,
            logprobs=logprobs,
            versions=versions,
            spans=[
                span for i, sample in zip(path, samples) if i in fresh for span in sample.span
            ],
            routed_experts=join_experts(*(sample.routed for sample in samples)),
            images=samples[-1].images,
            reward=returns[0],
            turns=[
                Turn(
                    completion_id=sample.completion_id,
                    choice=sample.choice,
                    start=sample.start,
                    end=sample.end,
                    trained=index in fresh,
                    finish_reason=sample.finish_reason,
                    reward=reward,
                    discounted=later,
                )
                for index, sample, reward, later in zip(path, samples, own, returns)
            ],
            metadata={"finish_reason": samples[-1].finish_reason},
        )


def discounted_returns(
    rewards: Sequence[float | None], final: float | None, discount: float
) -> list[float | None]:
    """R_i = r_i + discount * R_(i+1) of T turns; ``final`` is added to the last turn.

    None where no reward was given from that turn on.

    Example: rewards [None, 1.0, None], final 2.0, discount 0.5 -> [1.0, 2.0, 2.0].
    """
    returns: list[float | None] = []
    later: float | None = None
    for i, reward in enumerate(reversed(rewards)):
        earned = [r for r in (reward, final if i == 0 else None) if r is not None]
        if later is not None:
            earned.append(discount * later)
        later = sum(earned) if earned else None
        returns.append(later)
    return returns[::-1]
