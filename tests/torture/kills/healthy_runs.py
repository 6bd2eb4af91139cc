"""Healthy runs of ten shapes under the rules: findings that are not true are counted.

Real processes as in ``killed_parts``. Each second the API is polled as by ``atropos top``. A finding
is true only if it belongs to any run (it starts, it is complete) or to the shape, such as a trainer
that is slower than its environment.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from atroposlib.run_status.polling import RunReport, poll
from tests.torture.figures import Figures, fast_folder
from tests.torture.kills.env_world import until
from tests.torture.kills.killed_parts import Run, Settings

LOOK_S = 1.0
# The last is of the machine: of its disk and load.
OF_ANY_RUN = frozenset({"no-trainer", "trainer-starting", "complete", "slow-store"})
OF_ITS_START = ("environment-silent", "waiting")  # it starts slower than the trainer
# A look that takes so long, or sees a heartbeat so old, is of a starved machine, where the
# findings of the next seconds are true. Heartbeats come every 2 s.
STARVED_S, RECOVERS_S = 5.0, 20.0
ENDS_WITHIN_S = 600.0


@dataclass(frozen=True)
class Shape:
    """Settings of a run, and the findings of severity "waiting" that are true in it."""

    steps: int
    trainer: Settings = field(default_factory=dict)
    envs: Sequence[Settings] = ({},)
    api: Sequence[str] = ()
    true: frozenset[str] = frozenset()


SLOW_TRAINER = {"ppo-epochs": 400, "batch-size": 16}
SHAPES = {
    "plain": Shape(12),
    "synchronous": Shape(12, {"max-staleness": 0}, [{"env.max_batches_offpolicy": 1}]),
    "asynchronous": Shape(
        24,
        {"max-staleness": 4, "staleness-policy": "drop"},
        [{"env.max_batches_offpolicy": 4, "env.max_num_workers": 16}],
    ),
    "slow environment": Shape(3, envs=[{"env.delay_s": 12}]),
    "very slow environment": Shape(
        2, envs=[{"env.delay_s": 40}], true=frozenset({"long-generations"})
    ),
    "slow trainer": Shape(3, SLOW_TRAINER, true=frozenset({"trainer-bound"})),
    "small store": Shape(12, api=("--max-store-gb", "0.00004")),
    "evaluations": Shape(
        6,
        {"eval-command": "sleep 20", "eval-every-steps": 4, "checkpoint-interval": 2},
        [{"env.steps_per_eval": 2}],
    ),
    "two environments": Shape(
        6,
        envs=[
            {"env.min_batch_allocation": 0.25},
            {
                "env.delay_s": 4,
                "env.min_batch_allocation": 0.25,
                "env.group_size": 2,
                "env.wandb_name": "late",
            },
        ],
    ),
    "constant scores": Shape(6, envs=[{"env.ensure_scores_are_not_same": "true"}]),
}


class Watch(threading.Thread):
    """Polls a run once per second until it is stopped."""

    def __init__(self, url: str, true: frozenset[str]) -> None:
        super().__init__(daemon=True)
        self.url, self.true = url, OF_ANY_RUN | true
        self.false: Counter[str] = Counter()
        self.examples: dict[str, tuple[str, ...]] = {}
        self.oldest_s: Counter[str] = Counter()  # heartbeat, by role
        self.asked = self.starved = self.while_it_ran = 0
        self.ended = threading.Event()

    def run(self) -> None:
        recovered = 0.0
        while not self.ended.wait(LOOK_S):
            begun = time.monotonic()
            report = poll(self.url)
            oldest_s = self._heartbeats(report)
            if max(time.monotonic() - begun, oldest_s) > STARVED_S:
                recovered = time.monotonic() + RECOVERS_S
            self.asked += 1
            self.starved += begun < recovered
            findings = report.verdict["findings"] if report.status is not None else ()
            found = [(f["key"], f["severity"], f["evidence"]) for f in findings]
            for key, severity, evidence in found if begun >= recovered else ():
                if key not in self.true and (key, severity) != OF_ITS_START:
                    self.false[key] += 1
                    self.examples.setdefault(key, tuple(evidence))

    def _heartbeats(self, now: RunReport) -> float:
        """Note the ages of the heartbeats by role; the age of the oldest."""
        ages = [
            (one["role"], one["age_s"])
            for one in (now.status or {}).get("participants", ())
            if "ended" not in one["details"]
        ]
        for role, age_s in ages:
            self.oldest_s[role] = max(self.oldest_s[role], age_s)
        return max((age_s for _, age_s in ages), default=0.0)

    def stop(self) -> None:
        self.ended.set()
        self.join(ENDS_WITHIN_S)


def watched(folder: Path, shape: Shape, seed: int) -> Watch:
    """One run from the start of its API to its final model."""
    envs = [{"env.seed": seed, **one} for one in shape.envs]
    run = Run(folder, shape.steps, {"seed": seed, **shape.trainer}, envs, shape.api)
    watch = Watch(f"http://127.0.0.1:{run.api.port}", shape.true)
    final = folder / "saved" / "final_model" / "model.safetensors"
    try:
        run.start()
        watch.start()
        until("the final model", lambda: run.trained() and final.exists(), ENDS_WITHIN_S)
        watch.while_it_ran = watch.asked
        enough = watch.while_it_ran + 6
        until("the looks at its end", lambda: watch.asked > enough, ENDS_WITHIN_S)
        return watch
    finally:
        watch.stop()
        run.close()


def healthy_campaign(runs: int, seed: int) -> Figures:
    """Figures over ``runs`` runs, shape by shape; AssertionError: a finding was false."""
    names = (
        "diagnoses",
        "diagnoses while it ran",
        "looks at a starved machine",
        "false findings",
    )
    figures = Figures({"runs": runs, **dict.fromkeys(names, 0)})
    told: dict[str, dict[str, tuple[str, ...]]] = {}
    oldest: Counter[str] = Counter()
    for n, name in zip(range(runs), cycle(SHAPES)):
        with fast_folder() as folder:
            watch = watched(folder, SHAPES[name], seed + n)
        figures["diagnoses"] += watch.asked
        figures["diagnoses while it ran"] += watch.while_it_ran
        figures["looks at a starved machine"] += watch.starved
        figures["false findings"] += watch.false.total()
        oldest |= watch.oldest_s
        if watch.examples:
            told[name] = watch.examples
    ages = {f"s the oldest heartbeat of {role}": age for role, age in oldest.items()}
    assert not told, f"{figures.line('healthy')}: {told}"
    return Figures({**figures, **ages})
