"""atropos view and atropos archive over data directories and files of groups."""

from __future__ import annotations

import json

import httpx
import pytest

from atroposlib.api.archive.load import open_explorer
from atroposlib.api.server import create_view
from atroposlib.api.store.sql.run import LoadRun, SaveRun
from atroposlib.cli.view import archive, page_app, view
from atroposlib.errors import ConfigError, StoreLocked
from tests.api.harness import Api, sampled
from tests.frontend.dumps import records


@pytest.fixture
async def run(tmp_path):
    """The data directory of a run of two groups, of which the first was trained on."""
    api = Api(tmp_path / "run", "sqlite", archive_bytes=10**6)
    [env_id] = await api.started(batch_size=2, commits=True)
    generation = api.service.context.view.generation
    for mark in (1, 2):
        await api.post("/scored_data", sampled(0, mark=mark, env_id=env_id))
    claimed = await api.claim(generation)
    await api.ack(claimed, generation)
    await api.post("/batches/1/commit", {"generation": generation})
    await api.end()
    return api.folder


async def test_an_ended_run_is_viewed_with_the_groups_that_it_trained_on(run):
    with open_explorer(run, None) as (_, explorer):
        transport = httpx.ASGITransport(create_view(explorer))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            rows = (await http.get("/explore/rollouts?sort=arrived")).json()["rows"]
            assert [(row["gid"], row["state"]) for row in rows] == [
                *[(1, "committed")] * 2,
                *[(2, "pending")] * 2,
            ]
            group = (await http.get("/explore/groups/1")).json()
            assert (group["archived"], group["batch_no"], group["env"]) == (True, 1, "e_0")
            assert (await http.get("/explore/groups/1/rows/0")).json()["columns"]["id"] == [
                1,
                7,
            ]
            assert (await http.get("/explore/groups/9")).status_code == 404
            assert "<html" in (await http.get("/ui/")).text
            assert (
                await http.get("/explore/runs", headers={"host": "evil.example"})
            ).status_code == 421
            [shown] = (await http.get("/explore/runs")).json()["runs"]
            assert (shown["live"], shown["groups"], shown["envs"]) == (False, 2, ["e_0"])


def test_a_file_of_groups_is_viewed_without_a_run(tmp_path, capsys):
    path = tmp_path / "groups.jsonl"
    lines = [json.dumps(sampled(0, metadata={"env": "larger", "item": "q"})), "no group"]
    path.write_text("\n".join(lines))
    with open_explorer(path, None) as (_, explorer):
        assert {(row.env, row.item) for row in explorer.rollouts({}).rows} == {("larger", "q")}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ["", "{}", "no group\n"])
def test_a_file_without_groups_is_refused(tmp_path, text):
    path = tmp_path / "groups.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match="no scored group"):
        view([str(path)])
    with pytest.raises(ConfigError, match="neither"):
        view([str(tmp_path / "absent")])


def test_a_folder_of_files_is_viewed_without_the_samples_of_evaluate(tmp_path):
    for name in ("a", "transcripts"):
        line = json.dumps(sampled(0, metadata={"env": name}))
        (tmp_path / f"{name}.jsonl").write_text(f"{line}\n")
    (tmp_path / "samples.jsonl").write_text('{"score": 1.0}\n')
    with open_explorer(tmp_path, None) as (_, explorer):
        assert {row.env for row in explorer.rollouts({}).rows} == {"a", "transcripts"}


def test_a_run_that_goes_on_is_not_opened_twice(run):
    with open_explorer(run, None), pytest.raises(StoreLocked, match="process"):
        view([str(run)])


def test_the_archive_is_listed_pinned_verified_and_indexed_again(run, capsys):
    assert archive(["ls", str(run)]) == 0
    listed = capsys.readouterr().out
    assert "4 rollouts in 2 groups, 1 batches trained" in listed
    assert archive(["pin", str(run), "1"]) == 0
    assert "1 of 1 groups of step 1 are pinned" in capsys.readouterr().out
    assert archive(["unpin", str(run), "1"]) == 0
    assert "0 of 1 groups of step 1 are pinned" in capsys.readouterr().out
    with open_explorer(run, None) as (_, explorer):
        before = explorer.rollouts({}).rows
        explorer.index.change("UPDATE rollout SET reward = 99, diff_max = 0.5")
    assert archive(["reindex", str(run)]) == 0
    with open_explorer(run, None) as (_, explorer):
        again = explorer.rollouts({}).rows
    assert [row.reward for row in again] == [row.reward for row in before]
    assert {row.diff_max for row in again} == {0.5}  # what the trainer noted stays
    assert archive(["verify", str(run)]) == 0
    (run / "payload-00000001.log").write_bytes(b"?" * 2000)
    capsys.readouterr()
    assert archive(["verify", str(run)]) == 1
    assert "group 1 is damaged" in capsys.readouterr().out


def test_batches_that_an_index_made_from_groups_cannot_count_are_unknown_and_not_0(
    run, capsys
):
    with open_explorer(run, None) as (_, explorer):
        explorer.index.change("DELETE FROM batch")
    assert archive(["ls", str(run)]) == 0
    assert "an unknown number of batches trained" in capsys.readouterr().out


def test_pruning_frees_retired_segments_and_no_held_group(tmp_path, capsys):
    from atroposlib.api.store.sqlite import SqliteStore
    from tests.api.store.store_talk import ack, claim, group, put

    store = SqliteStore(tmp_path, archive_bytes=10**6, segment_bytes=4)
    put(store, group(json.dumps(sampled(0)), 8))
    generation = store.do(SaveRun(b"{}", store.ask(LoadRun()).revision, fence=True)).generation
    ack(store, claim(store, generation), commit=True)
    put(store, group(json.dumps(sampled(1)), 8))
    store.close()
    assert archive(["prune", str(tmp_path), "0"]) == 0
    assert int(capsys.readouterr().out.split()[0]) > 0
    store = SqliteStore(tmp_path)
    assert store.kept_gids(0, 9) == [2]
    store.close()


@pytest.mark.parametrize("words", [["pin", "x"], ["ls", "x", "3"], ["prune", "x", "much"]])
def test_wrong_words_are_usage_errors(words):
    with pytest.raises(SystemExit):
        archive(words)


def test_a_dump_of_another_trainer_is_exported_as_a_page(tmp_path, capsys):
    path, page = tmp_path / "7.jsonl", tmp_path / "page.html"
    path.write_text(json.dumps(records.VERL))
    assert view([str(path), "--export", str(page)]) == 0
    assert capsys.readouterr().out == f"1 groups of verl generations in {page}\n"
    assert "Not in this dump" in page.read_text()
    with pytest.raises(ConfigError, match="no filters"):
        view([str(path), "--export", str(page), "env=math"])


async def test_the_page_of_a_dump_is_served_behind_the_gate():
    transport = httpx.ASGITransport(page_app(b"<html>dump</html>"))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        assert (await http.get("/")).text == "<html>dump</html>"
        assert (await http.get("/", headers={"host": "evil.example"})).status_code == 421
