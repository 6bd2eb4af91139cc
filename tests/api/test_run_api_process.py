"""run-api as a real process: it starts, it refuses, it survives kill -9."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx
import pytest

from atroposlib.cli import run_api
from atroposlib.client import AsyncRolloutClient, RolloutClient
from atroposlib.wire import Registration

BATCH = 8


def command(*options):
    return [sys.executable, "-m", "atroposlib.cli.run_api", *options]


@contextmanager
def serving(folder, *options, port=0):
    """A process that serves, with its URL, killed at the end."""
    process = subprocess.Popen(
        command("--port", str(port), "--data-dir", str(folder), *options),
        stdout=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if not k.startswith("ATROPOS_")},
    )
    try:
        line = process.stdout.readline()
        yield process, re.search(r"http://\S+?:\d+", line)[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def registration(**more):
    return Registration(
        wandb_group="",
        wandb_project="",
        batch_size=BATCH,
        max_token_len=64,
        checkpoint_dir="",
        save_checkpoint_interval=1,
        starting_step=0,
        num_steps=10,
        **more,
    )


def group(name, rows=4):
    return {
        "tokens": [[1, 7]] * rows,
        "masks": [[-100, 7]] * rows,
        "scores": [0.5] * rows,
        "group_id": name,
        "idempotency_key": name,
    }


class Poster:
    """Posts until told to stop, noting what was acknowledged; retries through restarts."""

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


@pytest.mark.slow
def test_kill_9_loses_nothing_acknowledged_and_delivers_nothing_twice(tmp_path):
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
                for _ in range(6):
                    batch = trainer.claim(wait_s=10)
                    if life % 2 and not trained.get(batch.batch_no):
                        process.send_signal(signal.SIGKILL)  # between the claim and its ack
                        break
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
def test_fresh_forgets_and_otherwise_the_start_says_what_it_resumed(tmp_path):
    with serving(tmp_path) as (_, url):
        client = RolloutClient(url)
        client.register(registration())
        client.close()
    with serving(tmp_path) as (process, _):
        assert "resumed run" in process.stdout.readline()
    with serving(tmp_path, "--fresh") as (_, url):
        assert httpx.get(url + "/status", trust_env=False).json()["state"] == "EMPTY"


@pytest.mark.slow
def test_a_sigterm_ends_it_cleanly(tmp_path):
    with serving(tmp_path) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) in (0, -signal.SIGTERM)


@pytest.fixture
def nothing_set(monkeypatch):
    for name in [name for name in os.environ if name.startswith("ATROPOS_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def test_a_taken_port_is_one_line_and_exit_1(nothing_set, capsys, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as owner:
        port = owner.getsockname()[1]
        assert run_api.main(["--port", str(port), "--data-dir", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"run-api: port {port} on 127.0.0.1 is taken: stop its owner or choose another --port\n"
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_listening_beyond_this_machine_must_be_asked_for(nothing_set, capsys, host):
    assert run_api.main(["--host", host]) == 1
    assert "--allow-remote" in capsys.readouterr().err


@pytest.mark.slow
def test_a_data_directory_in_use_is_one_line_and_exit_1(nothing_set, capsys, tmp_path):
    with serving(tmp_path) as (process, _):
        assert run_api.main(["--port", "0", "--data-dir", str(tmp_path)]) == 1
        assert f"belongs to process {process.pid}" in capsys.readouterr().err


def test_options_come_from_the_environment_unless_given(nothing_set):
    nothing_set.setenv("ATROPOS_PORT", "8123")
    nothing_set.setenv("ATROPOS_STORE", "memory")
    options = run_api._parser().parse_args([])
    assert (options.host, options.port, options.store) == ("127.0.0.1", 8123, "memory")
    assert run_api._parser().parse_args(["--port", "9"]).port == 9
