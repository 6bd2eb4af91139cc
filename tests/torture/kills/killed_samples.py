"""kill -9 of environments and of the API while samples end, audited against the environments' book.

No two replies of the inference server are equal, so a sample that is trained on twice, or
never, is seen by its text. Items are finite: the run ends when all are trained on, however often
its processes were killed.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from atroposlib.client import RolloutClient
from atroposlib.envs.journal.sample_journal import FOLDER as JOURNALS
from atroposlib.testing.fake_inference import FakeInference
from atroposlib.testing.tiny import char_tokenizer, write_tiny_model
from atroposlib.wire import MASKED, Registration
from tests.torture.figures import Figures, fast_folder
from tests.torture.kills import booked_env
from tests.torture.kills.api_process import ApiProcess
from tests.torture.kills.env_world import Process, until

GROUP = 4
ITEMS_PER_KILL = 10  # of each environment
KEPT_AFTER_S = 1.0  # a sample is kept from then on
ENVIRONMENTS = ("counted", "handed")
WITHIN_S = 3600.0
QUIET_S = 60.0  # no batch for so long: nothing more will come


class Answers:
    """Numbers in the order of the requests."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __call__(self, prompt: str, index: int) -> str:
        with self._lock:
            return f"{next(self._numbers)}"


class Trainer(threading.Thread):
    """Claims groups, notes item and answers, and acks."""

    def __init__(self, url: str, checkpoints: Path) -> None:
        super().__init__(name="trainer", daemon=True)
        # By number of the batch, whose ack may be repeated: environment, item, answers.
        self.batches: dict[int | None, list[tuple[str, str, list[str]]]] = {}
        self.last_batch_at = time.monotonic()
        self.stop = threading.Event()
        self.client = RolloutClient(url, on_wait=lambda why: None)
        self._tokenizer = char_tokenizer()
        sizes = {"batch_size": GROUP, "max_token_len": 64, "save_checkpoint_interval": 0}
        words = {"wandb_group": "", "wandb_project": "", "checkpoint_dir": str(checkpoints)}
        run = {"starting_step": 0, "num_steps": 10**6}
        self.client.register(Registration.model_validate(sizes | words | run))

    def run(self) -> None:
        while not self.stop.is_set():
            claimed = self.client.claim(wait_s=0.5)
            if claimed.batch is None:
                continue
            self.last_batch_at = time.monotonic()
            self.batches[claimed.batch_no] = [
                (
                    str((group.metadata or {})["env"]),
                    str((group.metadata or {})["item"]),
                    [
                        self._tokenizer.decode(
                            [t for t in labels if t != MASKED], skip_special_tokens=True
                        )
                        for labels in group.masks
                    ],
                )
                for group in claimed.batch
            ]
            self.client.ack(claimed)

    @property
    def trained(self) -> list[tuple[str, str, list[str]]]:
        """Groups of all batches."""
        return [group for batch in [*self.batches.values()] for group in batch]


@dataclass
class Kills:
    """Times of kills, by process."""

    at: list[tuple[float, str]] = field(default_factory=list)

    def since(self, moment: float, env: str) -> float:
        """Seconds from ``moment`` to the next kill of ``env``."""
        return min(
            (at - moment for at, who in self.at if who == env and at >= moment), default=0
        )


def sample_campaign(kills: int, seed: int) -> Figures:
    """Raises AssertionError at the first broken promise; otherwise the figures."""
    rng, begun = random.Random(seed), time.monotonic()
    fake = FakeInference(reply=Answers())
    with fast_folder() as folder, fake.running() as inference:
        api = ApiProcess(folder)
        api.start()
        (folder / "checkpoints").mkdir()
        trainer = Trainer(f"http://127.0.0.1:{api.port}", folder / "checkpoints")
        trainer.start()
        os.environ[booked_env.ITEMS] = f"{ITEMS_PER_KILL * max(kills, 2)}"
        os.environ[booked_env.FOLDER] = str(folder)
        model = str(write_tiny_model(folder / "model"))
        envs = {
            name: _environment(folder, name, api.port, inference, model)
            for name in ENVIRONMENTS
        }
        done = Kills()
        try:
            for env in envs.values():
                env.start()
            wanted = len(envs) * int(os.environ[booked_env.ITEMS])
            while len(done.at) < kills and len(trainer.trained) < wanted:
                _kill(rng.choice([*envs, *envs, "api"]), rng, done, api, envs, folder)
            until(
                f"{wanted} groups; see {folder}", lambda: _is_over(trainer, wanted), WITHIN_S
            )
            seconds = time.monotonic() - begun
            account = _account(api.port)
        finally:
            trainer.stop.set()
            for env in envs.values():
                env.kill()
            trainer.join(10)
            trainer.client.close()
            api.kill()
            del os.environ[booked_env.ITEMS], os.environ[booked_env.FOLDER]
        figures = _audit(folder, trainer, done, wanted // len(envs))
        figures["s"] = seconds
        return _with_balance(figures, account, fake.returned_tokens)


def _is_over(trainer: Trainer, wanted: int) -> bool:
    """Whether all items are trained on, or all but a few and none came for long."""
    groups = len({(env, item) for env, item, _ in trainer.trained})
    return groups >= wanted or time.monotonic() - trainer.last_batch_at > QUIET_S


def _kill(
    who: str,
    rng: random.Random,
    done: Kills,
    api: ApiProcess,
    envs: dict[str, Process],
    folder: Path,
) -> None:
    before = _lines(folder)
    until("a sample", lambda: _lines(folder) > before or _all_handed(envs), 60.0)
    time.sleep(rng.uniform(0.0, 2.0))
    done.at.append((time.time(), who))
    if who == "api":
        api.kill()
        api.start()
    else:
        envs[who].kill()
        envs[who].start()


def _all_handed(envs: dict[str, Process]) -> bool:
    return any(env.exited for env in envs.values())


def _lines(folder: Path) -> int:
    book = folder / "book.txt"
    return len(book.read_bytes().splitlines()) if book.exists() else 0


def _environment(folder: Path, name: str, port: int, inference: str, model: str) -> Process:
    flags = {
        "env.rollout_server_url": f"http://127.0.0.1:{port}",
        "env.tokenizer_name": model,
        "env.group_size": f"{GROUP}",
        "env.max_num_workers": "4",
        "env.max_token_length": "64",
        "env.max_batches_offpolicy": "8",
        "env.total_steps": str(10**6),
        "env.use_wandb": "false",
        "env.steps_per_eval": "0",
        "openai.base_url": f"{inference}/v1",
        "openai.model_name": "fake",
        "openai.server_type": "vllm",
    }
    words = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
    command = [sys.executable, "-m", "tests.torture.kills.booked_env", name, "serve", *words]
    return Process(folder / f"{name}.log", *command)


def _account(port: int) -> dict[str, Any]:
    """The balance sheet of the run."""
    url = f"http://127.0.0.1:{port}/explore/account"
    account: dict[str, Any] = httpx.get(url, trust_env=False).json()
    return account


def _with_balance(figures: Figures, account: dict[str, Any], returned: int) -> Figures:
    """``figures`` with those of the balance sheet; ``returned``: tokens by the server's count.

    What the dead processes had not reported yet is known to the server alone.
    """
    figures["tokens returned"] = returned
    figures["tokens not reported by the dead"] = returned - account["generated"]
    figures["tokens trained"] = account["trained"]
    figures["tokens of unknown end"] = account["unknown"]
    figures["tokens supplied"] = account["supplied"]
    states = sum(line["tokens"] for line in account["lines"]) + account["unknown"]
    assert states == account["generated"] + account["supplied"], account
    assert account["generated"] <= returned, account
    assert account["unknown"] == account["supplied"] == 0, account
    return figures


def _audit(folder: Path, trainer: Trainer, kills: Kills, wanted: int) -> Figures:
    lines = [line.split() for line in (folder / "book.txt").read_text().splitlines()]
    finished = {(env, answer): float(at) for env, _, answer, at in lines}
    trained = Counter(
        (env, answer) for env, _, answers in trainer.trained for answer in answers
    )
    items = Counter((env, item) for env, item, _ in trainer.trained)
    # The group had arrived when its environment was killed: a sample that was drawn again is later.
    last: dict[tuple[str, str], float] = {}
    for env, item, answers in trainer.trained:
        number = re.findall(r"\d+", item)[-1]
        last[env, number] = max(finished[env, answer] for answer in answers)
    untrained = [
        (env, item, answer) for env, item, answer, _ in lines if (env, answer) not in trained
    ]
    late = [
        (env, answer)
        for env, item, answer in untrained
        if finished[env, answer] > last.get((env, item), float("inf"))
    ]
    lost = [(env, answer) for env, _, answer in untrained if (env, answer) not in late]
    early = [s for s in lost if kills.since(finished[s], s[0]) > KEPT_AFTER_S]
    figures = Figures()
    figures["kills"] = len(kills.at)
    figures["kills of the API"] = sum(who == "api" for _, who in kills.at)
    figures["samples finished"] = len(finished)
    figures["items trained"] = len(items)
    numbers = {env: {item for name, item in items if name == env} for env in ENVIRONMENTS}
    figures["items skipped"] = wanted - len(numbers["counted"])
    # Its own count of items is saved before the journal knows of the next: see booked_env.
    figures["items handed out in the instant of a kill"] = wanted - len(numbers["handed"])
    figures["items trained twice"] = sum(count - 1 for count in items.values())
    figures["samples trained twice"] = sum(count - 1 for count in trained.values())
    figures["ghosts"] = len(trained.keys() - finished.keys())
    figures["lost"] = len(early)
    figures["lost of the last second before a kill"] = len(lost) - len(early)
    figures["drawn again for a group that had arrived"] = len(late)
    figures["journals left"] = len(list((folder / "checkpoints" / JOURNALS).iterdir()))
    handed_kills = sum(who == "handed" for _, who in kills.at)
    assert figures["items handed out in the instant of a kill"] <= handed_kills, figures
    for name in (
        "items skipped",
        "items trained twice",
        "samples trained twice",
        "ghosts",
        "lost",
    ):
        assert figures[name] == 0, figures.line("journal")
    return figures
