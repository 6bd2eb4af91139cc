"""The watcher next to the inference servers of a node."""

from __future__ import annotations

import httpx
import pytest

from atroposlib.cli import inference_node_wandb_watcher as watcher
from atroposlib.client import RolloutClient
from tests.client.harness import registration


class Kept:
    def __init__(self):
        self.lines = []

    def log(self, metrics, step):
        self.lines.append((step, metrics))


def stop_after(monkeypatch, times):
    """Interrupt the command, as Ctrl-C does, at the given pause."""
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == times:
            raise KeyboardInterrupt

    monkeypatch.setattr(watcher.time, "sleep", sleep)
    return pauses


@pytest.mark.parametrize(
    "answers, healthy",
    [
        ({"/health_generate": 200}, True),
        ({"/health_generate": 503, "/health": 200}, False),
        ({"/health": 200}, True),
        ({}, False),
    ],
)
def test_a_server_is_healthy_if_it_generates_or_else_lives(answers, healthy):
    def answer(request):
        if request.url.port == 9001:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(answers.get(request.url.path, 404))

    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        assert watcher.is_generating(http, "http://localhost:9000") is healthy
        assert watcher.is_generating(http, "http://localhost:9001") is False


def test_health_is_logged_only_where_the_step_advanced(api, monkeypatch):
    pauses = stop_after(monkeypatch, 3)
    kept = Kept()
    with RolloutClient(api, give_up_after_s=0) as client:
        client.register(registration(starting_step=5))
        with pytest.raises(KeyboardInterrupt):
            watcher.watch(client, kept, 1, ["http://127.0.0.1:1"])
    assert kept.lines == [(5, {"server/server_health_1_0": 0})]
    assert pauses == [60.0] * 3


def test_the_run_of_a_node_stands_in_the_project_and_group_of_the_trainer(api):
    with RolloutClient(api, give_up_after_s=0) as client:
        client.register(registration(wandb_project="p", wandb_group="g"))
        run = watcher.wandb_run_of(client, 2)
    assert (run.name, run.project, run.group) == ("inf_node_2", "p", "g")


def test_without_a_project_it_waits(api, monkeypatch):
    stop_after(monkeypatch, 2)
    with RolloutClient(api, give_up_after_s=0) as client:
        with pytest.raises(KeyboardInterrupt):
            watcher.wandb_run_of(client, 0)


@pytest.mark.slow
def test_the_command_writes_a_wandb_run_without_an_account(api, monkeypatch, tmp_path, capfd):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    stop_after(monkeypatch, 1)
    with RolloutClient(api, give_up_after_s=0) as client:
        client.register(registration(wandb_project="p", wandb_group="g"))
    assert watcher.main(["--api_addr", api, "--tp", "4", "--node_num", "1"]) == 130
    assert len(list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))) == 1
    assert "server/server_health_1_1 0" in capfd.readouterr().err  # wandb's summary at the end
