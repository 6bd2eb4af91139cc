"""Tokens to a held-out score, with samplers of tasks against uniform, in a single process.

    python benchmarks/curriculum_study.py --set backwards --seeds 0 1 2 --samplers uniform pools

Tasks and rewards come from environments/library (``count``, ``backwards``: two settings of letters)
or made here (``graded``: words of up to six letters to copy; ``impossible``: 90 % of the tasks never
give a reward). The policy is the tiny random
model, which first imitates gold replies for ``--imitate`` steps, the same for all samplers. Then each
step takes the first groups whose scores differ, as ``ensure_scores_are_not_same`` does; all generated
tokens count. The update is REINFORCE with advantages normalised in the group.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from atroposlib.environments.library.letters import letters
from atroposlib.envs.curriculum.interface import ObservedGroup, TaskRows, TaskSampler
from atroposlib.envs.curriculum.registry import make_sampler
from atroposlib.envs.function_env.card import play
from atroposlib.envs.settings.curriculum_settings import CurriculumPart
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer, write_tiny_model

GROUP = 16  # samples of a task
WAVE = 8  # tasks under way at once
HELD_OUT = 128
TARGETS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True)
class TaskSet:
    """Tasks with prompts, gold replies and scores."""

    rows: Sequence[Any]
    held_out: Sequence[Any]
    prompt: Callable[[Any], str]
    gold: Callable[[Any], str]
    score: Callable[[Any, str], float]
    max_new: int  # tokens of a reply


def letters_set(seed: int, *, tasks: int, max_new: int, **settings: Any) -> TaskSet:
    """Tasks of the library's letters; their function scores replies."""
    own = {"words": 1, "tasks": tasks + HELD_OUT, "seed": seed, **settings}
    rows = list(letters.definition.dataset(letters.env_config_cls(**own)))
    random.Random(seed).shuffle(rows)

    known: dict[tuple[str, str], float] = {}

    def score(task: Any, reply: str) -> float:
        key = (task["question"], reply)
        if key not in known:
            reward, _ = asyncio.run(play(letters, task, reply, **own))
            known[key] = float(reward.score or 0.0)
        return known[key]

    return TaskSet(
        rows[HELD_OUT:],
        rows[:HELD_OUT],
        prompt=lambda task: str(task["question"]),
        gold=letters.definition.card.gold,
        score=score,
        max_new=max_new,
    )


def impossible_set(seed: int) -> TaskSet:
    """Two letters to copy; of 400 tasks 40 can be solved."""
    rng = random.Random(seed)
    words = [f"{a}{b}" for a in "abcdefghij" for b in "abcdefghij"]
    rng.shuffle(words)
    rows = [{"word": rng.choice(words[50:]), "possible": n % 10 == 0} for n in range(400)]
    return TaskSet(
        rows,
        [{"word": word, "possible": True} for word in words[:50]],
        prompt=lambda task: str(task["word"]),
        gold=lambda task: str(task["word"]),
        score=lambda task, reply: float(task["possible"] and reply == task["word"]),
        max_new=3,
    )


def graded_set(seed: int) -> TaskSet:
    """Words of up to six letters to copy: the longer, the harder; evaluated on all lengths."""
    rng = random.Random(seed)
    rows = [{"word": "".join(rng.choices("abcdefghij", k=n % 6 + 1))} for n in range(480)]
    rng.shuffle(rows)
    trained, held_out = rows[HELD_OUT:], rows[:HELD_OUT]
    return TaskSet(
        trained,
        held_out,
        prompt=lambda task: str(task["word"]),
        gold=lambda task: str(task["word"]),
        score=lambda task, reply: float(reply == task["word"]),
        max_new=7,
    )


SETS: dict[str, Callable[[int], TaskSet]] = {
    "count": lambda seed: letters_set(seed, tasks=800, max_new=2, backwards=0, bare=True),
    "backwards": lambda seed: letters_set(seed, tasks=800, max_new=34, backwards=1),
    "graded": graded_set,
    "impossible": impossible_set,
}


@dataclass
class Policy:
    """The tiny model with its tokenizer and optimizer."""

    model: Any
    tokenizer: Any
    learning_rate: float
    optimizer: Any = field(init=False)
    known: dict[str, list[int]] = field(default_factory=dict)  # ids of prompts

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.learning_rate, weight_decay=0.0
        )

    def ids(self, text: str) -> list[int]:
        if text not in self.known:
            messages = [{"role": "user", "content": text}]
            rendered = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
            self.known[text] = list(self.tokenizer.encode(rendered, add_special_tokens=False))
        return self.known[text]

    def reply_ids(self, text: str) -> list[int]:
        return [
            *self.tokenizer.encode(text, add_special_tokens=False),
            self.tokenizer.eos_token_id,
        ]

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[list[int]], max_new: int, *, greedy: bool = False
    ) -> list[list[int]]:
        """A reply to each prompt, with the end token if it came."""
        width, pad = max(map(len, prompts)), self.tokenizer.pad_token_id
        ids_BT = torch.tensor([[pad] * (width - len(p)) + p for p in prompts])  # (B, T)
        mask_BT = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        done, replies, past = [False] * len(prompts), [[] for _ in prompts], None
        tokens = ids_BT
        for _ in range(max_new):
            places = (mask_BT.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
            out = self.model(
                tokens, attention_mask=mask_BT, position_ids=places, past_key_values=past
            )
            past, logits_BV = out.past_key_values, out.logits[:, -1]
            chosen = (
                logits_BV.argmax(-1)
                if greedy
                else torch.multinomial(logits_BV.softmax(-1), 1)[:, 0]
            )
            for b, token in enumerate(chosen.tolist()):
                if not done[b]:
                    replies[b].append(token)
                    done[b] = token == self.tokenizer.eos_token_id
            if all(done):
                break
            tokens = chosen[:, None]
            mask_BT = torch.cat([mask_BT, torch.ones_like(tokens)], 1)
        return replies

    def text(self, reply: list[int]) -> str:
        return str(self.tokenizer.decode(reply, skip_special_tokens=True))

    def update(self, rows: Sequence[tuple[list[int], list[int], float]]) -> None:
        """A step on ``(prompt, reply, weight)``: the weighted mean of logprobs goes up."""
        rows = [row for row in rows if row[2] and row[1]]
        pad, width = self.tokenizer.pad_token_id, max(len(p) + len(r) for p, r, _ in rows)
        ids, weights = [], []
        for prompt, reply, weight in rows:
            rest = width - len(prompt) - len(reply)
            ids.append([*prompt, *reply, *[pad] * rest])
            weights.append([0.0] * len(prompt) + [weight] * len(reply) + [0.0] * rest)
        ids_BT = torch.tensor(ids)
        weights_BT = torch.tensor(weights)[:, 1:]
        logits_BTV = self.model(ids_BT).logits[:, :-1]
        logprobs_BT = logits_BTV.log_softmax(-1).gather(-1, ids_BT[:, 1:, None])[..., 0]
        loss = -(logprobs_BT * weights_BT).sum() / (weights_BT != 0).sum()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def held_out_score(policy: Policy, tasks: TaskSet) -> float:
    """Mean score of greedy replies to the held-out tasks."""
    prompts = [policy.ids(tasks.prompt(task)) for task in tasks.held_out]
    replies = policy.sample(prompts, tasks.max_new, greedy=True)
    scores = [tasks.score(task, policy.text(r)) for task, r in zip(tasks.held_out, replies)]
    return sum(scores) / len(scores)


def imitate(policy: Policy, tasks: TaskSet, steps: int, seed: int) -> None:
    """Train on gold replies of trained tasks."""
    rng = random.Random(seed)
    for _ in range(steps):
        batch = rng.choices(tasks.rows, k=64)
        policy.update(
            [
                (policy.ids(tasks.prompt(t)), policy.reply_ids(tasks.gold(t)), 1.0)
                for t in batch
            ]
        )


def observed_wave(
    policy: Policy, tasks: TaskSet, sampler: TaskSampler, version: int
) -> list[tuple[ObservedGroup, list[tuple[list[int], list[int], float]]]]:
    """Groups of the next tasks, observed, each with its rows for an update."""
    chosen = [task for _ in range(WAVE) if (task := sampler.draw()) is not None]
    prompts = [policy.ids(tasks.prompt(task.content)) for task in chosen]
    replies = policy.sample([p for p in prompts for _ in range(GROUP)], tasks.max_new)
    wave = []
    for g, (task, prompt) in enumerate(zip(chosen, prompts)):
        own = replies[g * GROUP : (g + 1) * GROUP]
        scores = [tasks.score(task.content, policy.text(reply)) for reply in own]
        mean, spread = statistics.fmean(scores), statistics.pstdev(scores)
        group = ObservedGroup(task, tuple(scores), mean, sum(map(len, own)), version)
        sampler.observe(group)
        wave.append(
            (group, [(prompt, r, (s - mean) / (spread + 1e-6)) for r, s in zip(own, scores)])
        )
    return wave


def run_study(
    name: str, sampler: str, seed: int, options: argparse.Namespace
) -> dict[str, Any]:
    """A run of ``options.tokens`` generated tokens; its curve of held-out scores."""
    tasks = SETS[name](seed)
    torch.manual_seed(seed)
    with TemporaryDirectory() as folder:
        write_tiny_model(
            Path(folder), seed=seed, alphabet=ASCII_ALPHABET, hidden_size=options.width
        )
        model = AutoModelForCausalLM.from_pretrained(folder)
    policy = Policy(model, char_tokenizer(ASCII_ALPHABET), options.imitate_lr)
    imitate(policy, tasks, options.imitate, seed)
    policy = Policy(policy.model, policy.tokenizer, options.lr)
    part = CurriculumPart.model_validate(
        {"name": sampler, **options.settings.get(sampler, {})}
    )
    rows = TaskRows(tasks.rows, range(len(tasks.rows)))
    chooser = make_sampler(part, rows, seed=seed, env=name)
    begun, tokens, step, groups, useful = time.monotonic(), 0, 0, 0, 0
    curve = [(0, 0, held_out_score(policy, tasks))]  # tokens, steps, score
    kept: list[list[tuple[list[int], list[int], float]]] = []
    while tokens < options.tokens:
        for group, update_rows in observed_wave(policy, tasks, chooser, step):
            tokens, groups = tokens + group.tokens, groups + 1
            if group.is_useful:
                useful += 1
                kept.append(update_rows)
        if len(kept) >= options.groups:
            policy.update([row for rows in kept for row in rows])
            kept, step = [], step + 1
            if step % options.check_every == 0:
                curve.append((tokens, step, held_out_score(policy, tasks)))
    curve.append((tokens, step, held_out_score(policy, tasks)))
    return {
        "set": name,
        "sampler": sampler,
        "seed": seed,
        "useful_share": useful / groups,
        "tokens_per_useful_group": tokens / max(1, useful),
        "steps": step,
        "reached": {
            f"{target:g}": next(
                ([used, at] for used, at, score in curve if score >= target), None
            )
            for target in TARGETS
        },
        "curve": curve,
        "metrics": chooser.metrics(),
        "seconds": time.monotonic() - begun,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--set", choices=[*SETS], required=True)
    parser.add_argument("--samplers", nargs="+", default=["uniform", "pools"])
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, by sampler")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=200_000, help="generated, of a run")
    parser.add_argument("--groups", type=int, default=8, help="useful groups of a step")
    parser.add_argument("--imitate", type=int, default=0, help="steps on gold replies before")
    parser.add_argument("--imitate-lr", type=float, default=2e-3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=64, help="of the two layers of the model")
    parser.add_argument("--check-every", type=int, default=2, help="steps between scores")
    parser.add_argument("--out", type=Path, help="jsonl file to which runs are appended")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        for sampler in options.samplers:
            run = run_study(options.set, sampler, seed, options)
            first, last = run["curve"][0][2], run["curve"][-1][2]
            print(
                f"{options.set} {sampler} seed {seed}: {first:.2f} -> {last:.2f} in "
                f"{run['steps']} steps, useful {run['useful_share']:.0%}, "
                f"{run['tokens_per_useful_group']:.0f} tokens a useful group, reached "
                f"{ {k: v for k, v in run['reached'].items() if v} }, {run['seconds']:.0f} s",
                flush=True,
            )
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(run) + "\n")


if __name__ == "__main__":
    main()
