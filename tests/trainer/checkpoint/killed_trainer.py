"""A trainer killed by SIGKILL, and its leftovers: used by a test and by `make torture`.

Rollout API and inference server live on in this process. Groups are posted beforehand, so
that every run of the trainer sees the same batches. A trainer is a separate process that
gets SIGKILL when a file or an answer shows that it is in the middle of something.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import httpx
import msgspec

from atroposlib.api.server import create_app as api_app
from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError
from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.http.app import create_app as inference_app
from atroposlib.trackers.jsonl import last_run
from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION, Registration, ScoredData
from example_trainer.weights.engines import connect_engine
from tests.serving import served

LIFE_S = 600.0  # bound of one trainer
GROUP_SIZE, GROUPS_PER_BATCH = 4, 2
PROMPT = [6, 7, 8]
CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["example_trainer.grpo", "tests.trainer.checkpoint.killed_trainer"]
)


def train(settings: dict[str, Any], output: str, dies: tuple[str, int] | None) -> None:
    """Train in the process that is killed; ``dies``: in which of SEAMS, after which step."""
    import torch

    from example_trainer import grpo
    from example_trainer.settings.config import TrainingConfig

    torch.set_num_threads(1)
    if dies is not None:
        _die(*dies, Path(settings["log_dir"]))
    with open(output, "a", encoding="utf-8") as file:
        with redirect_stdout(file), redirect_stderr(file):
            try:
                grpo.train(TrainingConfig(**settings))
            except AtroposError as error:
                print(f"{type(error).__name__}: {error}")
                raise


@dataclass
class Ranks:
    """One run: an API with its queue, a server, and the successive processes of a trainer."""

    folder: Path
    model: Path
    api: str
    server: str
    steps: int
    settings: dict[str, Any] = field(default_factory=dict)
    process: BaseProcess | None = None

    @property
    def save_path(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def output(self) -> str:
        path = self.folder / "output.txt"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def start(self, dies: tuple[str, int] | None = None) -> None:
        settings = {
            **{"model_name": str(self.model), "device": "cpu", "optimizer": "adamw"},
            **{"seq_len": 64, "batch_size": 4, "gradient_accumulation_steps": 2},
            **{"training_steps": self.steps, "lr": 1e-3, "lr_schedule": "linear"},
            **{"warmup_steps": 2, "minibatches": 2, "checkpoint_interval": 2},
            **{"save_path": str(self.save_path), "log_dir": str(self.folder / "logs")},
            **{"atropos_url": self.api, "inference_urls": [self.server], "check_rows": 2},
            **{"live_table": False, **self.settings},
        }
        output = str(self.folder / "output.txt")
        self.process = CONTEXT.Process(target=train, args=(settings, output, dies))
        self.process.start()

    def finish(self) -> None:
        """Wait until it is done."""
        assert self.process is not None
        self.process.join(LIFE_S)
        assert self.process.exitcode == 0, f"{self.process.exitcode}: {self.output[-4000:]}"

    def died(self) -> bool:
        """Wait for the end; return whether it was the SIGKILL that ``start`` set."""
        assert self.process is not None
        self.process.join(LIFE_S)
        return self.process.exitcode == -signal.SIGKILL

    def kill_when(self, happens: Callable[[Ranks], bool]) -> bool:
        """Send SIGKILL at the condition; return False if the trainer was done before that."""
        process = self.process
        assert process is not None and process.pid is not None
        end = time.monotonic() + LIFE_S
        while process.is_alive():
            if happens(self):
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                return process.exitcode == -signal.SIGKILL
            assert time.monotonic() < end, f"nothing to kill: {self.output[-4000:]}"
        assert process.exitcode == 0, f"{process.exitcode}: {self.output[-4000:]}"
        return False

    def close(self) -> None:
        if self.process is not None and self.process.is_alive():
            self.process.kill()
            self.process.join()

    # --- what it does -----------------------------------------------------------------

    def steps_logged(self) -> int:
        return len(self.lines())

    def lines(self) -> dict[int, dict[str, Any]]:
        """The line of metrics.jsonl about each step that was not gone back on."""
        return _lines(self.folder / "logs")

    def phase(self) -> str:
        """Return the phase of the trainer's last heartbeat."""
        status = httpx.get(f"{self.api}/status").json()
        phases = [p["phase"] for p in status["participants"] if p["role"] == "trainer"]
        return phases[-1] if phases else ""


def _lines(logs: Path) -> dict[int, dict[str, Any]]:
    path = logs / "metrics.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    return {line["step"]: line for line in last_run(map(json.loads, whole.splitlines()))}


def until(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + LIFE_S
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextmanager
def world(folder: Path, model: Path, steps: int, **settings: Any) -> Iterator[Ranks]:
    """An API whose queue holds the batches of ``steps`` steps, and a server of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    engine = Engine(load_model(str(model)), EngineLimits(), seed=0, num_threads=1)
    engine.start()
    try:
        with served(api_app()) as api, served(inference_app(engine)) as server:
            made = Ranks(folder, model, api, server, steps, settings)
            try:
                _fill(made)
                yield made
            finally:
                made.close()
    finally:
        engine.close()


def _fill(made: Ranks) -> None:
    with RolloutClient(made.api) as client:
        client.register(
            Registration(
                **{"wandb_group": "", "wandb_project": "", "batch_size": 8},
                **{"max_token_len": 64, "checkpoint_dir": "", "starting_step": 0},
                **{"save_checkpoint_interval": 1, "num_steps": made.steps, "commits": True},
            )
        )
    post_groups(made, range(made.steps))


def post_groups(made: Ranks, steps: Iterable[int]) -> None:
    """Post the groups of these steps, which are the same in every world."""
    body = [msgspec.to_builtins(group) for group in _groups(made.server, steps)]
    httpx.post(f"{made.api}/scored_data_list", json=body).raise_for_status()


def _groups(server: str, steps: Iterable[int]) -> list[ScoredData]:
    """Fixed tokens and scores, logprobs of the server's first model."""
    made, p = [], len(PROMPT)
    with closing(
        connect_engine(server, "local", timeout_s=300, wait_s=300, on_wait=print)
    ) as engine:
        for n in (
            step * GROUPS_PER_BATCH + i for step in steps for i in range(GROUPS_PER_BATCH)
        ):
            rows = [
                PROMPT + [9 + (7 * n + 3 * g + j * (g + 1)) % 40 for j in range(5 + g)]
                for g in range(GROUP_SIZE)
            ]
            sampled = [[MASKED_LOGPROB] * p + engine.score(row)[p - 1 :] for row in rows]
            made.append(
                ScoredData(
                    tokens=rows,
                    masks=[[MASKED] * p + row[p:] for row in rows],
                    scores=[float((n + g) % 3) for g in range(GROUP_SIZE)],
                    inference_logprobs=sampled,
                    versions=[[MASKED_VERSION] * p + [0] * (len(row) - p) for row in rows],
                    group_id=f"prompt {n}",
                    idempotency_key=f"group {n}",
                )
            )
    return made


# --- moments to be killed at ----------------------------------------------------------


def _draft_in(directory: Path) -> bool:
    try:
        return any(name.endswith(".draft") for name in os.listdir(directory))
    except FileNotFoundError:
        return False


def training(w: Ranks) -> bool:
    return w.phase() == "training"


def saving(w: Ranks) -> bool:
    """A recovery checkpoint is half written."""
    return _draft_in(w.save_path / "recover")


def saving_a_model(w: Ranks) -> bool:
    return _draft_in(w.save_path)


def staging(w: Ranks) -> bool:
    """New weights are half written."""
    return _draft_in(w.save_path / "published")


def publishing(w: Ranks) -> bool:
    """The server is paused, before or after it took the new weights."""
    paused: bool = httpx.get(f"{w.server}/is_paused").json()["is_paused"]
    return paused


MOMENTS: dict[str, Callable[[Ranks], bool]] = {
    "a step": training,
    "a save": saving,
    "saving a model": saving_a_model,
    "staging": staging,
    "a publish": publishing,
}


def after(step: int, moment: Callable[[Ranks], bool]) -> Callable[[Ranks], bool]:
    """The first such moment once ``step`` steps are done."""
    return lambda w: w.steps_logged() >= step and moment(w)


# Functions of the trainer that run in the middle of such a moment, and a part of their first
# argument. A moment that another process looks for may pass unseen.
SEAMS = {
    "a step": ("example_trainer.update.step.clipped_step", ""),
    "a write": ("example_trainer.checkpoint.shards._write_file", "recover"),
    "a save": ("example_trainer.checkpoint.writer.seal", "recover"),
    "saving a model": ("example_trainer.model.model_dir.write_state", "checkpoints/."),
    "staging": ("example_trainer.model.model_dir.write_state", "published"),
    "a publish": ("example_trainer.weights.fleet.Fleet.load", ""),
}


def _die(name: str, step: int, logs: Path) -> None:
    """Make this process kill itself at the first such moment once ``step`` steps are done."""
    path, about = SEAMS[name]
    wrapped = resolve_name(path)

    def last(first: Any, *args: Any, **more: Any) -> Any:
        if about in str(first) and len(_lines(logs)) >= step:
            os.kill(os.getpid(), signal.SIGKILL)
        return wrapped(first, *args, **more)

    owner, _, function = path.rpartition(".")
    setattr(resolve_name(owner), function, last)


# --- what must hold -------------------------------------------------------------------


def every_checkpoint_loads(w: Ranks) -> int:
    """Read every checkpoint that has its final name; return their number."""
    from transformers import AutoModelForCausalLM

    from example_trainer.checkpoint import snapshots
    from example_trainer.model import model_dir

    found = 0
    recover = w.save_path / "recover"
    for directory in model_dir.numbered_directories(recover, "step_*"):
        assert snapshots.checkpoint_problem(directory) is None, snapshots.checkpoint_problem(
            directory
        )
        snapshot = snapshots.Snapshot(directory)
        for group in ("weights", "optimizer"):
            assert [tensor[()] for tensor in snapshot.tensors(group).values()]
        found += 1
    if (recover / snapshots.POINTER).exists():
        assert (recover / (recover / snapshots.POINTER).read_text()).is_dir()
    models = model_dir.numbered_directories(w.save_path, "step_*")
    models += model_dir.numbered_directories(w.save_path / "published", "version_*")
    for directory in models:
        AutoModelForCausalLM.from_pretrained(directory)
        assert model_dir.read_state(str(directory)) is not None
        found += 1
    return found


COMPARED = ("step", "version", "batch_no", "keys", "lr", "loss", "grad_norm", "reward_mean")


def outcome(w: Ranks) -> dict[str, Any]:
    """Return the result of a finished run without times and names of runs."""
    from example_trainer.checkpoint import snapshots

    last = snapshots.Snapshot(w.save_path / "recover" / f"step_{w.steps}")
    state = last.document("state")
    manifest = last.document("manifest")
    model = w.save_path / "final_model" / "model.safetensors"
    lines = w.lines()
    return {
        "lines": [{name: lines[step][name] for name in COMPARED} for step in sorted(lines)],
        "state": [state[name] for name in ("step", "version", "batch_no")],
        "counted": {
            name: [counters["epochs"], counters["steps"]]
            for name, counters in state["counters"].items()
            if name != "roles"
        },
        "torch": [rank["torch"] for rank in last.document("rng")],
        "bytes": {
            name: entry["sha256"]
            for name, entry in manifest.items()
            if name.endswith(".safetensors")
        },
        "final_model": model.read_bytes(),
        "served": httpx.get(f"{w.server}/server_info").json()["weight_version"],
        "acked": httpx.get(f"{w.api}/status").json()["batches_acked"],
    }
