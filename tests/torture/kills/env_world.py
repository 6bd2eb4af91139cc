"""A whole run as processes, for faults: run-api, an inference server, an environment; and a
trainer that claims. What the environment finished is in its file of groups, key by key."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import apsw
import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from atroposlib.client import RolloutClient
from atroposlib.errors import NotRegistered, StaleGeneration
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.wire import Registration
from tests.torture.kills.api_process import ApiProcess, free_port

REPO = Path(__file__).resolve().parents[3]
WITHIN_S = 600.0
GROUP, BATCH = 4, 8  # sequences
QUIET = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def until(what: str, is_true: Callable[[], object], within_s: float = WITHIN_S) -> float:
    """Seconds until ``is_true``."""
    begun = time.monotonic()
    while not is_true():
        assert time.monotonic() < begun + within_s, f"waited {within_s:g} s for {what}"
        time.sleep(0.02)
    return time.monotonic() - begun


class Process:
    """A command that is ended in some way and started again; its output goes to one file."""

    def __init__(self, log: Path, *command: str) -> None:
        self.log = log
        self._command = command
        self._running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        settings = {k: v for k, v in os.environ.items() if not k.startswith("ATROPOS_")}
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=settings | QUIET, cwd=REPO
            )

    def end(self, number: signal.Signals, within_s: float = WITHIN_S) -> int:
        """Send the signal; the exit status."""
        assert self._running is not None
        self._running.send_signal(number)
        return self._running.wait(within_s)

    @property
    def exited(self) -> bool:
        return self._running is not None and self._running.poll() is not None

    def kill(self) -> None:
        if self._running is not None and self._running.poll() is None:
            self._running.kill()
            self._running.wait()


class Gateway:
    """Passes calls on to the API, or answers 503 while ``refuses``."""

    def __init__(self, api_url: str) -> None:
        self.refuses = False
        self.refused = self.passing = 0
        self._http = httpx.AsyncClient(base_url=api_url, trust_env=False, timeout=600)
        methods = ["GET", "POST"]
        self.app = Starlette(
            routes=[Route("/{path:path}", self._pass, methods=methods)], lifespan=self._life
        )

    @asynccontextmanager
    async def _life(self, _: Starlette) -> AsyncIterator[None]:
        async with self._http:
            yield

    async def _pass(self, request: Request) -> Response:
        body = await request.body()
        self.passing += 1  # before it looks at ``refuses``, which another thread changes
        try:
            if self.refuses:
                self.refused += 1
                return Response("try later", 503)
            answer = await self._http.request(
                request.method,
                request.url.path,
                content=body,
                headers=[h for h in request.headers.items() if h[0] != "host"],
            )
        except httpx.TransportError:
            return Response("the API is away", 503)
        finally:
            self.passing -= 1
        return Response(answer.content, answer.status_code, dict(answer.headers))

    @contextmanager
    def closed(self) -> Iterator[None]:
        """No call is on its way to the API, and none gets there."""
        self.refuses = True
        until("the calls on their way", lambda: not self.passing)
        yield
        self.refuses = False


class Trainer(threading.Thread):
    """Claims, notes the keys, announces a version, acks; registers again after a reset."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(name="trainer", daemon=True)
        self._folder = folder
        self.got: list[str] = []  # keys, in the order of their delivery
        self.batches: list[float] = []  # when each came, monotonic
        self.lock = threading.Lock()  # held while a batch is trained on
        self.stop = threading.Event()
        self._client = RolloutClient(url, on_wait=lambda why: None)

    def register(self) -> None:
        sizes = {"batch_size": BATCH, "max_token_len": 64, "save_checkpoint_interval": 0}
        words = {"wandb_group": "", "wandb_project": "", "checkpoint_dir": str(self._folder)}
        run = {"starting_step": 0, "num_steps": 10**6, "max_staleness": 3}
        self._client.register(Registration.model_validate(sizes | words | run))
        self._version = 0

    def reset(self) -> None:
        self._client.reset()

    def run(self) -> None:
        self.register()
        while not self.stop.is_set():
            try:
                with self.lock:
                    self._step(wait_s=0.5)
            except (NotRegistered, StaleGeneration):
                self.register()
            self.stop.wait(0.02)

    def drain(self) -> None:
        """Claim the remaining full batches after the environment has ended."""
        self.stop.set()
        self.join(WITHIN_S)
        while self._step(wait_s=0.0):
            pass
        self._client.close()

    def _step(self, wait_s: float) -> bool:
        claimed = self._client.claim(wait_s=wait_s)
        if claimed.batch is None:
            return False
        self._version += 1
        self._client.announce_version(self._version)
        if self._client.ack(claimed):
            self.got += [str(group.idempotency_key) for group in claimed.batch]
            self.batches.append(time.monotonic())
        return True


class World:
    """All of it, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.api = ApiProcess(folder)
        self.gateway = Gateway(f"http://127.0.0.1:{self.api.port}")
        self.trainer = Trainer(f"http://127.0.0.1:{self.api.port}", folder)
        self.wiped: set[str] = set()  # acknowledged, and reset away
        self.unsent_at_kill: set[str] = set()  # finished when the environment was killed
        model = str(write_tiny_model(folder / "model"))
        self._port = free_port()
        self.inference = Process(
            folder / "inference.log",
            *(sys.executable, "-m", "atroposlib.inference", "--model", model),
            *("--host", "127.0.0.1", "--port", str(self._port)),
        )
        self._model = model
        self.env = Process(folder / "env.log")  # its address is known later

    def point_environment_at(self, url: str) -> None:
        flags = {
            "env.rollout_server_url": url,
            "env.tokenizer_name": self._model,
            "env.group_size": str(GROUP),
            "env.max_num_workers": "4",
            "env.max_batches_offpolicy": "2",
            "env.total_steps": str(10**6),
            "env.use_wandb": "false",
            "env.steps_per_eval": "0",
            "env.data_path_to_save_groups": str(self.folder / "groups.jsonl"),
            "env.metrics_path": str(self.folder / "metrics.jsonl"),
            "openai.base_url": f"http://127.0.0.1:{self._port}/v1",
            "openai.model_name": self._model,
            "openai.server_type": "vllm",
        }
        words = [word for name, value in flags.items() for word in (f"--{name}", value)]
        script = str(REPO / "environments" / "copy_server.py")
        self.env = Process(self.folder / "env.log", sys.executable, script, "serve", *words)

    def inference_answers(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self._port}/health"
            return httpx.get(url, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def finished(self) -> list[str]:
        """The keys of all groups that the environment ever finished."""
        files = sorted(self.folder.glob("groups*.jsonl"))
        lines = [line for file in files for line in file.read_bytes().split(b"\n")[:-1]]
        return [json.loads(line)["idempotency_key"] for line in lines]

    def acknowledged(self) -> set[str]:
        """Keys in the queue's file, which its owner may be writing."""
        connection = apsw.Connection(str(self.folder / "data" / "queue.sqlite"))
        connection.set_busy_timeout(60_000)  # ms
        keys = {key for (key,) in connection.execute("SELECT key FROM groups") if key}
        connection.close()
        return keys

    def reset(self) -> None:
        """As an operator does it, while nothing is on its way, so that each key's fate is known."""
        with self.gateway.closed(), self.trainer.lock:
            self.wiped |= self.acknowledged()
            self.trainer.reset()

    def counted(self, name: str) -> int:
        """The last value of a metric that only grows, over all lives of the environment."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return max((int(json.loads(line).get(name, 0)) for line in lines), default=0)

    def next_batches(self, count: int = 20) -> float:
        """Seconds until so many more were trained on."""
        have = len(self.trainer.batches)
        wanted = f"{count} batches; see {self.env.log}"
        return until(
            wanted, lambda: len(self.trainer.batches) >= have + count or self.env.exited
        )

    def close(self) -> None:
        self.trainer.stop.set()
        self.env.kill()
        self.inference.kill()
        self.api.kill()
