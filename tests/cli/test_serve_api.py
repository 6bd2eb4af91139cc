"""run-api as a real process: it starts, it refuses, it survives kill -9."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import threading
from contextlib import suppress

import httpx
import pytest

from atroposlib.cli import run_api, serve_api
from atroposlib.client import AsyncRolloutClient, RolloutClient
from atroposlib.errors import ConfigError
from tests.api.processes import BATCH, registration, serving, without_variables

__all__ = ["without_variables"]


def group(name, rows=4):
    return {
        "tokens": [[1, 7]] * rows,
        "masks": [[-100, 7]] * rows,
        "scores": [0.5] * rows,
        "group_id": name,
        "idempotency_key": name,
    }


class Poster:
    """Post until stopped and record the acknowledged groups; retry through restarts."""

    def __init__(self, url, lane):
        self.acknowledged = []
        self.stop = threading.Event()
        self._lane = lane
        self._url = url
        self.thread = threading.Thread(target=lambda: asyncio.run(self._post()))

    async def _post(self):
        client = AsyncRolloutClient(self._url, on_wait=lambda _: None)
        while not self.stop.is_set():
            name = f"{self._lane}/{len(self.acknowledged)}"
            await client.send_groups([group(name)])
            self.acknowledged.append(name)
        await client.close()


@pytest.mark.alone
def test_kill_9_loses_no_acknowledged_group_and_delivers_no_group_twice(tmp_path):
    with serving(tmp_path) as (process, url):
        trainer = RolloutClient(url, on_wait=lambda _: None)
        trainer.register(registration())
        process.send_signal(signal.SIGKILL)
    port = int(url.rsplit(":", 1)[1])
    posters = [Poster(url, lane) for lane in range(3)]
    for poster in posters:
        poster.thread.start()
    trained = {}
    try:
        for life in range(5):
            with serving(tmp_path, port=port) as (process, _):
                trainer.register(
                    registration()
                )  # batches claimed by an earlier trainer are redelivered
                for _ in range(6):
                    batch = trainer.claim(wait_s=10)
                    if life % 2 and not trained.get(batch.batch_no):
                        break  # trainer and API die between the claim and its ack
                    trained[batch.batch_no] = [one.group_id for one in batch.batch]
                    trainer.ack(batch)
                process.send_signal(signal.SIGKILL)
    finally:
        for poster in posters:
            poster.stop.set()
        # The posters wait for an API to give their last group to.
        with serving(tmp_path, port=port) as (process, _):
            for poster in posters:
                poster.thread.join()
            trainer.register(registration())
            while (batch := trainer.claim(wait_s=0)).batch:
                trained[batch.batch_no] = [one.group_id for one in batch.batch]
                trainer.ack(batch)
            left = trainer.status().queued_sequences // 4
    trainer.close()
    delivered = [name for names in trained.values() for name in names]
    acknowledged = [name for poster in posters for name in poster.acknowledged]
    assert len(acknowledged) > 20
    assert len(delivered) == len(set(delivered))
    assert set(delivered) <= set(acknowledged)
    assert len(set(acknowledged) - set(delivered)) == left < BATCH // 4


@pytest.mark.slow
def test_a_trainer_and_an_environment_survive_a_restart(tmp_path):
    waits = []
    with serving(tmp_path) as (_, url):
        trainer = RolloutClient(url, on_wait=waits.append)
        first = trainer.register(registration())
    port = int(url.rsplit(":", 1)[1])
    claimed = []
    claim = threading.Thread(target=lambda: claimed.append(trainer.claim(wait_s=0)))
    claim.start()
    with serving(tmp_path, port=port):
        claim.join()
        assert claimed[0].batch is None and "empty" in claimed[0].blocked_reason
        assert trainer.status().run_id == first.run_id
    trainer.close()
    assert all(f"waiting for rollout API at {url}" in line for line in waits)


@pytest.mark.slow
def test_fresh_wipes_the_store_and_otherwise_the_start_reports_the_resumed_run(tmp_path):
    with serving(tmp_path) as (_, url):
        client = RolloutClient(url)
        client.register(registration())
        client.close()
    with serving(tmp_path) as (process, _):
        assert "resumed run" in process.stdout.readline()
    with serving(tmp_path, "--fresh") as (_, url):
        assert httpx.get(url + "/status", trust_env=False).json()["state"] == "EMPTY"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_shuts_the_api_down_cleanly(tmp_path, number):
    with open(tmp_path / "log", "w") as log:
        with serving(tmp_path / "data", stderr=log) as (process, _):
            process.send_signal(number)
            assert process.wait(timeout=600) == 0
    assert (tmp_path / "log").read_text() == ""
    assert not list((tmp_path / "data").glob("*-wal"))


@pytest.mark.slow
def test_the_reloading_api_answers_and_ends_by_a_signal(tmp_path):
    with serving(tmp_path / "data", "--reload") as (process, url):
        while not port_answers(int(url.rpartition(":")[2])):  # a child binds it
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"exit status {process.wait(timeout=0.05)}")
        assert httpx.get(url, trust_env=False).json() == {"message": "AtroposLib API"}
        process.send_signal(signal.SIGINT)  # ends the child as well
        assert process.wait(timeout=600) == 0


async def in_flight(http, url, calls):
    """Wait until the API has that many calls in flight, this request included."""
    while True:
        page = (await http.get(url + "/metrics")).text
        found = re.search(r"^\w+_in_flight (\d+)", page, re.MULTILINE)
        if int(found[1]) >= calls:
            return


@pytest.mark.slow
async def test_a_sigterm_answers_waiting_claims_and_ends_streams(tmp_path):
    with serving(tmp_path) as (process, url):
        async with httpx.AsyncClient(trust_env=False, timeout=600) as http:
            body = registration().model_dump()
            generation = (await http.post(url + "/register", json=body)).json()["generation"]
            claim = {"generation": generation, "wait_s": 30}
            waits = [
                asyncio.create_task(http.post(url + "/batches/claim", json=claim)),
                asyncio.create_task(http.get(url + "/events")),
            ]
            await in_flight(http, url, 3)
            process.send_signal(signal.SIGTERM)
            claimed, streamed = await asyncio.gather(*waits)
        assert claimed.status_code == 200 and claimed.json()["batch"] is None
        assert streamed.status_code == 200
        assert process.wait(timeout=600) == 0
    assert [path for path in tmp_path.iterdir() if path.name.endswith("-wal")] == []


@pytest.mark.slow
async def test_a_second_signal_ends_a_shutdown_that_waits_for_a_reply(tmp_path):
    with serving(tmp_path) as (process, url):
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /scored_data HTTP/1.1\r\nhost: localhost\r\n")
        writer.write(b"content-length: 9\r\n\r\n")
        async with httpx.AsyncClient(trust_env=False) as http:
            await in_flight(http, url, 2)
        process.send_signal(signal.SIGTERM)
        while port_answers(int(port)):
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=600) == -signal.SIGTERM
        writer.close()
    # The store was not closed, which is safe: the next start recovers from the log.
    assert [path for path in tmp_path.iterdir() if path.name.endswith("-wal")]
    with serving(tmp_path) as (_, url):
        assert httpx.get(url + "/status", trust_env=False).status_code == 200


def port_answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_port_in_use_prints_one_line_and_exits_with_1(without_variables, capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as owner:
        port = owner.getsockname()[1]
        assert run_api.main(["--port", str(port), "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"run-api: cannot listen on 127.0.0.1:{port}: Address already in use "
        "(stop its owner or choose another --port)\n"
    )


@pytest.mark.slow
def test_a_data_directory_in_use_prints_one_line_and_exits_with_1(
    without_variables, capsys, tmp_path
):
    with serving(tmp_path) as (process, _):
        assert run_api.main(["--port", "0", "--data-dir", str(tmp_path)]) == 1
        assert f"is in use by process {process.pid} on" in capsys.readouterr().err


def test_limits_that_let_no_request_through_are_refused(monkeypatch):
    monkeypatch.setattr(serve_api.resource, "getrlimit", lambda _: (128, 128))
    monkeypatch.setattr(serve_api.resource, "setrlimit", lambda *_: None)
    with pytest.raises(ConfigError, match="0 connections are too few.*ulimit -n"):
        serve_api._connections(200)
    monkeypatch.setattr(serve_api.resource, "getrlimit", lambda _: (10_000, 10_000))
    with pytest.raises(ConfigError, match="--max-connections is 1"):
        serve_api._connections(1)
    assert serve_api._connections(200) == (200, 800)
