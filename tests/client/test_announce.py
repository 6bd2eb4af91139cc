from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from atroposlib.client import RolloutClient
from tests.client.harness import announced, served_api
from tests.serving import WAIT_S

CHILD = "import os, sys; print(os.getpid(), flush=True); os.read(0, 1); sys.exit(7)"
COMMAND = [sys.executable, "-m", "atroposlib.client.announce"]


def until_listed(client: RolloutClient, names: list[str]) -> list[str]:
    """Wait until the directory has these names; their addresses."""
    end = time.monotonic() + WAIT_S
    while True:
        listed = client.servers()
        if listed is not None and [one.name for one in listed.servers] == names:
            return [one.url for one in listed.servers]
        assert time.monotonic() < end, listed
        time.sleep(0.02)


def test_a_server_is_listed_while_it_answers_and_not_after_its_end():
    with served_api() as api, served_api() as server, RolloutClient(api) as client:
        with announced(api, "gpu1", server):
            assert until_listed(client, ["gpu1"]) == [server]
        assert until_listed(client, []) == []


def test_an_api_that_comes_later_is_found_by_the_file_of_its_address(tmp_path: Path):
    file = tmp_path / "api"
    with served_api() as server, announced(file.as_uri(), "gpu1", server):
        with served_api() as api, RolloutClient(api) as client:
            file.write_text(api)
            assert until_listed(client, ["gpu1"]) == [server]


def test_the_command_keeps_its_process_and_exit_status_and_ends_the_entry():
    with served_api() as api, RolloutClient(api) as client:
        own = ["--api", api, "--name", "gpu1", "--url", api, "--"]
        sleeps = [sys.executable, "-S", "-c", CHILD]
        with subprocess.Popen(
            [*COMMAND, *own, *sleeps],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ,
        ) as process:
            assert process.stdin and process.stdout
            until_listed(client, ["gpu1"])
            process.stdin.close()
            until_listed(client, [])
            assert process.wait(WAIT_S) == 7
            assert int(process.stdout.readline() or 0) == process.pid
