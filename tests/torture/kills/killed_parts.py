"""kill -9 of trainer, inference server and rollout API of one run, mixed; only the killed one is
started again.

Real processes on one machine: API (SQLite), local inference server, copy environment, trainer
with a recovery checkpoint every second step. Each kill waits for a step since the one before.
In the end the steps that led to the final weights, followed backwards by the hashes of the
weights, must be 1 to the last, on batches 1 to the last, each group once.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from atroposlib.testing.tiny import write_tiny_model
from atroposlib.trackers.jsonl import read_steps
from tests.torture.figures import Figures, fast_folder
from tests.torture.kills.api_process import ApiProcess, free_port
from tests.torture.kills.env_world import Process, until

PARTS = ("trainer", "server", "API")
GROUP, BATCH = 4, 8  # sequences
STEPS_PER_KILL, LAST_STEPS = 5, 6
LATER_S = 0.5  # a kill comes up to so long after the step that it waits for
AWAY_S = (0.2, 3.0)  # how long a killed process stays away
STEP_WITHIN_S = 600.0
Settings = Mapping[str, object]  # flags without their dashes


class Run:
    """All processes of one run, in one folder."""

    def __init__(
        self,
        folder: Path,
        steps: int,
        trainer: Settings = MappingProxyType({}),
        envs: Sequence[Settings] = ({},),
        api: Sequence[str] = (),
    ) -> None:
        self.folder, self.steps = folder, steps
        model, port = str(write_tiny_model(folder / "model")), free_port()
        self.api = ApiProcess(folder, *api)
        api, server = f"http://127.0.0.1:{self.api.port}", f"http://127.0.0.1:{port}"
        serve = ("-m", "atroposlib.inference", "--model", model, "--threads", "1")
        self.server = self._process("server", *serve, "--port", str(port))
        self.envs = [
            self._process(f"env{n}", *_environment(api, server, model, one))
            for n, one in enumerate(envs)
        ]
        recorded = ("-m", "tests.torture.kills.recorded_trainer", str(folder / "record.jsonl"))
        self.trainer = self._process(
            "trainer", *recorded, *self._flags(api, server, model, trainer)
        )

    def _process(self, name: str, *command: str) -> Process:
        return Process(self.folder / f"{name}.log", sys.executable, *command)

    def _flags(self, api: str, server: str, model: str, more: Settings) -> list[str]:
        settings: dict[str, object] = {
            **{"model-name": model, "device": "cpu", "seq-len": 64, "lr": 1e-4},
            **{"batch-size": BATCH, "gradient-accumulation-steps": 1, "check-rows": 2},
            **{"training-steps": self.steps, "recover-every-steps": 2, "keep-recover": 2},
            **{"checkpoint-interval": 0, "atropos-url": api, "inference-urls": server},
            **{"save-path": self.folder / "saved", "log-dir": self.folder / "logs"},
            **{"run-name": "torture", **more},
        }
        return _words(settings)

    def start(self) -> None:
        self.api.start()
        for process in (self.server, self.trainer, *self.envs):
            process.start()

    def kill(self, part: str, away_s: float) -> None:
        """kill -9, and the same command again after a while."""
        process = {"trainer": self.trainer, "server": self.server}.get(part)
        (process or self.api).kill()
        time.sleep(away_s)
        (process or self.api).start()

    def records(self) -> list[dict[str, Any]]:
        path = self.folder / "record.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def trained(self) -> int:
        """Steps trained so far, repeated ones included; AssertionError if a process ended."""
        records = self.records()
        done = max((one["step"] for one in records), default=0)
        for process in (
            self.server,
            *self.envs,
            *([self.trainer] if done < self.steps else []),
        ):
            told = process.log.read_text(errors="replace")[-3000:] if process.exited else ""
            assert not process.exited, f"{process.log.name}: {told}"
        return len(records)

    def taken_back(self) -> int:
        """How often the trainer gave a lost server the current weights."""
        return self.trainer.log.read_text(errors="replace").count("takes part")

    def close(self) -> None:
        for process in (*self.envs, self.trainer, self.server):
            process.kill()
        self.api.kill()


def _words(settings: Settings) -> list[str]:
    return [
        word for name, value in settings.items() for word in (f"--{name}", *str(value).split())
    ]


def _environment(api: str, server: str, model: str, more: Settings) -> list[str]:
    flags: dict[str, object] = {
        **{"env.rollout_server_url": api, "env.tokenizer_name": model},
        **{"env.group_size": GROUP, "env.max_num_workers": 4, "env.total_steps": 10**6},
        **{"env.max_batches_offpolicy": 2, "env.use_wandb": "false"},
        **{"env.steps_per_eval": 0, "openai.base_url": f"{server}/v1"},
        **{"openai.model_name": model, "openai.server_type": "vllm", **more},
    }
    return ["-m", "tests.torture.kills.slow_env", "serve", *_words(flags)]


def lineage(records: list[dict[str, Any]], steps: int) -> list[dict[str, Any]]:
    """The steps that led to the last weights, first to last, by the hashes of the weights."""
    line: list[dict[str, Any]] = []
    wanted: str | None = None
    for step in range(steps, 0, -1):
        of_step = [one for one in records if one["step"] == step]
        found = [one for one in of_step if wanted in (None, one["after"])]
        assert found, f"no record of step {step} led to the weights {wanted}"
        line.append(found[-1])
        wanted = found[-1]["before"]
    return line[::-1]


def audit(records: list[dict[str, Any]], steps: int) -> Figures:
    """Figures of the steps; AssertionError at a broken promise."""
    line = lineage(records, steps)
    keys = Counter(key for one in line for key in one["keys"])
    contents: dict[int, set[str]] = {}
    for one in records:
        contents.setdefault(one["batch_no"], set()).add(one["batch"])
    figures = Figures()
    figures["trained twice"] = sum(count - 1 for count in keys.values())
    figures["skipped"] = sum(n != one["batch_no"] for n, one in enumerate(line, 1))
    figures["changed batches"] = sum(len(seen) > 1 for seen in contents.values())
    for name, count in figures.items():
        assert count == 0, f"{count} {name}"
    figures["steps"], figures["groups"] = steps, len(keys)
    figures["steps replayed"] = len(records) - steps
    return figures


def mixed_campaign(kills: int, seed: int) -> Figures:
    """Raises AssertionError at the first broken promise; otherwise the figures."""
    rng = random.Random(seed)
    order = [PARTS[n % len(PARTS)] for n in range(kills)]
    rng.shuffle(order)
    steps = STEPS_PER_KILL * kills + LAST_STEPS
    with fast_folder() as folder:
        run = Run(folder, steps)
        recover_s = []
        try:
            run.start()
            for n, part in enumerate(order):
                have = run.trained()
                waited = f"a step; {part} is killed next, as number {n + 1}"
                recover_s.append(until(waited, lambda: run.trained() > have, STEP_WITHIN_S))
                time.sleep(rng.uniform(0.0, LATER_S))
                run.kill(part, rng.uniform(*AWAY_S))
            final = folder / "saved" / "final_model" / "model.safetensors"
            until("the final model", lambda: run.trained() and final.exists(), STEP_WITHIN_S)
        finally:
            run.close()
        figures = audit(run.records(), steps)
        logged = [one["step"] for one in read_steps(folder / "logs" / "metrics.jsonl")]
        assert logged == list(range(1, steps + 1)), logged
        times_each = {f"kills of the {part}": order.count(part) for part in PARTS}
        back = {"times a server was taken back": run.taken_back()}
        slowest = {"s at most to the next step": max(recover_s[1:], default=0.0)}
        return Figures({"kills": kills, **times_each, **figures, **back, **slowest})
