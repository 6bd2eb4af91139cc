"""Tokens to a held-out score, with samplers of tasks against uniform, in a single process.

    python benchmarks/curriculum_study.py --set backwards --seeds 0 1 2 --samplers uniform pools

The sets ``letters``, ``count``, ``backwards``, ``phrases`` (settings of letters) and
``tic_tac_toe`` are environments of environments/library: their own functions play and score, on
the policy. Two sets are made here:
``graded`` are words of up to six letters to copy, and of ``impossible`` nine tasks of ten never give
a reward. The policy is a tiny random model, which first imitates replies for ``--imitate`` steps,
the same for all samplers. Then each step takes the first groups whose scores differ, as
``ensure_scores_are_not_same`` does; all generated tokens count. The update is REINFORCE with
advantages normalised in the group.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from curriculumbench.policy import JointSampler, Policy, PolicySession, Row
from curriculumbench.sets import SETS, TaskSet
from transformers import AutoModelForCausalLM

from atroposlib.envs.curriculum.interface import ObservedGroup, TaskRows, TaskSampler
from atroposlib.envs.curriculum.registry import make_sampler
from atroposlib.envs.function_env.rollout_model import Model
from atroposlib.envs.settings.curriculum_settings import CurriculumPart
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer, write_tiny_model

WAVE = 8  # tasks under way at once
TARGETS = tuple(n / 20 for n in range(2, 20))


def model_on(session: Any) -> Model:
    async def refuse(name: str) -> Any:
        raise NotImplementedError("no servers here")

    return Model(session, "train", 1.0, 512, open_endpoint=refuse)


def play_on_policy(
    policy: Policy, tasks: TaskSet, rows: Sequence[Any], generator: torch.Generator | None
) -> tuple[list[float], list[PolicySession]]:
    """Scores of a rollout of each of ``rows``, and their sessions."""
    sampler = JointSampler(policy, tasks.max_new, generator)
    sessions = [PolicySession(sampler) for _ in rows]
    rollouts: list[Any] = [tasks.play(row, model_on(s)) for row, s in zip(rows, sessions)]
    return asyncio.run(sampler.run(rollouts)), sessions


def imitate(policy: Policy, tasks: TaskSet, steps: int, seed: int, *, decays: bool) -> None:
    """Train on demonstrated replies to tasks; a rate that decays falls to 0."""
    rng = random.Random(seed)
    lesson_tasks = tasks.lessons or tasks.rows
    known: dict[int, list[Row]] = {}  # lessons of the task of each place

    async def lessons(task: Any) -> list[Row]:
        model = model_on(tasks.demonstrate(task, rng))
        asked: list[Sequence[Any]] = []
        model.listener = lambda endpoint, sent, reply: asked.append([*sent])
        await tasks.play(task, model)
        return [
            Row(policy.prompt_ids(sent), policy.reply_ids(reply), 1.0)
            for sent, reply in zip(asked, model.replies)
        ]

    for step in range(steps):
        left = 1 - step / steps if decays else 1.0
        policy.optimizer.param_groups[0]["lr"] = policy.learning_rate * left
        batch = []
        for place in rng.choices(range(len(lesson_tasks)), k=64):
            if place not in known or not tasks.has_gold:
                known[place] = asyncio.run(lessons(lesson_tasks[place]))
            batch += known[place]
        policy.update(batch)


def held_out_means(policy: Policy, tasks: TaskSet, samples: int) -> list[float]:
    """Mean score of each held-out task at temperature 1; with 0 samples that of a greedy reply."""
    generator = torch.Generator().manual_seed(0) if samples else None
    samples = max(1, samples)
    rows = [task for task in tasks.held_out for _ in range(samples)]
    scores, _ = play_on_policy(policy, tasks, rows, generator)
    places = range(0, len(scores), samples)
    return [statistics.fmean(scores[place : place + samples]) for place in places]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    return statistics.fmean(values), statistics.stdev(values) / len(values) ** 0.5


def observed_wave(
    policy: Policy,
    tasks: TaskSet,
    sampler: TaskSampler,
    version: int,
    group_size: int,
    generator: torch.Generator,
) -> list[tuple[ObservedGroup, list[Row]]]:
    """Groups of the next tasks, observed, each with its rows for an update."""
    chosen = [task for _ in range(WAVE) if (task := sampler.draw()) is not None]
    rows = [task.content for task in chosen for _ in range(group_size)]
    all_scores, sessions = play_on_policy(policy, tasks, rows, generator)
    wave = []
    for place, task in enumerate(chosen):
        of_group = slice(place * group_size, (place + 1) * group_size)
        scores = all_scores[of_group]
        mean, spread = statistics.fmean(scores), statistics.pstdev(scores)
        update_rows = [
            Row(prompt, reply, (score - mean) / (spread + 1e-6))
            for session, score in zip(sessions[of_group], scores)
            for prompt, reply in session.turns
        ]
        tokens = sum(len(row.reply) for row in update_rows)
        group = ObservedGroup(task, tuple(scores), mean, tokens, version)
        sampler.observe(group)
        wave.append((group, update_rows))
    return wave


def starting_model(tasks: TaskSet, seed: int, options: argparse.Namespace) -> Any:
    """The model after the imitation, which every sampler begins with."""
    torch.manual_seed(seed)
    with TemporaryDirectory() as folder:
        write_tiny_model(
            Path(folder), seed=seed, alphabet=ASCII_ALPHABET, hidden_size=options.width
        )
        model = AutoModelForCausalLM.from_pretrained(folder)
    policy = Policy(model, char_tokenizer(ASCII_ALPHABET), options.imitate_lr)
    imitate(policy, tasks, options.imitate, seed, decays=options.imitate_decay)
    return model


def run_study(
    name: str,
    sampler: CurriculumPart,
    seed: int,
    tasks: TaskSet,
    start: Any,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """A run of ``options.tokens`` generated tokens; its curve of held-out scores."""
    policy = Policy(deepcopy(start), char_tokenizer(ASCII_ALPHABET), options.lr)
    generator = torch.Generator().manual_seed(seed)
    rows = TaskRows(tasks.rows, range(len(tasks.rows)))
    chooser = make_sampler(sampler, rows, seed=seed, env=name)
    begun, tokens, step, groups, useful = time.monotonic(), 0, 0, 0, 0
    held_out = held_out_means(policy, tasks, options.samples)
    curve = [(0, 0, *mean_and_error(held_out))]
    kept: list[list[Row]] = []
    while tokens < options.tokens:
        wave = observed_wave(policy, tasks, chooser, step, options.group_size, generator)
        for group, update_rows in wave:
            tokens, groups = tokens + group.tokens, groups + 1
            if group.is_useful:
                useful += 1
                kept.append(update_rows)
        if len(kept) >= options.groups:
            rise = min(1.0, (step + 1) / max(1, options.warmup))
            policy.optimizer.param_groups[0]["lr"] = options.lr * rise
            policy.update([row for rows in kept for row in rows])
            kept, step = [], step + 1
            if step % options.check_every == 0:
                held_out = held_out_means(policy, tasks, options.samples)
                curve.append((tokens, step, *mean_and_error(held_out)))
    held_out = held_out_means(policy, tasks, options.samples)
    curve.append((tokens, step, *mean_and_error(held_out)))
    return {
        "set": name,
        "sampler": {"name": sampler.name, **sampler.settings},
        "seed": seed,
        "useful_share": useful / groups,
        "tokens_per_useful_group": tokens / max(1, useful),
        "steps": step,
        "reached": {
            f"{target:g}": next(
                ([used, at] for used, at, score, _ in curve if score >= target), None
            )
            for target in TARGETS
        },
        "curve": curve,  # tokens, steps, held-out score with its standard error
        "held_out": held_out,  # mean score of each task at the end
        "metrics": chooser.metrics(),
        "seconds": time.monotonic() - begun,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--set", choices=[*SETS], required=True)
    parser.add_argument(
        "--samplers", nargs="+", default=["uniform", "pools"], help="a name, or JSON with one"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=200_000, help="generated, of a run")
    parser.add_argument("--groups", type=int, default=8, help="useful groups of a step")
    parser.add_argument("--group-size", type=int, default=16, help="samples of a task")
    parser.add_argument("--imitate", type=int, default=0, help="steps on replies before")
    parser.add_argument("--imitate-lr", type=float, default=2e-3)
    parser.add_argument("--imitate-decay", action="store_true", help="of that rate, to 0")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument(
        "--warmup", type=int, default=0, help="steps until that rate is reached"
    )
    parser.add_argument("--width", type=int, default=64, help="of the two layers of the model")
    parser.add_argument("--check-every", type=int, default=2, help="steps between scores")
    parser.add_argument(
        "--samples", type=int, default=0, help="of each held-out task; 0: one greedy reply"
    )
    parser.add_argument("--out", type=Path, help="jsonl file to which runs are appended")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        tasks = SETS[options.set](seed)
        start = starting_model(tasks, seed, options)
        first_run: dict[str, Any] = {}
        for sampler in options.samplers:
            settings = json.loads(sampler) if sampler.startswith("{") else {"name": sampler}
            part = CurriculumPart.model_validate(settings)
            run = run_study(options.set, part, seed, tasks, start, options)
            (*_, begin, _), (*_, last, error) = run["curve"][0], run["curve"][-1]
            reached = {k: v for k, v in run["reached"].items() if v and float(k) > begin}
            print(
                f"{options.set} {sampler} seed {seed}: {begin:.2f} -> {last:.2f} ± {error:.2f} "
                f"in {run['steps']} steps, useful {run['useful_share']:.0%}, "
                f"{run['tokens_per_useful_group']:.0f} tokens a useful group, reached "
                f"{reached}, {run['seconds']:.0f} s",
                flush=True,
            )
            first_run = first_run or run
            if run is not first_run:
                pairs = zip(run["held_out"], first_run["held_out"])
                mean, error = mean_and_error([own - first for own, first in pairs])
                print(f"  minus {options.samplers[0]}, by task: {mean:+.3f} ± {error:.3f}")
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(run) + "\n")


if __name__ == "__main__":
    main()
