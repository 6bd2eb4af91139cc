"""Groups for the viewer: watched, taken or archived, as prompt, answers and images."""

from __future__ import annotations

import base64
import binascii
import math
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from atroposlib.cli.collect.selection import prompt_length, split_texts
from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError
from atroposlib.utils.tokenizers.texts import token_texts
from atroposlib.wire import MASKED, ScoredData
from atroposlib.wire.columns import to_group

if TYPE_CHECKING:  # it opens a database
    from atroposlib.api.archive.explorer import Explorer

KEPT = 200  # groups to browse back, as text
PASSED = 1000  # freed groups at most between two of an archive
CLAIM_WAIT_S = 1.0

# Label of a token by the least probability of its kind; a token that is not trained has none.
PROBABILITIES = {"p > 0.9": 0.9, "p > 0.5": 0.5, "p > 0.1": 0.1, "p > 0.01": 0.01, "rare": -1}

MAX_IMAGES = 8
MAX_IMAGE_CHARACTERS = 8 * 2**20 * 4 // 3  # base64 of 8 MB
_IMAGE = re.compile(r"data:image/[a-z]+;base64,([A-Za-z0-9+/]+={0,2})")
_BARE_IMAGE = re.compile(r'"([A-Za-z0-9+/]{64,}={0,2})"')


class ShownSample(NamedTuple):
    """Answer; ``spans`` is its text again, as (text, label of its probability or None)."""

    score: float
    output: str
    spans: list[tuple[str, str | None]]


class ShownGroup(NamedTuple):
    """Prompt and answers of a group; ``number`` counts shown groups, or is the id in an archive."""

    number: int
    title: str
    images: list[bytes]
    prompt: str
    samples: list[ShownSample]


Show = Callable[[ScoredData, int], ShownGroup]  # arguments: a group and its number


def shown_group(
    group: ScoredData, number: int, tokenizer: Any, samples: int, max_tokens: int
) -> ShownGroup:
    """The first ``samples`` rows of ``group``, each cut to ``max_tokens`` tokens."""
    tokens_G = [row[:max_tokens] for row in group.tokens[:samples]]
    masks_G = [row[:max_tokens] for row in group.masks[:samples]]
    start = prompt_length(tokens_G, masks_G)
    prompt, outputs = split_texts(tokenizer, tokens_G, start)
    logprobs_G = group.inference_logprobs or [[math.nan] * max_tokens] * samples
    spans_G = []
    for tokens, masks, logprobs in zip(tokens_G, masks_G, logprobs_G):
        rated = zip(masks[start:], logprobs[start:])
        labels = [None if mask == MASKED else label_of(logprob) for mask, logprob in rated]
        spans_G.append(list(zip(token_texts(tokenizer, tokens[start:]), labels)))
    about = group.metadata or {}
    names = [str(about[key]) for key in ("env", "item") if key in about]
    title = ", ".join([*names, f"{len(tokens_G)} of {len(group.tokens)} samples"])
    images = images_of(group, [prompt, *outputs])
    answers = list(map(ShownSample, group.scores, outputs, spans_G))
    return ShownGroup(number, title, images, prompt, answers)


def label_of(logprob: float) -> str | None:
    """The label of a token that was sampled with ``logprob``; None if that is unknown."""
    p = math.exp(min(logprob, 0.0))
    return next((label for label, least in PROBABILITIES.items() if p > least), None)


def images_of(group: ScoredData, texts: Sequence[str]) -> list[bytes]:
    """Contents of ``images`` and of all data URLs in messages and texts; none is fetched."""
    images, messages = (
        msgspec.json.encode(v).decode() for v in (group.images, group.messages)
    )
    coded = _BARE_IMAGE.findall(images)
    coded += [url for text in (images, messages, *texts) for url in _IMAGE.findall(text)]
    decoded: list[bytes] = []
    for token in dict.fromkeys(coded):
        if len(decoded) < MAX_IMAGES and len(token) < MAX_IMAGE_CHARACTERS:
            try:
                decoded.append(base64.b64decode(token))
            except binascii.Error:
                continue
    return decoded


class Source(Protocol):
    """Groups for all open pages; every call may come from another thread."""

    status: str
    take: bool

    def fetch(self) -> None:
        """Look for newer groups; a failure is the status."""

    def after(self, number: int) -> ShownGroup | None:
        """The first group after ``number``."""

    def before(self, number: float) -> ShownGroup | None:
        """The last group before ``number``."""


class ArchivedGroups:
    """The groups whose bytes an archive keeps, by their ids. See :class:`Source`."""

    take = False

    def __init__(self, explorer: Explorer, show: Show) -> None:
        self._explorer, self._show = explorer, show
        self.status = f"archive: {explorer.runs({}).runs[0].groups} groups"
        self._shown = lru_cache(KEPT)(self._read)  # pages ask again each second

    def fetch(self) -> None:
        """Do nothing: the run has ended."""

    def after(self, number: int) -> ShownGroup | None:
        return self._first("gid > MAX(?, 0) ORDER BY gid", number)

    def before(self, number: float) -> ShownGroup | None:
        return self._first("gid > 0 AND gid < ? ORDER BY gid DESC", number)

    def _first(self, condition: str, number: float) -> ShownGroup | None:
        sql = f"SELECT gid FROM rollout WHERE row = 0 AND {condition} LIMIT {PASSED}"
        groups = (self._shown(gid) for (gid,) in self._explorer.index.read(sql, (number,)))
        return next((value for value in groups if value is not None), None)

    def _read(self, gid: int) -> ShownGroup | None:
        group = self._explorer.stored_group(gid)
        return None if group is None else self._show(to_group(group.columns), gid)


class GroupSource:
    """The groups seen so far. See :class:`Source`.

    Args:
        show: numbers are from 1 on.
        take: claim and ack batches as the registered trainer, instead of watching.
    """

    def __init__(self, client: RolloutClient, show: Show, take: bool) -> None:
        self.take = take
        self.status = "no group yet"
        self._client, self._show = client, show
        self._kept: deque[ShownGroup] = deque(maxlen=KEPT)
        self._last: ScoredData | None = None
        self._lock = threading.Lock()

    def fetch(self) -> None:
        """Claim a batch, or look once for a newer group."""
        with self._lock:
            try:
                self.status = self._claim() if self.take else self._watch()
            except (AtroposError, ValueError) as error:
                self.status = str(error)

    def after(self, number: int) -> ShownGroup | None:
        return next((group for group in list(self._kept) if group.number > number), None)

    def before(self, number: float) -> ShownGroup | None:
        return next(
            (group for group in reversed(list(self._kept)) if group.number < number), None
        )

    def _watch(self) -> str:
        latest = self._client.latest_example()  # takes nothing from the trainer
        if latest is not None and latest != self._last:
            self._add(latest)
        return f"watching: {self._count()} groups seen"

    def _claim(self) -> str:
        claimed = self._client.claim(wait_s=CLAIM_WAIT_S)
        if claimed.batch is None:
            return f"no batch: {claimed.blocked_reason}"
        for group in claimed.batch:
            self._add(group)
        self._client.ack(claimed)
        return f"took batch {claimed.batch_no}: {len(claimed.batch)} groups"

    def _add(self, group: ScoredData) -> None:
        self._last = group
        self._kept.append(self._show(group, self._count() + 1))

    def _count(self) -> int:
        return self._kept[-1].number if self._kept else 0
