"""Rows -> packs -> passes. A pack holds every shared prefix of its rows once.

The rows of a group answer one prompt. A pack is the tree of their tokens: a node per
distinct prefix, which attends to its ancestors and itself and stands at its depth.

    rows   p q a b        node      0 1 2 3 4 5      attends to   0  x
           p q a c        token     p q a b c d                   1  x x
           p q d          parent    - 0 1 2 2 1                   2  x x x
                          position  0 1 2 3 3 2                   3  x x x x
                                                                  4  x x x . x
                                                                  5  x x . . . x

Causal attention gives a node the same hidden state as the last token of its prefix in a
plain row, so losses and gradients are those of plain rows, at the price of the distinct
tokens. docs/decisions/0004-prefix-sharing.md says when this pays.

Letters: P packs of a pass, L nodes of its longest pack, N (row, trained token) pairs,
H distinct nodes that predict a trained token, B rows, T trained tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from example_trainer.data import Row


@dataclass
class Pack:
    """A tree of rows; ``paths[i][j]`` is the node of token j of row ``rows[i]``."""

    tokens: list[int] = field(default_factory=list)  # (L,)
    parents: list[int] = field(default_factory=list)  # (L,) -1 at a root
    positions: list[int] = field(default_factory=list)  # (L,)
    rows: list[int] = field(default_factory=list)
    paths: list[list[int]] = field(default_factory=list)
    children: dict[tuple[int, int], int] = field(
        default_factory=dict
    )  # (parent, token) -> node

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
    rows: Sequence[Row], *, max_tokens: int, crossover: float, share: bool = True
) -> list[Pack]:
    """Pack rows of the same group and temperature together where that is cheaper.

    Args:
        rows: each trains at least one token.
        max_tokens: nodes of a pack; a longer row gets a pack of its own.
        crossover: length at which a token costs as much in attention as in everything
            else; a masked pack of L nodes costs L + L^2 / crossover.
        share: False packs every row alone.
    """
    packs: list[Pack] = []
    open_pack: Pack | None = None
    open_key: tuple[str, float] | None = None
    # Sorted, rows that share much are neighbours, so one open pack is enough.
    for i in sorted(range(len(rows)), key=lambda i: _sort_key(rows[i])):
        key = (rows[i].group, rows[i].temperature)
        # The last token predicts nothing that is trained.
        tokens = rows[i].tokens[: rows[i].trained[-1] + 1]
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
    return packs


def _sort_key(row: Row) -> tuple[str, float, list[int]]:
    return row.group, row.temperature, row.tokens


def _joins(pack: Pack, tokens: Sequence[int], max_tokens: int, crossover: float) -> bool:
    joined = len(pack.tokens) + pack.new_tokens(tokens)
    added_cost = _cost(joined, crossover) - _cost(len(pack.tokens), crossover)
    return joined <= max_tokens and added_cost <= _cost(len(tokens), crossover)


def _cost(length: int, crossover: float) -> float:
    return length + length * length / crossover


def passes(packs: Sequence[Pack], max_tokens: int) -> list[list[Pack]]:
    """Packs of similar length together, each pass at most ``max_tokens`` with padding."""
    batches: list[list[Pack]] = []
    for pack in sorted(packs, key=lambda pack: -len(pack.tokens)):
        longest = len(batches[-1][0].tokens) if batches else 0
        if batches and (len(batches[-1]) + 1) * longest <= max_tokens:
            batches[-1].append(pack)
        else:
            batches.append([pack])
    return batches


@dataclass(frozen=True)
class Pass:
    """Index lists of one forward pass; plain integers, no tensors."""

    packs: list[Pack]
    length: int  # L
    nodes: list[int]  # (H,) pack * L + node, of each position that needs logits
    temperatures: list[float]  # (H,)
    head_index: list[int]  # (N,) into nodes
    targets: list[int]  # (N,) token to be scored
    rows: list[int]  # (N,) 0 .. B - 1
    columns: list[int]  # (N,) 0 .. T - 1
    row_ids: list[int]  # (B,) index into the rows of the batch

    @property
    def shape(self) -> tuple[int, int]:
        """(B, T) of the scored tokens."""
        return len(self.row_ids), max(self.columns) + 1


def plan_pass(packs: Sequence[Pack], rows: Sequence[Row]) -> Pass:
    """Which node predicts which trained token of which row."""
    length = max(len(pack.tokens) for pack in packs)
    plan = Pass(list(packs), length, [], [], [], [], [], [], [])
    seen: dict[int, int] = {}
    for p, pack in enumerate(packs):
        for i, path in zip(pack.rows, pack.paths):
            for column, j in enumerate(rows[i].trained):
                node = p * length + path[j]
                if node not in seen:
                    seen[node] = len(plan.nodes)
                    plan.nodes.append(node)
                    plan.temperatures.append(rows[i].temperature)
                plan.head_index.append(seen[node])
                plan.targets.append(rows[i].labels[j])
                plan.rows.append(len(plan.row_ids))
                plan.columns.append(column)
            plan.row_ids.append(i)
    return plan


def padded(lists: Iterable[Sequence[int]], length: int, fill: int) -> list[list[int]]:
    return [[*values, *[fill] * (length - len(values))] for values in lists]
