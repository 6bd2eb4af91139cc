"""Reader of groups and rows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from atroposlib.api.archive.explorer import Explorer, values_in_span
from atroposlib.errors import ConfigError, UnknownGroup
from atroposlib.run_status.task_history import FOLDER
from tests.api.archive.rollouts import notes
from tests.api.harness import Api, sampled

PICTURE = "data:image/png;base64,iVBORw=="


@pytest.fixture
async def explorer(api):
    [env_id] = await api.started(batch_size=2)
    metadata = {"item": "17", "rows": [{"metrics": {"exact": 1}, "judge": "good"}, "odd"]}
    talk = [[{"role": "user", "content": "<b>2+2</b>"}]] * 2
    more = {"metadata": metadata, "messages": talk, "advantages": [[0.0, 0.5]] * 2}
    more["images"] = [[], [PICTURE, "https://a.example/i.png"]]
    body = sampled(3, env_id=env_id, **more) | {"scores": [0.0, 1.0]}
    await api.http.post("/scored_data", content=json.dumps(body))
    indexer = api.service.context.indexer
    indexer.flush()
    return Explorer(indexer.index, api.service.store)


async def test_a_group_has_its_baseline_and_what_its_environment_reported(explorer):
    group = explorer.group(1, {})
    assert (group.baseline, group.spread, group.item, group.state) == (
        0.5,
        0.5,
        "17",
        "pending",
    )
    assert [row.reward for row in group.rows] == [0.0, 1.0]
    assert (group.rows[0].metrics, group.rows[0].judge) == ({"exact": 1.0}, "good")
    assert (group.rows[1].metrics, group.rows[1].judge) == ({}, None)
    assert group.life[0].event == "posted"
    assert group.media == "safetensors"
    assert group.n_bytes > 0


async def test_a_row_has_every_column_that_was_posted(explorer):
    row = explorer.row(1, 1, {})
    assert (row.n_tokens, row.start, row.to) == (2, 0, 2)
    assert row.messages == [{"role": "user", "content": "<b>2+2</b>"}]
    assert row.images == [PICTURE] and explorer.row(1, 1, {"from": "1"}).images == []
    columns = row.columns
    assert (columns.id, columns.trained, columns.logprob) == ([1, 7], [0, 1], [1.0, -0.5])
    assert (columns.version, columns.advantage, columns.flags) == ([-1, 3], [0.0, 0.5], None)


async def test_notes_lie_at_their_trained_tokens(explorer):
    explorer.index.write([notes(1, 9, [1, 0], advantages=0.25, logprobs=-0.75, flags=5)])
    columns = explorer.row(1, 0, {}).columns
    assert (columns.advantage, columns.trainer_logprob) == ([None, 0.25], [None, -0.75])
    assert columns.flags == [0, 5]


def test_notes_of_another_length_are_not_shown():
    trained = np.array([True, False])
    assert values_in_span(b"ab", "|u1", trained, (0, 2)) is None
    assert values_in_span(b"a", "|u1", trained, (0, 2)) == [97.0, None]


async def test_a_span_of_a_row_is_cut_to_its_tokens(explorer):
    row = explorer.row(1, 0, {"from": "1", "to": "50"})
    assert (row.start, row.to, row.columns.id) == (1, 2, [7])


@pytest.mark.parametrize(
    "given", [{"from": "-1"}, {"from": "2", "to": "1"}, {"to": "20000"}, {"x": ""}]
)
async def test_a_wrong_span_is_rejected(explorer, given):
    with pytest.raises(ConfigError):
        explorer.row(1, 0, given)


@pytest.mark.parametrize(("gid", "row"), [(2, 0), (1, 2), (1, -1), (10**30, 0), (-1, 0)])
async def test_an_unknown_group_or_row_is_named(explorer, gid, row):
    with pytest.raises(UnknownGroup):
        explorer.row(gid, row, {})


@pytest.mark.parametrize("gid", [2, 10**30, -1])
async def test_an_unknown_group_is_named(explorer, gid):
    with pytest.raises(UnknownGroup):
        explorer.group(gid, {})


async def test_completions_are_searched_without_a_tokenizer_in_messages(explorer, api):
    assert explorer.rollouts({"q": "FOUR"}).rows == []
    talk = [
        [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "It is Four."}]
    ]
    body = sampled(3, rows=1, mark=9) | {"messages": talk}
    await api.http.post("/scored_data", content=json.dumps(body))
    api.service.context.indexer.flush()
    page = explorer.rollouts({"q": "FOUR"})
    assert [(row.gid, row.row) for row in page.rows] == [(2, 0)]
    assert (page.next, page.counted.n, page.counted.exact) == (None, 1, True)
    assert explorer.rollouts({"q": "four", "limit": "1"}).next
    assert explorer.group(2, {}).rows[0].completion == "It is Four."


async def test_tokens_are_text_with_a_tokenizer_of_local_files(explorer, monkeypatch):
    class Letters:
        def decode(self, token_ids, clean_up_tokenization_spaces):
            return "".join(chr(64 + one) for one in token_ids)

    monkeypatch.setattr(explorer, "_decoder", Letters)
    row = explorer.row(1, 0, {})
    assert row.columns.text == ["A", "G"]
    [first, _] = explorer.group(1, {}).rows
    assert (first.prompt, first.completion) == ("A", "G")
    assert len(explorer.rollouts({"q": "g"}).rows) == 2


async def test_the_run_is_described_with_its_rollouts(api, explorer):
    reply = await api.get("/explore/runs")
    [run] = reply["runs"]
    assert (run["live"], run["state"], run["rollouts"], run["groups"]) == (
        True,
        "STARTED",
        2,
        1,
    )
    assert (run["tokenizer_found"], run["envs"]) == (False, ["e_0"])


@pytest.fixture
async def talking(api):
    """An explorer of a group whose two rows have a reply each."""
    [env_id] = await api.started(batch_size=2)
    talk = [
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": reply}]
        for reply in ("hello world", "good bye")
    ]
    body = sampled(3, env_id=env_id, messages=talk) | {"scores": [0.0, 1.0]}
    await api.http.post("/scored_data", content=json.dumps(body))
    indexer = api.service.context.indexer
    indexer.flush()
    return Explorer(indexer.index, api.service.store)


async def test_a_page_has_the_beginning_of_each_answer_on_request(talking, monkeypatch):
    rows = talking.rollouts({"answer": "5", "sort": "arrived"}).rows
    assert [row.answer for row in rows] == ["hello", "good "]
    assert [row.answer for row in talking.rollouts({}).rows] == [None, None]
    for wrong in ("-1", "201", "x"):
        with pytest.raises(ConfigError, match="answer: "):
            talking.rollouts({"answer": wrong})
    monkeypatch.setattr("atroposlib.api.archive.explorer.TEXT_S", -1.0)
    assert [row.answer for row in talking.rollouts({"answer": "5"}).rows] == [None, None]


async def test_a_histogram_counts_the_rows_that_a_search_finds(talking):
    found = talking.histogram({"q": "HELLO", "field": "reward"})
    assert [(one.start, one.n) for one in found.bins] == [(0.0, 1)] and not found.sampled
    assert sum(one.n for one in talking.histogram({"q": ""}).bins) == 2
    assert talking.histogram({"q": "nowhere"}).bins == []
    with pytest.raises(ConfigError):
        talking.histogram({"q": "a", "field": "env"})


LINES = (
    {"step": 0, "task": "a", "success": 0.5, "useful": True, "tokens": 8, "pool": "useful"},
    {
        "step": 1,
        "task": "<b>",
        "success": 0.0,
        "useful": False,
        "tokens": 8,
        "pool": "too_hard",
    },
)


@pytest.mark.parametrize("place", ["the trainer's folder", "the folder of the run"])
async def test_tasks_are_those_that_environments_with_a_curriculum_wrote(tmp_path, place):
    api = Api(tmp_path / "queue", "sqlite")
    folder = tmp_path if place == "the folder of the run" else tmp_path / "trainer"
    await api.started(checkpoint_dir=str(tmp_path / "trainer"))
    assert await api.get("/explore/tasks") == {"envs": []}
    history = folder / FOLDER / "sums_0.jsonl"
    history.parent.mkdir(parents=True)
    history.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    [own] = (await api.get("/explore/tasks?limit=1"))["envs"]
    assert (own["env"], own["n_tasks"], own["groups"]) == ("sums_0", 2, 2)
    assert [task["task"] for task in own["tasks"]] == ["<b>"]  # the hardest
    assert [part["pools"] for part in own["parts"]] == [{"useful": 1}, {"too_hard": 1}]
    assert (await api.get("/explore/tasks?env=other"))["envs"] == []
    assert (await api.http.get("/explore/tasks?order=no")).status_code == 422
    await api.end()
