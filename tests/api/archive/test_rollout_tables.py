"""Tables of rollouts: columns with a single type, and a sentence where a package is missing."""

from __future__ import annotations

import sys

import pytest

from atroposlib.api.archive.rollout_tables import block_columns, record_json, tables_of
from atroposlib.errors import ConfigError

RECORD = {
    "gid": 3,
    "reward": None,
    "answer": "2",
    "messages": [{"role": "user"}],
    "rewards": None,
}


@pytest.mark.parametrize("frame, package", [("pandas", "pandas"), ("arrow", "pyarrow")])
def test_a_missing_package_is_one_sentence_with_its_command(monkeypatch, frame, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"needs {package}: pip install 'atropos-rl\[ana"):
        tables_of(frame)
    with pytest.raises(ConfigError, match="records, iterator, pandas, polars, arrow"):
        tables_of("excel")


def test_columns_have_a_type_each_and_a_column_per_named_reward():
    block = [RECORD, {**RECORD, "gid": 4, "messages": None, "rewards": {"exact": 1.0}}]
    columns, kinds = block_columns(block)
    assert columns["messages"] == ['[{"role":"user"}]', None]
    assert columns["reward.exact"] == [None, 1.0] and "rewards" not in columns
    assert [kinds[name] for name in ("gid", "reward", "answer", "reward.exact")] == [
        int,
        float,
        str,
        float,
    ]
    assert list(block_columns(block, ["other"])[0])[-1] == "reward.other"


def test_values_that_json_lacks_are_replaced():
    assert (
        record_json({"a": float("nan"), "b": "\ud800"})
        == '{"a": null, "b": "\ufffd"}\n'.encode()
    )


@pytest.mark.parametrize("frame", ["pandas", "polars", "arrow"])
def test_blocks_are_joined_with_the_columns_of_all(frame):
    pytest.importorskip({"arrow": "pyarrow"}.get(frame, frame))
    tables = tables_of(frame)
    blocks = [[RECORD], [{**RECORD, "rewards": {"exact": 1.0}}]]
    joined = tables.union([tables.table(block) for block in blocks], list(RECORD))
    assert len(joined) == 2 and "reward.exact" in list(
        getattr(joined, "column_names", None) or joined.columns
    )
    assert len(tables.union([], list(RECORD))) == 0
