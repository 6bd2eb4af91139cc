"""The commands: every command that reads a run takes its folder, with both names of its data."""

from __future__ import annotations

import json

import pytest

import atroposlib
from atroposlib.cli.operate.dead import main as api_dead
from atroposlib.cli.view import archive, view
from atroposlib.errors import ConfigError
from atroposlib.run_status import top, why
from atroposlib.utils.command.run_folder import DATA_FOLDERS
from atroposlib.utils.http import serve as http_serve
from atroposlib.workbench.command_line import run_diff, ui
from tests.api.harness import Api, sampled
from tests.workbench.made_runs import make_run


@pytest.fixture(params=DATA_FOLDERS)
async def run(request, tmp_path, monkeypatch):
    """The folder of an ended run with a group, which was trained on."""
    monkeypatch.chdir(tmp_path)
    folder = make_run(tmp_path / "run", heldout={"x": 1.0})
    api = Api(folder / request.param, "sqlite", archive_bytes=10**6)
    [env_id] = await api.started(batch_size=2, commits=True)
    generation = api.service.context.view.generation
    facts = {"item": "x"}
    await api.post("/scored_data", sampled(0, env_id=env_id, metadata=facts))
    await api.ack(await api.claim(generation), generation)
    await api.post("/batches/1/commit", {"generation": generation})
    await api.end()
    return str(folder)


READERS = {
    "why": (lambda run: why.main([run]), "done: step 3 of 3"),
    "top": (lambda run: top.main([run]), "done: step 3 of 3"),
    "api status": (lambda run: top.once([run]), "done: step 3 of 3"),
    "archive ls": (lambda run: archive(["ls", run]), "2 rollouts in 1 groups"),
    "archive verify": (lambda run: archive(["verify", run]), "all sound"),
    "archive reindex": (lambda run: archive(["reindex", run]), "2 rollouts in 1 groups"),
    "archive pin": (lambda run: archive(["pin", run, "1"]), "1 of 1 groups"),
    "archive unpin": (lambda run: archive(["unpin", run, "1"]), "0 of 1 groups"),
    "archive prune": (lambda run: archive(["prune", run, "1"]), "0 bytes are freed"),
    "view": (lambda run: view([run, "--export", "page.html"]), "2 rollouts in page.html"),
    "run diff": (lambda run: run_diff([run, run]), "reward over 1 items"),
    "load_rollouts": (lambda run: print(len(atroposlib.load_rollouts(run))), "2"),
}


@pytest.mark.parametrize("command", READERS)
async def test_every_command_that_reads_a_run_takes_its_folder(run, command, capsys):
    read, shown = READERS[command]
    assert not read(run)
    assert shown in capsys.readouterr().out


def test_dead_batches_are_asked_at_the_address_in_the_folder(tmp_path, capsys):
    folder = make_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="names no rollout API"):
        api_dead(["--run", str(folder)])
    (folder / "launch/wiring.yaml").write_text('{"atropos_url": "http://127.0.0.1:1"}')
    assert api_dead(["--run", str(folder)]) == 3
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no folder of a run"):
        run_diff([str(tmp_path), str(tmp_path)])
    with pytest.raises(ConfigError, match="no folder"):
        ui([str(tmp_path / "absent")])


def test_a_diff_is_json_or_a_file(tmp_path, capsys):
    a, b = (str(make_run(tmp_path / name, lr=lr)) for name, lr in (("a", 0.1), ("b", 0.2)))
    assert run_diff([a, b, "--json"]) == 0
    diff = json.loads(capsys.readouterr().out)
    assert diff["settings"][0]["name"] == "trainer.lr" and diff["tasks"] is None
    page = tmp_path / "diff.html"
    assert run_diff([a, b, "--html", str(page)]) == 0
    assert "trainer.lr" in page.read_text() and f"in {page}" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="neither held-out"):
        run_diff([a, b, "--step", "1..2"])


def test_the_page_is_served_on_this_machine_alone(tmp_path, monkeypatch, capsys):
    bound = []

    def serve(app, listener):
        bound.append(listener.getsockname()[0])

    monkeypatch.setattr(http_serve, "run_app", serve)
    make_run(tmp_path / "a")
    assert ui([str(tmp_path), "--port", "0"]) == 0
    assert bound == ["127.0.0.1"] and "1 runs on http://127.0.0.1:" in capsys.readouterr().out
