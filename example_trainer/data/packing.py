"""Rows -> packs -> micro-batches. A pack holds every shared prefix of its rows once.

A micro-batch is a forward pass over packs that lie end to end on a line. Each pack has its
own positions and attends to itself only, so no position is padding.

    packs   a0 a1 a2 a3 | b0 b1 b2 | c0 c1        one line of 9 tokens, (1, 9)
    starts  0             4          7

The rows of a group answer the same prompt, and prompts begin alike. A pack is the tree of
their tokens: a node per distinct prefix, which attends to its ancestors and itself, at its
depth.

    rows   p q a b        node      0 1 2 3 4 5      attends to   0  x
           p q a c        token     p q a b c d                   1  x x
           p q d          parent    - 0 1 2 2 1                   2  x x x
                          position  0 1 2 3 3 2                   3  x x x x
                                                                  4  x x x . x
                                                                  5  x x . . . x

Causal attention gives a node the same hidden state as the last token of its prefix in a
plain row, so losses and gradients equal the plain rows', at the price of the distinct
tokens. See docs/decisions/0004-prefix-sharing.md for when this pays.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import ConfigError
from example_trainer.data.rows import Row

if TYPE_CHECKING:
    from atroposlib.utils.models.vision import PictureInputs

Ints = NDArray[np.int64]


@dataclass
class Pack:
    """A tree of rows; ``paths[i][j]`` is the node of token j of row ``rows[i]``.

    Rows are added in the order of their tokens, so that a row shares its longest prefix with
    the last row added.
    """

    tokens: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # (L,)
    parents: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # (L,) -1 at a root
    positions: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # (L,)
    rows: list[int] = field(default_factory=list)
    paths: list[Ints] = field(default_factory=list)
    experts: list[bytes] = field(default_factory=list)  # (L,), see pack_rows; else empty
    last: RowTokens | None = None  # row added last

    @property
    def depth(self) -> int:
        """Positions of its longest row."""
        return int(self.positions.max()) + 1

    @property
    def branches(self) -> bool:
        """Whether it is more than a plain row, so that causal attention is not enough."""
        return bool((self.parents != np.arange(-1, len(self.parents) - 1)).any())

    def new_tokens(self, row: RowTokens) -> int:
        """How many nodes adding this row would add."""
        return len(row.tokens) - self._shared_length(row)

    def add(self, number: int, row: RowTokens) -> None:
        shared, before = self._shared_length(row), len(self.tokens)
        new = np.arange(before, before + len(row.tokens) - shared)
        path = np.concatenate([self.paths[-1][:shared], new]) if shared else new
        parents = np.concatenate([[-1], path[:-1]])[shared:]
        self.tokens = np.concatenate([self.tokens, row.tokens[shared:]])
        self.parents = np.concatenate([self.parents, parents])
        self.positions = np.concatenate([self.positions, np.arange(shared, len(row.tokens))])
        self.experts += row.experts[shared:]
        self.rows.append(number)
        self.paths.append(path)
        self.last = row

    def _shared_length(self, row: RowTokens) -> int:
        return 0 if self.last is None else self.last.shared_with(row)


@dataclass(frozen=True)
class RowTokens:
    """Tokens of a row that predict something, and the experts of each in a router replay."""

    tokens: Ints
    experts: list[bytes]  # empty without a replay

    @classmethod
    def of(cls, row: Row, experts: Sequence[bytes] = ()) -> RowTokens:
        length = row.trained[-1] + 1  # the last token predicts nothing that is trained
        if row.pictures is not None:  # a picture may follow the last trained token
            length = len(row.tokens)
        tokens = np.array(row.tokens[:length], dtype=np.int64)
        return cls(tokens, list(experts[:length]))

    def shared_with(self, row: RowTokens) -> int:
        """Tokens with which both begin, routed alike."""
        length = min(len(self.tokens), len(row.tokens))
        different = np.flatnonzero(self.tokens[:length] != row.tokens[:length])
        shared = int(different[0]) if len(different) else length
        pairs = enumerate(zip(self.experts[:shared], row.experts[:shared]))
        return next((j for j, (ours, theirs) in pairs if ours != theirs), shared)


def pack_rows(
    rows: Sequence[Row],
    *,
    max_tokens: int,
    crossover: float,
    share: bool = True,
    across_groups: bool = False,
    switch: float = float("inf"),
    experts_R: Sequence[Sequence[bytes]] | None = None,
) -> list[Pack]:
    """Pack rows that begin alike together where that is cheaper.

    Args:
        rows: each trains at least one token.
        max_tokens: nodes of a pack; a longer row gets its own pack.
        crossover: length at which a token costs as much in attention as in everything
            else; a masked pack of L nodes costs L + L^2 / crossover, a plain row, whose
            causal attention skips half of it, L + L^2 / (2 crossover).
        share: False packs every row alone.
        across_groups: rows of several groups share a system prompt as well.
        switch: rows of so many tokens and shorter rows are not packed together.
        experts_R: of each token, in a router replay; nodes are shared where these are equal.
    """
    packs: list[Pack] = []
    open_pack: Pack | None = None
    experts: Sequence[Sequence[bytes]] = experts_R or [()] * len(rows)
    tokens_R = [RowTokens.of(row, of_row) for row, of_row in zip(rows, experts)]
    keys = [
        (not across_groups and row.group, len(of_row.tokens) >= switch)
        for row, of_row in zip(rows, tokens_R)
    ]
    open_key = None
    # Sorted, rows that share much are neighbours, so a single open pack is enough.
    for i in sorted(range(len(rows)), key=lambda i: (*keys[i], rows[i].tokens)):
        fits = (
            share
            and open_pack is not None
            and keys[i] == open_key
            and _joins(open_pack, tokens_R[i], max_tokens, crossover)
        )
        if open_pack is None or not fits:
            open_pack, open_key = Pack(), keys[i]
            packs.append(open_pack)
        open_pack.add(i, tokens_R[i])
    return packs


def _joins(pack: Pack, row: RowTokens, max_tokens: int, crossover: float) -> bool:
    joined = len(pack.tokens) + pack.new_tokens(row)
    added_cost = _cost(joined, crossover) - _cost(len(pack.tokens), crossover)
    return joined <= max_tokens and added_cost <= _cost(len(row.tokens), 2 * crossover)


def _cost(length: int, crossover: float) -> float:
    return length + length * length / crossover


def pack_ffd(
    lengths: Sequence[int], capacity: int, min_groups: int = 1, divisor: int = 1
) -> list[list[int]]:
    """Group items so that no group exceeds ``capacity``: longest first, fewest items first.

    The longest item left opens a new group while there are fewer than ``min_groups`` or when
    it does not fit the emptiest group; else it joins the group with the fewest items (then
    the smallest sum) among the groups that it fits.

    Example: lengths [7, 5, 4, 3, 1], capacity 10 -> [[0, 3], [1, 2, 4]] (sums 10, 10).

    Args:
        lengths: of each item.
        capacity: sum of the lengths of a group, at most.
        min_groups: at least so many groups, if there are so many items.
        divisor: the number of groups is a multiple of it; groups stay empty only where
            there are too few items for that.

    Returns:
        Indices into ``lengths``, sorted in each group; the groups by their first index.

    Raises:
        ConfigError: an item is longer than the capacity.
    """
    if lengths and max(lengths) > capacity:
        raise ConfigError(
            f"a sequence of {max(lengths)} tokens does not fit the budget of {capacity} tokens"
            " of a micro-batch; raise max_tokens_per_microbatch or lower seq_len"
        )
    wanted = min_groups
    while True:
        groups = _decreasing(lengths, capacity, wanted)
        missing = -len(groups) % divisor
        if not missing or len(groups) == len(lengths):
            return groups + [[] for _ in range(missing)]
        wanted = len(groups) + missing


def _decreasing(lengths: Sequence[int], capacity: int, min_groups: int) -> list[list[int]]:
    groups: list[list[int]] = []
    by_sum: list[tuple[int, int]] = []  # (sum, group), sorted
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        room = capacity - lengths[i]
        if len(groups) < min_groups or not by_sum or by_sum[0][0] > room:
            insort(by_sum, (lengths[i], len(groups)))
            groups.append([i])
            continue
        fitting = range(bisect_left(by_sum, (room + 1, -1)))
        place = min(fitting, key=lambda place: len(groups[by_sum[place][1]]))
        total, group = by_sum.pop(place)
        groups[group].append(i)
        insort(by_sum, (total + lengths[i], group))
    return sorted(sorted(group) for group in groups)


@dataclass(frozen=True)
class MicroBatch:
    """Indices of a forward pass; no tensors.

    A micro-batch without packs computes an unused token, so that a rank without rows takes
    part in the collectives of all ranks.
    """

    packs: list[Pack]
    starts: list[int]  # (P,) place of each pack's first node among lines * width
    lines: int  # 1, or P where each pack has its own line
    width: int  # tokens of a line
    nodes: Ints  # (H,) place of each position that needs logits, once per pair of temperatures
    temperatures: NDArray[np.float64]  # (H,)
    teacher_temperatures: NDArray[np.float64]  # (H,) of the teacher's candidates
    head_index: Ints  # (N,) into nodes, ascending
    targets: Ints  # (N,) token to be scored
    rows: Ints  # (N,) 0 .. B - 1
    columns: Ints  # (N,) 0 .. T - 1
    row_ids: list[int]  # (B,) index into the rows of the batch
    teacher_ids: list[list[int]]  # (N, up to K); empty if no row has candidates
    pictures: list[PictureInputs] = field(default_factory=list)  # a line each; empty for text

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T) of the scored tokens; an empty micro-batch has (1, 1) without any token."""
        return max(1, len(self.row_ids)), int(self.columns.max(initial=0)) + 1

    @property
    def length(self) -> int:
        """Distinct tokens."""
        return sum(len(pack.tokens) for pack in self.packs)

    @property
    def computed(self) -> int:
        """Tokens that go through the model, padding included."""
        return self.lines * self.width


def padding_share(microbatch: Sequence[MicroBatch]) -> float:
    """Share of the tokens that go through the model and belong to no row."""
    computed = sum(pack.computed for pack in microbatch)
    return 1.0 - sum(pack.length for pack in microbatch) / computed if computed else 0.0


def plan_microbatches(
    packs: Sequence[Pack],
    rows: Sequence[Row],
    max_tokens: int,
    *,
    divisor: int = 1,
    padded: bool = False,
    switch: float = float("inf"),
) -> list[MicroBatch]:
    """Passes of at most ``max_tokens``, the longest first; see pack_ffd for their number.

    A pack that is longer than ``max_tokens`` gets a micro-batch above the budget.

    Args:
        padded: a line per pack, as long as the micro-batch's longest, not a single line.
        switch: rows of so many tokens get separate passes, for a model that rotates all
            positions of a pass by the length of its longest row.
    """
    long = [pack for pack in packs if pack.depth >= switch]
    if 0 < len(long) < len(packs):
        short = [pack for pack in packs if pack.depth < switch]
        return [
            microbatch
            for side in (long, short)
            for microbatch in plan_microbatches(
                side, rows, max_tokens, divisor=divisor, padded=padded
            )
        ]
    lengths = [len(pack.tokens) for pack in packs]
    capacity = max([max_tokens, *lengths])
    if padded:
        groups = _rectangles(lengths, capacity, divisor)
    else:
        groups = pack_ffd(lengths, capacity, divisor=divisor)
    groups.sort(key=lambda group: -sum(lengths[i] for i in group))
    return [
        plan_microbatch([packs[i] for i in group], rows, padded=padded) for group in groups
    ]


def _rectangles(lengths: Sequence[int], capacity: int, divisor: int) -> list[list[int]]:
    """Items of similar length together, each group at most ``capacity`` with padding."""
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= capacity:
            groups[-1].append(i)
        else:
            groups.append([i])
    while len(groups) % divisor:
        largest = max(groups, key=len, default=[])
        if len(largest) < 2:
            break
        half = len(largest) // 2
        groups.append(largest[half:])
        del largest[half:]
    return groups + [[] for _ in range(-len(groups) % divisor)]


def plan_microbatch(
    packs: Sequence[Pack], rows: Sequence[Row], *, padded: bool = False
) -> MicroBatch:
    """Plan of a forward pass: which node predicts which trained token of which row."""
    # Plain rows first and equal lengths together, which attention takes in a single call.
    packs = sorted(packs, key=lambda pack: (pack.branches, len(pack.tokens)))
    lengths = [len(pack.tokens) for pack in packs]
    if padded:
        lines, width = max(1, len(packs)), max(lengths, default=1)
        starts = [p * width for p in range(len(packs))]
    else:
        lines, width = 1, max(1, sum(lengths))
        starts = list(accumulate(lengths, initial=0))[:-1]
    row_ids = [i for pack in packs for i in pack.rows]
    paths = [path + start for pack, start in zip(packs, starts) for path in pack.paths]
    # Every (node, row, trained token), by node and temperature: a chunk of positions has a slice
    # of the pairs. Rows that share a node may have sampled its next token differently.
    some = [rows[i] for i in row_ids]
    counts = [len(row.trained) for row in some]
    nodes_N = _join(path[row.trained_at] for path, row in zip(paths, some))
    temperatures_N = np.array([t for row in some for t in row.trained_temperatures])
    softened_N = np.repeat(np.array([row.teacher_temperature for row in some]), counts)
    order = np.lexsort((softened_N, temperatures_N, nodes_N))
    nodes_N, temperatures_N = nodes_N[order], temperatures_N[order]
    softened_N = softened_N[order]
    is_first = np.ones(len(nodes_N), dtype=bool)  # first pair of its position
    is_first[1:] = (nodes_N[1:] != nodes_N[:-1]) | (temperatures_N[1:] != temperatures_N[:-1])
    is_first[1:] |= softened_N[1:] != softened_N[:-1]
    targets_N = _join(np.array(row.labels, np.int64)[row.trained_at] for row in some)
    return MicroBatch(
        packs=packs,
        starts=starts,
        lines=lines,
        width=width,
        nodes=nodes_N[is_first],
        temperatures=temperatures_N[is_first],
        teacher_temperatures=softened_N[is_first],
        head_index=np.cumsum(is_first) - 1,
        targets=targets_N[order],
        rows=np.repeat(np.arange(len(row_ids)), counts)[order],
        columns=_join(map(np.arange, counts))[order],
        row_ids=row_ids,
        teacher_ids=_teacher_ids(some, order),
        pictures=[row.pictures for row in some if row.pictures is not None],
    )


def _join(parts: Iterable[Ints]) -> Ints:
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _teacher_ids(rows: Sequence[Row], order: Ints) -> list[list[int]]:
    """Candidates of every trained token in this order; none at all if no row has some."""
    if not any(row.teacher_ids for row in rows):
        return []
    ids = [
        candidates[j] if (candidates := row.teacher_ids) else []
        for row in rows
        for j in row.trained
    ]
    return [ids[n] for n in order]
