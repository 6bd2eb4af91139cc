"""Whole runs: API, local server, environment and trainer as processes, on the device."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path

import wholerun
from wholerun import Setup

from atroposlib.processes import StopRequest, Supervisor
from atroposlib.processes.children import Child, Exit
from atroposlib.trackers.jsonl import RESUMED, read_steps
from example_trainer.quickstart.recipes import COPY
from gpuchecks.figures import Figure, Place, above, below, holds
from gpuchecks.models import weights

LEARNED = 0.5  # mean reward of the last steps; a random model starts near 0.02
MISMATCH = 0.1  # mean nats of given texts between a server and the trainer after a publish
BOUND_S = 135.0  # below that of the check, so that a late run ends with the end of its log


def learns(place: Place) -> list[Figure]:
    """The tiny model learns to copy; weights go through shared memory."""
    recipe = COPY if place.on_cuda else replace(COPY, steps=2, groups_per_step=2)
    trainer: dict[str, object] = {"weight_publisher": "shared_memory", "check_every": 1}
    trainer |= {"device": place.device}
    setup = Setup(place.scratch / "learns", recipe, "tiny", seed=0, trainer=trainer, **cores())
    outcome = wholerun.run(setup, StopRequest(), BOUND_S * place.patience)
    rewards = [step["reward_mean"] for step in outcome.steps]
    figures = whole(outcome.steps, recipe.steps)
    last = sum(rewards[-4:]) / len(rewards[-4:])
    if place.on_cuda:
        figures.append(above("mean reward of the last four steps", last, LEARNED))
    figures.append(Figure("reward, first and last", f"{rewards[0]:.3f}, {last:.3f}"))
    figures.append(Figure("seconds, all processes", f"{outcome.seconds:.1f}"))
    return [*figures, idle_share(outcome.steps)]


def idle_share(steps: list[dict[str, object]]) -> Figure:
    """Part of a loop's time in which the trainer waits for samples."""
    spent: dict[str, float] = {}
    for step in steps:
        for name, value in step.items():
            if name.startswith("seconds_") and isinstance(value, (int, float)):
                spent[name] = spent.get(name, 0.0) + value
    total = sum(spent.values())
    return Figure(
        "trainer waits for samples",
        f"{spent.get('seconds_wait', 0.0) / total:.0%}",
        ", ".join(
            f"{n.removeprefix('seconds_')} {v:.1f} s" for n, v in spent.items() if v >= 0.1
        ),
    )


def killed(place: Place) -> list[Figure]:
    """The trainer of a larger model is killed after a checkpoint and goes on from it.

    Weights go by broadcast (gloo: two processes share the GPU).
    """
    steps = 6 if place.on_cuda else 4
    recipe = replace(COPY, steps=steps, groups_per_step=2, learning_rate=1e-5, ppo_epochs=1)
    trainer: dict[str, object] = {"weight_publisher": "distributed", "check_every": 1}
    trainer |= {"device": place.device, "recover_mode": "auto"}
    trainer |= {"recover_every_steps": 1}
    model = str(weights(place))
    setup = Setup(place.scratch / "killed", recipe, model, seed=0, trainer=trainer, **cores())
    rule = KillOnce(setup.out)
    outcome = wholerun.run(setup, StopRequest(), BOUND_S * place.patience, rule)
    resumed = rule.metrics.read_text(encoding="utf-8").count(f'"{RESUMED}"')
    final = list((rule.checkpoints / "final_model").glob("*.safetensors"))
    return [
        holds("killed after step", rule.killed_at, ">= 1", bool(rule.killed_at)),
        holds("resumed from a checkpoint", f"{resumed} times", ">= 1", bool(resumed)),
        *whole(outcome.steps, steps),
        holds("files of the final model", len(final), ">= 1", bool(final)),
        Figure("seconds, both lives of the trainer", f"{outcome.seconds:.1f}"),
        checkpoint_speed(outcome.steps, rule.checkpoints / "recover"),
    ]


def checkpoint_speed(steps: list[dict[str, object]], folder: Path) -> Figure:
    """Standstill of the loop for a recovery checkpoint, and its size on the disk."""
    seconds = [float(str(step.get("seconds_recovery") or 0.0)) for step in steps]
    newest = max(
        folder.iterdir(), key=lambda path: path.stat().st_mtime if path.is_dir() else 0
    )
    size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    return Figure(
        "standstill for a checkpoint, longest",
        f"{max(seconds):.2f} s, {size / 1e6:,.1f} MB",
        f"{max(seconds) / max(size, 1) * 1e9:.2f} s per GB",
    )


@dataclass
class KillOnce:
    """Kill the trainer with SIGKILL after a checkpoint, start it again once."""

    out: Path
    killed_at: int = 0  # last step of its first life

    @property
    def metrics(self) -> Path:
        return self.out / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"

    def look(self, run: Supervisor, child: Child, ended: Exit | None, now: float) -> None:
        if child.spec.name == "trainer" and ended == Exit(-signal.SIGKILL):
            run.children.start(child.spec)
        elif ended is not None:
            raise child.failure(f"{child.spec.name} ended ({ended})")
        elif child.spec.name == "trainer" and not self.killed_at:
            saved = (self.checkpoints / "recover" / "LATEST").exists()
            steps = read_steps(self.metrics) if saved else []
            if len(steps) >= 2:
                self.killed_at = int(steps[-1]["step"])
                os.killpg(child.popen.pid, signal.SIGKILL)


def whole(steps: list[dict[str, object]], expected: int) -> list[Figure]:
    """Each step is there, and every server had the trainer's logprobs after each publish."""
    numbers = sorted({int(str(step["step"])) for step in steps})
    worst = max(float(str(step.get("publish_mismatch_mean", "nan"))) for step in steps)
    return [
        holds(
            "steps",
            f"{len(numbers)}",
            f"1 to {expected}",
            numbers == [*range(1, expected + 1)],
        ),
        below("server against trainer after publishes, largest mean", worst, MISMATCH),
    ]


def cores() -> dict[str, int]:
    return {"cores": os.cpu_count() or 1}
