"""Stored forms of a finished sample: bytes and back.

collect_trajectory   row, items for the backlog, nodes that the row was copied from
@environment         rollout: rows of each endpoint, reward, facts     (``function_env``)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import msgspec

from atroposlib.envs.journal.journal_records import decode_item, encode_item
from atroposlib.envs.rollout.groups import ScoredDataItem, plain, score_problem
from atroposlib.generation.sessions.recording import record_nodes
from atroposlib.generation.sessions.sequences import Node, SequenceNode

Value = TypeVar("Value")
Drawn = tuple[ScoredDataItem | None, list[Any]]  # the value of collect_trajectory


class SampleForm(Protocol[Value]):
    """How samples of an environment are stored."""

    def pack_sample(self, value: Value, nodes: Sequence[Node]) -> bytes | None:
        """The bytes of a finished sample; None if it has no score, so that it is drawn again.

        Raises TypeError: a value in it has no stored form.
        """

    def unpack_sample(self, data: bytes) -> Value:
        """The sample of ``pack_sample``."""

    def versions(self, value: Value) -> Iterable[int]:
        """Policy versions of the tokens; negative where a token was not sampled."""


def encode_value(value: Any) -> bytes:
    """``value`` as MessagePack; arrays and pictures as :func:`plain` writes them."""
    return msgspec.msgpack.encode(value, enc_hook=_plain_or_refused)


def _plain_or_refused(value: Any) -> Any:
    known = plain(value)
    if known is value:
        raise TypeError(f"{type(value).__name__} has no stored form")
    return known


class RowForm:
    """Rows of ``collect_trajectory``."""

    def pack_sample(self, value: Drawn, nodes: Sequence[Node]) -> bytes | None:
        row, backlog = value
        if row is None or row.get("scores") is None or score_problem(row) is not None:
            return None
        items = [encode_item(item) for item in backlog or ()]
        if None in items:
            raise TypeError("an item for the backlog has no stored form")
        # A row without sampling gets it from the nodes of its rollout when it is sent.
        copied_from = [] if row.get("sampling") else [_node_fields(node) for node in nodes]
        return encode_value({"row": row, "backlog": items, "nodes": copied_from})

    def unpack_sample(self, data: bytes) -> Drawn:
        stored = msgspec.msgpack.decode(data)
        record_nodes([SequenceNode(**fields) for fields in stored["nodes"]])
        items = [decode_item(item) for item in stored["backlog"]]
        return cast(ScoredDataItem, stored["row"]), items

    def versions(self, value: Drawn) -> Iterable[int]:
        row, _ = value
        versions = row.get("versions") if row else None
        return () if versions is None else versions


def oldest_sampled_version(versions: Iterable[int]) -> int | None:
    """The oldest version of sampled tokens; None if none is known."""
    return min((int(version) for version in set(versions) if version >= 0), default=None)


def _node_fields(node: Node) -> Mapping[str, Any]:
    fields = SequenceNode.model_fields
    present = {name: getattr(node, name, None) for name in fields}
    return {k: v for k, v in present.items() if v is not None} | {
        "full_text": getattr(node, "full_text", "")
    }
