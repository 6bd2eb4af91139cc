"""kill -9 of environments, API, trainer and inference server of one run while samples end.

No two replies of the inference server are equal, so a sample that is trained on twice, or
never, is seen by its text. Items are finite: the run ends when all are trained on, however often
its processes were killed. Environments, server and trainer write books before the library acts.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from atroposlib.envs.journal.sample_journal import FOLDER as JOURNALS
from atroposlib.testing.tiny import write_tiny_model
from tests.torture.figures import Figures, fast_folder
from tests.torture.kills import booked_env
from tests.torture.kills.api_process import ApiProcess, free_port
from tests.torture.kills.booked_server import sent_tokens
from tests.torture.kills.booked_trainer import BOOK, CHECKPOINTS, GROUP, trained_groups
from tests.torture.kills.env_world import Process, until

ITEMS_PER_KILL = 10  # of each environment
KEPT_AFTER_S = 1.0  # a sample is kept from then on
ENVIRONMENTS = ("counted", "handed")
AWAY_S = 1.0  # longest time until a killed process is started again
WITHIN_S = 3600.0
QUIET_S = 60.0  # no batch for so long: nothing more will come


@dataclass
class Kills:
    """Times of kills, by process."""

    at: list[tuple[float, str]] = field(default_factory=list)

    def since(self, moment: float, env: str) -> float:
        """Seconds from ``moment`` to the next kill of ``env``."""
        return min(
            (at - moment for at, who in self.at if who == env and at >= moment), default=0
        )

    def of(self, part: str) -> int:
        """Number of kills of ``part``."""
        return sum(who == part for _, who in self.at)


class SampledRun:
    """All processes of one run, in one folder."""

    def __init__(self, folder: Path, items: int) -> None:
        self.folder, self.wanted = folder, items * len(ENVIRONMENTS)
        (folder / CHECKPOINTS).mkdir()
        os.environ[booked_env.ITEMS] = f"{items}"
        os.environ[booked_env.FOLDER] = str(folder)
        model, port = str(write_tiny_model(folder / "model")), free_port()
        self.api = ApiProcess(folder)
        inference = f"http://127.0.0.1:{port}"
        self.envs = {
            name: _environment(folder, name, self.api.port, inference, model)
            for name in ENVIRONMENTS
        }
        self.parts: dict[str, Process | ApiProcess] = {
            "API": self.api,
            "server": _booked(folder, "server", str(port)),
            "trainer": _booked(folder, "trainer", f"http://127.0.0.1:{self.api.port}"),
            **self.envs,
        }

    def start(self) -> None:
        for part in self.parts.values():
            part.start()

    def kill(self, name: str, away_s: float) -> None:
        """kill -9, and the same command again after a while."""
        self.parts[name].kill()
        time.sleep(away_s)
        self.parts[name].start()

    def samples(self) -> int:
        """Samples in the book of the environments."""
        book = self.folder / "book.txt"
        return len(book.read_bytes().splitlines()) if book.exists() else 0

    def is_over(self) -> bool:
        """Whether all items are trained on, or all but a few and none came for long."""
        groups = {(group.env, group.item) for group in trained_groups(self.folder)}
        book = self.folder / BOOK
        quiet_s = time.time() - book.stat().st_mtime if book.exists() else 0.0
        return len(groups) >= self.wanted or quiet_s > QUIET_S

    def is_indexed(self) -> bool:
        """Whether the balance sheet knows all that was trained on; its index follows the queue."""
        trained = sum(group.tokens for group in trained_groups(self.folder))
        return bool(self.account()["trained"] >= trained)

    def account(self) -> dict[str, Any]:
        """The balance sheet."""
        url = f"http://127.0.0.1:{self.api.port}/explore/account"
        account: dict[str, Any] = httpx.get(url, trust_env=False).json()
        return account

    def close(self) -> None:
        for name in (*ENVIRONMENTS, "trainer", "server", "API"):
            self.parts[name].kill()
        del os.environ[booked_env.ITEMS], os.environ[booked_env.FOLDER]


def sample_campaign(kills: int, seed: int) -> Figures:
    """Raises AssertionError at the first broken promise; otherwise the figures."""
    rng, begun, done = random.Random(seed), time.monotonic(), Kills()
    items = ITEMS_PER_KILL * max(kills, 2)
    with fast_folder() as folder:
        run = SampledRun(folder, items)
        try:
            run.start()
            while len(done.at) < kills and not run.is_over():
                _kill_next(run, rng, done)
            until(f"{run.wanted} groups; see {folder}", run.is_over, WITHIN_S)
            seconds = time.monotonic() - begun
            until("the index of the archive", run.is_indexed, WITHIN_S)
            account = run.account()
        finally:
            run.close()
        figures = _audit(folder, done, items)
        figures["s"] = seconds
        return _with_balance(figures, account, folder)


def _kill_next(run: SampledRun, rng: random.Random, done: Kills) -> None:
    """kill -9 of a part, after a sample ended since the last kill."""
    name = rng.choice([*run.parts, *ENVIRONMENTS])
    before = run.samples()
    until("a sample", lambda: run.samples() > before or _any_ended(run), WITHIN_S)
    time.sleep(rng.uniform(0.0, 2.0))
    done.at.append((time.time(), name))
    run.kill(name, rng.uniform(0.0, AWAY_S))


def _any_ended(run: SampledRun) -> bool:
    return any(env.exited for env in run.envs.values())


def _booked(folder: Path, part: str, address: str) -> Process:
    module = f"tests.torture.kills.booked_{part}"
    return Process(folder / f"{part}.log", sys.executable, "-m", module, str(folder), address)


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


def _with_balance(figures: Figures, account: dict[str, Any], folder: Path) -> Figures:
    """``figures`` with those of the balance sheet, which has to be exact.

    What the dead processes had not reported yet is known to the server alone.
    """
    returned = sent_tokens(folder)
    trained = sum(group.tokens for group in trained_groups(folder))
    figures["tokens returned"] = returned
    figures["tokens not reported by the dead"] = returned - account["generated"]
    figures["tokens trained"] = account["trained"]
    figures["tokens of unknown end"] = account["unknown"]
    figures["tokens supplied"] = account["supplied"]
    states = sum(line["tokens"] for line in account["lines"]) + account["unknown"]
    assert states == account["generated"] + account["supplied"], account
    assert account["generated"] <= returned, account
    assert account["trained"] == trained, (trained, account)
    assert account["unknown"] == account["supplied"] == 0, account
    return figures


def _audit(folder: Path, kills: Kills, wanted: int) -> Figures:
    lines = [line.split() for line in (folder / "book.txt").read_text().splitlines()]
    finished = {(env, answer): float(at) for env, _, answer, at in lines}
    groups = trained_groups(folder)
    trained = Counter((group.env, answer) for group in groups for answer in group.answers)
    items = Counter((group.env, group.item) for group in groups)
    # The group had arrived when its environment was killed: a sample that was drawn again is later.
    last: dict[tuple[str, str], float] = {}
    for group in groups:
        number = re.findall(r"\d+", group.item)[-1]
        ends = [finished[group.env, answer] for answer in group.answers]
        last[group.env, number] = max(ends)
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
    for part in ("API", "server", "trainer", *ENVIRONMENTS):
        figures[f"kills of {part}"] = kills.of(part)
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
    figures["journals left"] = len(list((folder / CHECKPOINTS / JOURNALS).iterdir()))
    handed = figures["items handed out in the instant of a kill"]
    assert handed <= kills.of("handed"), figures
    for name in (
        "items skipped",
        "items trained twice",
        "samples trained twice",
        "ghosts",
        "lost",
    ):
        assert figures[name] == 0, figures.line("journal")
    return figures
