"""Records of a run in blocks: texts of a run that goes on, filters, dropped groups."""

from __future__ import annotations

import msgspec
import pytest

import atroposlib
from atroposlib.api.archive import rollout_blocks
from atroposlib.api.archive.index import Index
from atroposlib.api.archive.records import DropFact, RunFacts
from atroposlib.api.archive.rollout_blocks import RunRollouts
from atroposlib.api.codec.json import read_json_group
from atroposlib.api.store.sql.run import LoadRun
from atroposlib.api.store.sqlite import SqliteStore
from atroposlib.errors import ConfigError
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer, write_char_tokenizer
from tests.api.archive.rollouts import group, row

TOKENIZER = char_tokenizer(ASCII_ALPHABET)


def posted(answers, **fields):
    tokens = [TOKENIZER.encode(f"q{text}", add_special_tokens=False) for text in answers]
    masks = [[-100, *row[1:]] for row in tokens]
    scores = [0.0 for _ in answers]
    return read_json_group(
        msgspec.json.encode({"tokens": tokens, "masks": masks, "scores": scores, **fields})
    )


@pytest.fixture
def run(tmp_path):
    """A run of two groups that goes on: its store holds the lock."""
    folder = write_char_tokenizer(tmp_path / "model", ASCII_ALPHABET)
    with_messages = posted("ab", messages=[[{"role": "user", "content": "hi"}]] * 2)
    store = SqliteStore(tmp_path, archive_bytes=10**6)
    stored = store.put(
        [posted(["yes", "no"]), with_messages],
        store.ask(LoadRun()).revision,
        lambda buffer, size: (),
        doubt=False,
    )
    index = Index(store.archive)
    index.set_value("run", msgspec.json.encode(RunFacts("r", tokenizer=str(folder))).decode())
    index.write([group(one.gid, [row(0.0), row(1.0)]) for one in stored])
    yield tmp_path, index
    index.close()
    store.close()


def test_texts_of_a_run_that_goes_on(run, monkeypatch):
    monkeypatch.setattr(rollout_blocks, "BLOCK_ROWS", 3)
    records = atroposlib.load_rollouts(run[0], text=True)
    assert [(one["gid"], one["answer"]) for one in records] == [
        (1, "yes"),
        (1, "no"),
        (2, None),
        (2, None),
    ]
    assert records[0]["prompt"] == "q" and records[2]["messages"][0]["content"] == "hi"
    assert next(atroposlib.load_rollouts(run[0], "iterator", text=True)) == records[0]


def test_words_of_an_answer_choose_rollouts_with_texts_only(run):
    (record,) = atroposlib.load_rollouts(run[0], text=True, q="YE")
    assert record["row"] == 0
    with pytest.raises(ConfigError, match="q: unknown"):
        atroposlib.load_rollouts(run[0], q="ye")


def test_a_tokenizer_that_is_not_here_is_one_sentence(run):
    folder, index = run
    with pytest.raises(
        ConfigError, match=r"not on this machine \(/no/such\): name its folder"
    ):
        atroposlib.load_rollouts(folder, text=True, tokenizer="/no/such")
    index.set_value("run", msgspec.json.encode(RunFacts("r")).decode())
    with pytest.raises(ConfigError, match="is not known"):
        atroposlib.load_rollouts(folder, text=True)


def test_freed_bytes_leave_numbers_and_dropped_samples_have_negative_ids(run):
    folder, index = run
    index.write([group(77, [row(0.5)]), DropFact("math", "stale", 1, 0.0)])
    index.write([group(-1, [row(0.25)])])
    records = atroposlib.load_rollouts(folder, text=True)
    assert [(one["gid"], one["answer"]) for one in (records[0], records[-1])] == [
        (-1, None),
        (77, None),
    ]


def test_an_index_without_a_store_has_no_texts(tmp_path):
    Index(tmp_path / "archive" / "index.sqlite").close()
    with pytest.raises(ConfigError, match="no queue.sqlite"):
        RunRollouts(tmp_path, None, {}, text=True)
