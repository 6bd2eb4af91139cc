"""Rows -> packs -> micro-batches. A pack holds every shared prefix of its rows once.

A micro-batch is one forward pass over packs that lie end to end on one line. Each pack has its
own positions and attends to itself only, so no position is padding.

    packs   a0 a1 a2 a3 | b0 b1 b2 | c0 c1        one line of 9 tokens, (1, 9)
    starts  0             4          7

The rows of a group answer one prompt, and prompts begin alike. A pack is the tree of their
tokens: a node per distinct prefix, which attends to its ancestors and itself, at its depth.

    rows   p q a b        node      0 1 2 3 4 5      attends to   0  x
           p q a c        token     p q a b c d                   1  x x
           p q d          parent    - 0 1 2 2 1                   2  x x x
                          position  0 1 2 3 3 2                   3  x x x x
                                                                  4  x x x . x
                                                                  5  x x . . . x

Causal attention gives a node the same hidden state as the last token of its prefix in a
plain row, so losses and gradients are those of plain rows, at the price of the distinct
tokens. See docs/decisions/0004-prefix-sharing.md for when this pays.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from atroposlib.errors import ConfigError
from example_trainer.data.rows import Row


@dataclass
class Pack:
    """A tree of rows; ``paths[i][j]`` is the node of token j of row ``rows[i]``."""

    tokens: list[int] = field(default_factory=list)  # (L,)
    parents: list[int] = field(default_factory=list)  # (L,) -1 at a root
    positions: list[int] = field(default_factory=list)  # (L,)
    rows: list[int] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)
    experts: list[bytes] = field(default_factory=list)  # (L,), see pack_rows; else empty
    # (parent, token) -> node
    children: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Positions of its longest row."""
        return max(self.positions) + 1

    @property
    def branches(self) -> bool:
        """Whether it is more than one plain row, so that causal attention is not enough."""
        return self.parents != list(range(-1, len(self.parents) - 1))

    def new_tokens(self, tokens: Sequence[int]) -> int:
        """How many nodes adding this row would add."""
        node = -1
        for shared, token in enumerate(tokens):
            if (node_below := self.children.get((node, token))) is None:
                return len(tokens) - shared
            node = node_below
        return 0

    def add(self, row: int, tokens: Sequence[int]) -> None:
        node, path = -1, []
        for position, token in enumerate(tokens):
            below = self.children.get((node, token))
            if below is None:
                below = len(self.tokens)
                self.children[node, token] = below
                self.tokens.append(token)
                self.parents.append(node)
                self.positions.append(position)
            path.append(below)
            node = below
        self.rows.append(row)
        self.paths.append(path)


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
        switch: rows of so many tokens and shorter ones are not packed together.
        experts_R: of each token, in a router replay; nodes are shared where these are equal.
    """
    packs: list[Pack] = []
    open_pack: Pack | None = None
    # The last token predicts nothing that is trained.
    tokens_R: list[Any] = [row.tokens[: row.trained[-1] + 1] for row in rows]
    if experts_R is not None:
        tokens_R = [list(zip(*row)) for row in zip(tokens_R, experts_R)]
    keys = [(not across_groups and r.group, len(t) >= switch) for r, t in zip(rows, tokens_R)]
    open_key = None
    # Sorted, rows that share much are neighbours, so one open pack is enough.
    for i in sorted(range(len(rows)), key=lambda i: (*keys[i], rows[i].tokens)):
        key, tokens = keys[i], tokens_R[i]
        fits = (
            share
            and open_pack is not None
            and key == open_key
            and _joins(open_pack, tokens, max_tokens, crossover)
        )
        if open_pack is None or not fits:
            open_pack, open_key = Pack(), key
            packs.append(open_pack)
        open_pack.add(i, tokens)
    for pack in packs if experts_R is not None else ():
        pack.tokens, pack.experts = map(list, zip(*pack.tokens))
    return packs


def _joins(pack: Pack, tokens: Sequence[int], max_tokens: int, crossover: float) -> bool:
    joined = len(pack.tokens) + pack.new_tokens(tokens)
    added_cost = _cost(joined, crossover) - _cost(len(pack.tokens), crossover)
    return joined <= max_tokens and added_cost <= _cost(len(tokens), 2 * crossover)


def _cost(length: int, crossover: float) -> float:
    return length + length * length / crossover


def pack_ffd(
    lengths: Sequence[int], capacity: int, min_groups: int = 1, divisor: int = 1
) -> list[list[int]]:
    """Group items so that no group exceeds ``capacity``: longest first, fewest items first.

    The longest item left opens a new group while there are fewer than ``min_groups`` or when
    it does not fit the emptiest group; else it joins, of the groups that it fits, the one
    with the fewest items (then the smallest sum).

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
    """Index lists of one forward pass; plain integers, no tensors.

    A micro-batch without packs computes one unused token, so that a rank without rows takes
    part in the collectives of all ranks.
    """

    packs: list[Pack]
    starts: list[int]  # (P,) place of each pack's first node among lines * width
    lines: int  # 1, or P where each pack has its own line
    width: int  # tokens of a line
    nodes: list[int]  # (H,) place of each position that needs logits, once per temperature
    temperatures: list[float]  # (H,)
    head_index: list[int]  # (N,) into nodes, ascending
    targets: list[int]  # (N,) token to be scored
    rows: list[int]  # (N,) 0 .. B - 1
    columns: list[int]  # (N,) 0 .. T - 1
    row_ids: list[int]  # (B,) index into the rows of the batch
    teacher_ids: list[list[int]]  # (N, up to K)

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T) of the scored tokens; (1, 1), with nothing in it, of an empty micro-batch."""
        return max(1, len(self.row_ids)), max(self.columns, default=0) + 1

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
    computed = sum(one.computed for one in microbatch)
    return 1.0 - sum(one.length for one in microbatch) / computed if computed else 0.0


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
        padded: a line per pack, as long as the longest of the micro-batch, instead of one line.
        switch: rows of so many tokens get passes of their own, for a model that rotates all
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
    """Which node predicts which trained token of which row."""
    # Plain rows first and equal lengths together: attention takes them in one call.
    packs = sorted(packs, key=lambda pack: (pack.branches, len(pack.tokens)))
    lengths = [len(pack.tokens) for pack in packs]
    if padded:
        lines, width = max(1, len(packs)), max(lengths, default=1)
        starts = [p * width for p in range(len(packs))]
    else:
        lines, width = 1, max(1, sum(lengths))
        starts = list(accumulate(lengths, initial=0))[:-1]
    row_ids = [i for pack in packs for i in pack.rows]
    paths = [
        np.asarray(path, dtype=np.int64) + start
        for pack, start in zip(packs, starts)
        for path in pack.paths
    ]
    # Every (node, row, trained token), by node and temperature: a chunk of positions has a slice
    # of the pairs. Rows that share a node may have sampled its next token differently.
    counts = [len(rows[i].trained) for i in row_ids]
    none = np.zeros(0, dtype=np.int64)
    nodes_N = np.concatenate(
        [none, *(path[rows[i].trained] for path, i in zip(paths, row_ids))]
    )
    temperatures_N = np.array([t for i in row_ids for t in rows[i].trained_temperatures])
    order = np.lexsort((temperatures_N, nodes_N))
    nodes_N, temperatures_N = nodes_N[order], temperatures_N[order]
    is_first = np.ones(len(nodes_N), dtype=bool)  # of the pairs of its position
    is_first[1:] = (nodes_N[1:] != nodes_N[:-1]) | (temperatures_N[1:] != temperatures_N[:-1])
    rows_N = np.repeat(np.arange(len(row_ids)), counts)[order]
    columns_N = np.concatenate([none, *(np.arange(n) for n in counts)])[order]
    targets = [rows[i].labels[j] for i in row_ids for j in rows[i].trained]
    teacher_ids = [
        candidates[j] if (candidates := rows[i].teacher_ids) else []
        for i in row_ids
        for j in rows[i].trained
    ]
    return MicroBatch(
        packs=packs,
        starts=starts,
        lines=lines,
        width=width,
        nodes=nodes_N[is_first].tolist(),
        temperatures=temperatures_N[is_first].tolist(),
        head_index=(np.cumsum(is_first) - 1).tolist(),
        targets=[targets[n] for n in order],
        rows=rows_N.tolist(),
        columns=columns_N.tolist(),
        row_ids=row_ids,
        teacher_ids=[teacher_ids[n] for n in order],
    )
