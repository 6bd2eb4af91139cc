"""Announcement of an inference server: heartbeats that list it in the rollout API's directory.

    python -m atroposlib.client.announce --api URL --name inference-0 --url http://host:port \\
        -- COMMAND ...

The command, which starts the server, replaces this process, so that signals and its exit status
are its own. A child sends the heartbeats while that process lives and answers GET /health; at its
end it takes the server off the list.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing

import httpx

from atroposlib.client.trainer import RolloutClient
from atroposlib.errors import ConfigError
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import API_TOKEN, CommandParser
from atroposlib.utils.command.signals import on_signals
from atroposlib.wire import Announcement, Heartbeat
from atroposlib.wire.numbers import natural_of

PROG = "announce"
BEAT_S = 2.0
PROBE_TIMEOUT_S = 5.0
VERSION_ROUTES = ("/weight_info", "/server_info")  # local server and vLLM, SGLang
BESIDE = "--beside"  # the process whose server is announced


def main(argv: Sequence[str] | None = None) -> int:
    """Become the command, after the start of the announcing child; or be that child."""
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)
    options = parse_args(words[:end])
    logs.configure(PROG, options.log_format, options.log_level)
    if options.beside is None:
        start_announcing(options.api, options.name, options.url)
        os.execvp(words[end + 1], words[end + 1 :])
    stop = threading.Event()
    on_signals(lambda _: stop.set(), signal.SIGTERM, signal.SIGINT)
    send_heartbeats(
        options.api, options.name, options.url, stop, lambda: os.getppid() == options.beside
    )
    return 0


def start_announcing(api: str, name: str, url: str) -> None:
    """Announce the server of this process, or of the program that replaces it."""
    own = ["--api", api, "--name", name, "--url", url, BESIDE, str(os.getpid())]
    subprocess.Popen([sys.executable, "-m", __spec__.name, *own], stdin=subprocess.DEVNULL)


def parse_args(words: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(prog=PROG, description=__doc__, variables=(API_TOKEN,))
    add = parser.add_argument
    add(
        "--api",
        required=True,
        help="address of the rollout API, or file:///PATH of a file with it",
    )
    add("--name", required=True, help="of the server, the same at each of its starts")
    add("--url", required=True, help="address under which others reach the server")
    add(BESIDE, type=int, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def send_heartbeats(
    api: str, name: str, url: str, stop: threading.Event, lives: Callable[[], bool]
) -> None:
    """Send heartbeats until ``stop`` is set or the server's process is gone."""
    instance, started = uuid.uuid4().hex, time.time()

    def beat(**last: int) -> Heartbeat:
        known = Announcement(url=url, instance=instance, started=started, version=version)
        return Heartbeat(
            role="inference",
            name=name,
            phase="ended" if last else "serving",
            waiting_on=None,
            details=dict(last),
            announces=known,
        )

    version, client = None, None
    with httpx.Client(base_url=url, timeout=PROBE_TIMEOUT_S, trust_env=False) as server:
        while lives() and not stop.is_set():
            client = client or _client(api)
            if client is not None and is_server_healthy(server):
                version = served_version(server)
                client.heartbeat(beat())
            stop.wait(BEAT_S)
    if client is not None:
        with closing(client):
            client.heartbeat(beat(ended=1))


def is_server_healthy(server: httpx.Client) -> bool:
    try:
        return server.get("/health").is_success
    except httpx.HTTPError:
        return False


def served_version(server: httpx.Client) -> int | None:
    """The version of the server's weights, if it reports a number."""
    for route in VERSION_ROUTES:
        try:
            answer = server.get(route)
            text = str(answer.json()["weight_version"]) if answer.is_success else ""
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            continue
        if (version := natural_of(text)) is not None:
            return version
    return None


def _client(api: str) -> RolloutClient | None:
    """A client; None while the file of the address does not exist."""
    try:
        return RolloutClient(api)
    except ConfigError:
        return None


if __name__ == "__main__":
    sys.exit(main())
