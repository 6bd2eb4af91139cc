"""Cost of staleness in reward and gain in throughput, with and without decoupling.

    python benchmarks/staleness_study.py --out runs/staleness              30 runs
    python benchmarks/staleness_study.py --staleness 0,4 --seeds 1 --steps 20
    python benchmarks/staleness_study.py --out runs/staleness --docs       also docs/images

Every run is whole: rollout API, inference server, environment (copy_server.py) and trainer as
processes, a model of random weights. Two settings of the trainer vary:

    max_staleness   versions that an environment may run ahead (by leases of the API)
    loss            grpo: ratios to the sampler, clipped there ("naive");
                    decoupled: clipped around the policy at the start of the batch, and weighted
                    by how far that policy is from the sampler

Aggressive on purpose: 4 passes over every batch in 4 minibatches, 16 optimizer steps at a high
learning rate, so that weights move far within the staleness. That is where the two losses can
differ, and it makes the trainer the bottleneck, so that the staleness allowed is also reached.
All runs do the same number of steps. A run that is in --out already is not repeated.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from wholerun import REPO, Setup, numbers, plot, run_once, study

from atroposlib.processes import RunFailed, StopRequest
from atroposlib.quickstart.recipes import COPY, Recipe
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.utils.metrics import percentile

LOSSES = {"grpo": "naive", "decoupled": "decoupled"}
LAST_STEPS = 5
IMAGE = Path("docs/images/staleness.svg")


@dataclass(frozen=True)
class Case:
    """Settings of a run."""

    staleness: int
    loss: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.loss}-staleness-{self.staleness}-seed-{self.seed}"


@dataclass(frozen=True)
class Result:
    """The figures of a run. Staleness in versions, over the tokens of the steady part."""

    case: Case
    staleness_mean: float
    staleness_p95: float
    staleness_max: int
    tokens_per_s: float  # tokens of trained rows over wall time of the steady part
    steps_per_min: float
    wait_share: float  # share of that wall time in which the trainer waited for a batch
    reward_last: float  # mean of the last steps, sampled by the versions measured above
    heldout: float  # greedy, by the final weights
    seconds: float  # whole run


def recipe(options: argparse.Namespace) -> Recipe:
    """The quickstart's copying with smaller batches and without an entropy bonus."""
    return replace(
        COPY,
        steps=options.steps,
        groups_per_step=options.groups,
        group_size=16,
        learning_rate=options.lr,
        lr_decay_ratio=0.0,
        ppo_epochs=options.epochs,
        entropy_coef=0.0,
        microbatch_tokens=options.groups * 16 * COPY.seq_len,
    )


def setup_of(case: Case, options: argparse.Namespace) -> Setup:
    return Setup(
        out=options.out / case.name,
        recipe=recipe(options),
        model=str(options.out / f"model-{case.seed}"),
        seed=case.seed,
        cores=max(1, (os.cpu_count() or 1) // options.parallel),
        trainer={
            "--loss": case.loss,
            "--ratio-to": "sampler" if case.loss == "grpo" else "trainer",
            "--max-staleness": case.staleness,
            "--minibatches": options.minibatches,
            "--recover-mode": "disabled",  # a checkpoint per step would be most of its time
            "--no-share-prefixes": None,  # whole rows: generating must be cheaper than training
        },
        environment={
            # Leases bound the staleness; the queue must not be a tighter bound.
            "--env.max_batches_offpolicy": case.staleness + 2,
            "--env.max_num_workers": options.groups,
            # The trainer ends the run. An environment that runs ahead must not end it earlier.
            "--env.total_steps": options.steps + case.staleness + 4,
            "--env.eval_at_start": "false",
            "--env.eval_at_end": "false",
            "--env.steps_per_eval": options.steps,
        },
    )


def result_of(case: Case, options: argparse.Namespace, stop: StopRequest) -> Result:
    """The result in ``out``, or of a new run."""
    outcome = run_once(setup_of(case, options), stop, bound_s=options.bound)
    return measure_study(
        case, outcome.steps, outcome.checks[-1].reward or 0.0, outcome.seconds
    )


def measure_study(
    case: Case, steps: Sequence[dict[str, Any]], heldout: float, seconds: float
) -> Result:
    """Figures of the steady part, the second half: the environment has run ahead by then."""
    half = len(steps) // 2
    before, steady = steps[half - 1], steps[half:]
    wall_s = steady[-1]["time"] - before["time"]
    ages: Counter[int] = Counter()
    for step in steady:
        ages.update({int(age): n for age, n in step["staleness_counts"].items()})
    every = list(ages.elements())
    return Result(
        case,
        staleness_mean=statistics.fmean(every),
        staleness_p95=percentile(every, 0.95),
        staleness_max=max(every),
        tokens_per_s=sum(step["tokens"] for step in steady) / wall_s,
        steps_per_min=60 * len(steady) / wall_s,
        wait_share=sum(step.get("seconds_wait", 0.0) for step in steady) / wall_s,
        reward_last=statistics.fmean(step["reward_mean"] for step in steps[-LAST_STEPS:]),
        heldout=heldout,
        seconds=seconds,
    )


def table(results: Sequence[Result]) -> str:
    """Markdown; means over seeds, smallest and largest in brackets."""
    head = (
        "max_staleness | loss | measured: mean | p95 | max | tokens/s | steps/min |"
        " waits | reward, last 5 steps | held out, greedy"
    )
    lines = [f"| {head} |", "|" + "---|" * 10]
    for key in sorted({(r.case.staleness, r.case.loss != "grpo") for r in results}):
        same = [r for r in results if (r.case.staleness, r.case.loss != "grpo") == key]

        def mean(name: str, form: str) -> str:
            return format(statistics.fmean(getattr(r, name) for r in same), form)

        cells = [
            str(key[0]),
            LOSSES[same[0].case.loss],
            mean("staleness_mean", ".2f"),
            mean("staleness_p95", ".0f"),
            str(max(r.staleness_max for r in same)),
            mean("tokens_per_s", ".0f"),
            mean("steps_per_min", ".0f"),
            mean("wait_share", ".0%"),
            spread_of([r.reward_last for r in same]),
            spread_of([r.heldout for r in same]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def spread_of(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.2f} to {max(values):.2f})"


def draw(results: Sequence[Result], axes: Any) -> None:
    """Held-out reward and throughput over measured staleness; a dot per seed, a line of means."""
    for loss, colour in (("grpo", "tab:red"), ("decoupled", "tab:blue")):
        for axis, name in zip(axes, ("heldout", "reward_last", "tokens_per_s")):
            of_level = defaultdict(list)
            for r in results:
                if r.case.loss == loss:
                    of_level[r.case.staleness].append((r.staleness_mean, getattr(r, name)))
            levels = [dots for _, dots in sorted(of_level.items())]
            means = [tuple(map(statistics.fmean, zip(*dots))) for dots in levels]
            axis.plot(*zip(*chain(*levels)), "o", color=colour, alpha=0.35, markersize=4)
            axis.plot(*zip(*means), "-", color=colour, label=LOSSES[loss])
    titles = ("reward, held out", f"reward, last {LAST_STEPS} steps", "trained tokens/s")
    for axis, title in zip(axes, titles):
        axis.set(title=title, xlabel="measured staleness, versions")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend()


def main(stop: StopRequest) -> int:
    options = parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    cases = [
        Case(staleness, loss, seed)
        for seed in seeds
        for staleness in options.staleness
        for loss in options.losses
    ]
    for seed in seeds:
        write_tiny_model(options.out / f"model-{seed}", seed=seed)
    results: list[Result] = []
    failed: list[str] = []

    def one(case: Case) -> None:
        try:
            result = result_of(case, options, stop)
        except RunFailed as failure:
            failed.append(f"{case.name}: {failure.line}\n{failure.tail}")
            print(failed[-1], file=sys.stderr, flush=True)
            return
        results.append(result)
        print(
            f"{case.name}: measured {result.staleness_mean:.2f},"
            f" {result.tokens_per_s:.0f} tokens/s, held out {result.heldout:.2f},"
            f" {result.seconds:.0f} s  ({len(results)} of {len(cases)})",
            flush=True,
        )

    with ThreadPoolExecutor(options.parallel) as pool:
        for done in [pool.submit(one, case) for case in cases]:
            done.result()
    if results:
        report(results, options)
    return 1 if failed else 0


def report(results: Sequence[Result], options: argparse.Namespace) -> None:
    results = sorted(results, key=lambda r: (r.case.loss, r.case.staleness, r.case.seed))
    text = table(results)
    (options.out / "table.md").write_text(text, encoding="utf-8")
    print(f"\n{text}")
    paths = [options.out / "staleness.svg", *([REPO / IMAGE] if options.docs else [])]
    plot(paths, lambda axes: draw(results, axes), 3, width=12)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/staleness"), help="runs, table and plot")
    add("--staleness", type=numbers, default=[0, 1, 2, 4, 8], help="0,1,2,4,8")
    add("--losses", type=lambda text: text.split(","), default=list(LOSSES), help="names")
    add("--seeds", type=int, default=3, help="how many (%(default)s)")
    add("--first-seed", type=int, default=0, help="the first of them (%(default)s)")
    add("--steps", type=int, default=40, help="batches of every run (%(default)s)")
    add("--minibatches", type=int, default=4, help="parts of a batch (%(default)s)")
    add("--epochs", type=int, default=4, help="passes over a batch (%(default)s)")
    add("--groups", type=int, default=12, help="groups of a batch, of 16 (%(default)s)")
    add("--lr", type=float, default=2e-3, help="learning rate (%(default)s)")
    add("--parallel", type=int, default=1, help="runs at once; they share the cores")
    add("--bound", type=float, default=600.0, help="seconds that a run may take")
    add("--docs", action="store_true", help=f"also write {IMAGE}")
    options = parser.parse_args()
    options.out = options.out.absolute()
    return options


if __name__ == "__main__":
    sys.exit(study(main))
