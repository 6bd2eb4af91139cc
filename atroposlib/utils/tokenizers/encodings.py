"""Encoded texts of the plain tokenizer: columns of a text or of a batch, as transformers has."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Sequence
from typing import Any

from atroposlib.errors import ConfigError

Columns = dict[str, list[list[int]]]  # a row per text
FILL = {"attention_mask": 0, "assistant_masks": 0}


class Encodings(UserDict[str, Any]):
    """``input_ids``, ``attention_mask`` and further columns, by key or as attributes."""

    def __getattr__(self, name: str) -> Any:
        data = self.__dict__.get("data", {})
        if name not in data:
            raise AttributeError(name)
        return data[name]


def encodings_of(
    columns: Columns,
    *,
    is_batch: bool,
    pad_id: int | None,
    padding: Any = False,
    truncation: Any = False,
    max_length: int | None = None,
    return_tensors: str | None = None,
) -> Encodings:
    """The columns cut, padded and converted by the options of transformers.

    Raises ConfigError: padding without a pad token, or an unknown kind of tensors.
    """
    if truncation not in (False, None) and max_length is not None:
        columns = {name: [row[:max_length] for row in rows] for name, rows in columns.items()}
    if padding not in (False, None, "do_not_pad"):
        columns = with_padding(
            columns, pad_id, max_length if padding == "max_length" else None
        )
    if return_tensors is not None:
        return Encodings(
            {name: tensor_of(rows, return_tensors) for name, rows in columns.items()}
        )
    return Encodings({name: rows if is_batch else rows[0] for name, rows in columns.items()})


def with_padding(columns: Columns, pad_id: int | None, length: int | None) -> Columns:
    """Rows of ``length``, by default of the longest row, filled at the right."""
    if pad_id is None:
        raise ConfigError("padding: the tokenizer has no pad token")
    longest = max((len(row) for row in columns["input_ids"]), default=0)
    width = longest if length is None else length
    return {
        name: [[*row, *[FILL.get(name, pad_id)] * (width - len(row))] for row in rows]
        for name, rows in columns.items()
    }


def tensor_of(rows: Sequence[Sequence[int]], kind: str) -> Any:
    """The rows as a matrix of numpy (``np``) or of torch (``pt``)."""
    if kind == "np":
        import numpy as np

        return np.array(rows, dtype=np.int64)
    if kind == "pt":
        import torch

        return torch.tensor([list(row) for row in rows], dtype=torch.int64)
    raise ConfigError(f"return_tensors {kind!r}: np or pt")
