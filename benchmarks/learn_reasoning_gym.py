"""A real run: SmolLM2-135M learns a reasoning-gym task, with one trainer rank and with two.

    python benchmarks/learn_reasoning_gym.py                          minutes on two cores
    python benchmarks/learn_reasoning_gym.py --ranks 2 --seed 1       one run under torchrun
    python benchmarks/learn_reasoning_gym.py --dataset letter_counting

Rollout API, inference server, environments/reasoning_gym_server.py and trainer are processes;
the model comes out of a package, as in the quickstart. Writes figures.md, curve.csv and, where
matplotlib is installed, curve.svg. A run that is in --out already is not repeated.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wholerun import REPO, Setup, numbers, plot, run_once, study

from atroposlib.processes import StopRequest
from atroposlib.quickstart.recipes import SUMS, Recipe

IMAGE = Path("docs/images/reasoning_gym.svg")
LAST_STEPS = 5
COLUMNS = (
    "step",
    "reward_mean",
    "env/exact",
    "entropy",
    "grad_norm",
    "staleness_mean",
    "time",
)


@dataclass(frozen=True)
class Learned:
    """Results of a run."""

    ranks: int
    seed: int
    steps: list[dict[str, Any]]  # lines of metrics.jsonl
    heldout: list[tuple[int, float]]  # (step, exact), greedy
    seconds: float


def recipe(options: argparse.Namespace) -> Recipe:
    """The quickstart's sums with another environment and longer prompts."""
    return replace(
        SUMS,
        task=f"{options.dataset} of reasoning-gym",
        env_script="environments/reasoning_gym_server.py",
        steps=options.steps,
        seq_len=128,
        learning_rate=options.lr,
    )


def learn(ranks: int, options: argparse.Namespace, stop: StopRequest) -> Learned:
    """The run in ``out``, or a new run."""
    out = options.out / f"ranks-{ranks}-seed-{options.seed}"
    setup = Setup(
        out=out,
        recipe=recipe(options),
        model=options.model,
        seed=options.seed,
        ranks=ranks,
        cores=len(os.sched_getaffinity(0)),
        # 1.6 GB of optimizer state per step would be most of a step.
        trainer={"--recover-mode": "disabled"},
        environment={"--env.dataset_name": options.dataset, "--env.eval_items": 32},
    )
    outcome = run_once(setup, stop)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)
    heldout = [(check.step, check.rate) for check in outcome.checks]
    return Learned(ranks, options.seed, outcome.steps, heldout, outcome.seconds)


def figures(runs: Sequence[Learned]) -> str:
    """A markdown table, a row per run."""
    head = (
        "ranks | seed | reward, first step | last 5 | exact, first step | last 5 |"
        " held out, exact: before | after | seconds | s/step | waiting | training | publishing |"
        " largest logprob mismatch"
    )
    lines = [f"| {head} |", "|" + "---|" * 14]
    for r in runs:
        last = r.steps[-LAST_STEPS:]

        def mean(name: str, steps: Sequence[dict[str, Any]]) -> float:
            return statistics.fmean(step.get(name) or 0.0 for step in steps)

        wall_s = (r.steps[-1]["time"] - r.steps[0]["time"]) / max(1, len(r.steps) - 1)
        trained_s = mean("seconds_prepare", r.steps) + mean("seconds_train", r.steps)
        names = ("logprob_mismatch_max", "publish_mismatch_max")
        mismatch = max(step.get(name) or 0.0 for step in r.steps for name in names)
        cells = [
            str(r.ranks),
            str(r.seed),
            f"{r.steps[0]['reward_mean']:.2f}",
            f"{mean('reward_mean', last):.2f}",
            f"{r.steps[0]['env/exact']:.2f}",
            f"{mean('env/exact', last):.2f}",
            *(f"{exact:.2f}" for _, exact in (r.heldout[0], r.heldout[-1])),
            f"{r.seconds:.0f}",
            f"{wall_s:.1f}",
            f"{mean('seconds_wait', r.steps):.1f}",
            f"{trained_s:.1f}",
            f"{mean('seconds_publish', r.steps):.1f}",
            f"{mismatch:.1e}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write_curves(runs: Sequence[Learned], path: Path) -> None:
    """Every step of every run, a line each."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("ranks", "seed", *COLUMNS))
        for r in runs:
            for step in r.steps:
                writer.writerow((r.ranks, r.seed, *(step.get(name) for name in COLUMNS)))


def draw(runs: Sequence[Learned], title: str, axis: Any) -> None:
    """Reward over steps, and the held-out exact rate as dots."""
    for r, colour in zip(runs, ("tab:blue", "tab:orange", "tab:green", "tab:red")):
        name = f"{r.ranks} rank{'s' if r.ranks > 1 else ''}"
        rewards = [step["reward_mean"] for step in r.steps]
        axis.plot(range(1, len(rewards) + 1), rewards, color=colour, label=f"reward, {name}")
        axis.plot(*zip(*r.heldout), "o", color=colour, label=f"held out, exact, {name}")
    axis.set(title=title, xlabel="step", ylim=(0, 1))
    axis.grid(alpha=0.3)
    axis.legend()


def main(stop: StopRequest) -> int:
    options = parse_args()
    runs = [learn(ranks, options, stop) for ranks in options.ranks]
    text = figures(runs)
    (options.out / "figures.md").write_text(text, encoding="utf-8")
    write_curves(runs, options.out / "curve.csv")
    print(text)
    paths = [options.out / "curve.svg", *([REPO / IMAGE] if options.docs else [])]
    title = f"{options.dataset}, {options.model}"
    plot(paths, lambda axis: draw(runs, title, axis), 1, width=7)
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/reasoning-gym"), help="runs, table, curves")
    add("--model", default="smollm2", help="smollm2 or a model directory (%(default)s)")
    add("--dataset", default="chain_sum", help="of reasoning-gym (%(default)s)")
    add("--ranks", type=numbers, default=[1, 2], help="trainer ranks, a run each: 1,2")
    add("--seed", type=int, default=0)
    add("--steps", type=int, default=36, help="(%(default)s)")
    add("--lr", type=float, default=SUMS.learning_rate, help="learning rate (%(default)s)")
    add("--docs", action="store_true", help=f"also write {IMAGE}")
    options = parser.parse_args()
    options.out = options.out.absolute()
    return options


if __name__ == "__main__":
    sys.exit(study(main))
