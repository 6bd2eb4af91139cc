"""Columns of encoded texts: cut, padded, converted."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from atroposlib.utils.tokenizers.encodings import encodings_of

COLUMNS = {"input_ids": [[1, 2, 3], [4]], "attention_mask": [[1, 1, 1], [1]]}


def made(**options):
    return encodings_of(COLUMNS, is_batch=True, pad_id=9, **options)


def test_rows_are_cut_and_padded():
    assert made(padding=True).input_ids == [[1, 2, 3], [4, 9, 9]]
    assert made(padding="longest")["attention_mask"] == [[1, 1, 1], [1, 0, 0]]
    assert made(truncation=True, max_length=2)["input_ids"] == [[1, 2], [4]]
    assert made(padding="max_length", max_length=4).input_ids == [[1, 2, 3, 9], [4, 9, 9, 9]]


def test_matrices_are_made_of_numpy():
    assert made(padding=True, return_tensors="np").input_ids.shape == (2, 3)
    with pytest.raises(ConfigError, match="np or pt"):
        made(padding=True, return_tensors="tf")


def test_what_cannot_be_padded_or_found_is_an_error():
    with pytest.raises(ConfigError, match="no pad token"):
        encodings_of(COLUMNS, is_batch=True, pad_id=None, padding=True)
    with pytest.raises(AttributeError):
        made().offsets
