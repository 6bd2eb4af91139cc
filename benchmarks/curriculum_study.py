"""Tokens to a held-out score, with samplers of tasks against uniform, in a single process.

    python benchmarks/curriculum_study.py --set backwards --seeds 0 1 2 --samplers uniform pools

The sets ``backwards``, ``count`` (settings of letters) and ``tic_tac_toe`` are environments of
environments/library: their own functions play and score, on the policy. The others are made here:
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
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM

from atroposlib.environments.library.letters import letters
from atroposlib.environments.library.tic_tac_toe import tic_tac_toe
from atroposlib.envs.curriculum.interface import ObservedGroup, TaskRows, TaskSampler
from atroposlib.envs.curriculum.registry import make_sampler
from atroposlib.envs.function_env.card import ScriptedSession, score_session
from atroposlib.envs.function_env.rollout_model import Model
from atroposlib.envs.settings.curriculum_settings import CurriculumPart
from atroposlib.testing.tiny import ASCII_ALPHABET, char_tokenizer, write_tiny_model
from atroposlib.wire import ids

WAVE = 8  # tasks under way at once
HELD_OUT = 128
TARGETS = tuple(n / 20 for n in range(2, 20))


# --- tasks ------------------------------------------------------------------------------


@dataclass(frozen=True)
class TaskSet:
    """Tasks, the function that plays and scores them, and replies to imitate."""

    rows: Sequence[Any]
    held_out: Sequence[Any]
    play: Callable[[Any, Model], Awaitable[float]]
    demonstrate: Callable[[Any, random.Random], Any]  # a session that replies
    max_new: int  # tokens of a reply


def library_set(
    env_cls: Any,
    seed: int,
    *,
    max_new: int,
    demonstrate: Callable[[Any, random.Random], Any] | None = None,
    **settings: Any,
) -> TaskSet:
    """Tasks of an environment of the library; without ``demonstrate`` its gold replies."""
    config = env_cls.env_config_cls(**settings, seed=seed)
    rows = list(env_cls.definition.dataset(config))
    random.Random(seed).shuffle(rows)
    held_out = min(HELD_OUT, len(rows) * 3 // 10)
    gold = env_cls.definition.card.gold

    async def play(task: Any, model: Model) -> float:
        reward = await score_session(env_cls, task, model, config)
        return float(reward.score or 0.0)

    return TaskSet(
        rows[held_out:],
        rows[:held_out],
        play,
        demonstrate or (lambda task, rng: ScriptedSession(gold(task))),
        max_new,
    )


class LegalMoves(ScriptedSession):
    """Replies with a random digit of the shown board: the free cells are numbered."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(())
        self.rng = rng

    async def chat_completion(self, *, messages: Sequence[Any] = (), **sampling: Any) -> Any:
        self.left = [self.rng.choice([c for c in messages[-1]["content"] if c.isdigit()])]
        return await super().chat_completion(**sampling)


def copied_words(rows: Sequence[Any], held_out: Sequence[Any], max_new: int) -> TaskSet:
    """Words to copy, which give no reward where the task is not ``possible``."""

    async def play(task: Any, model: Model) -> float:
        reply = await model.chat(task["word"])
        return float(task.get("possible", True) and reply == task["word"])

    def demonstrate(task: Any, rng: random.Random) -> ScriptedSession:
        return ScriptedSession(task["word"])

    return TaskSet(rows, held_out, play, demonstrate, max_new)


def impossible_set(seed: int) -> TaskSet:
    """Two letters to copy; of 400 tasks 40 can be solved."""
    rng = random.Random(seed)
    words = [f"{a}{b}" for a in "abcdefghij" for b in "abcdefghij"]
    rng.shuffle(words)
    rows = [{"word": rng.choice(words[50:]), "possible": n % 10 == 0} for n in range(400)]
    return copied_words(rows, [{"word": word} for word in words[:50]], max_new=3)


def graded_set(seed: int) -> TaskSet:
    """Words of up to six letters to copy: the longer, the harder; evaluated on all lengths."""
    rng = random.Random(seed)
    rows = [{"word": "".join(rng.choices("abcdefghij", k=n % 6 + 1))} for n in range(480)]
    rng.shuffle(rows)
    return copied_words(rows[HELD_OUT:], rows[:HELD_OUT], max_new=7)


SETS: dict[str, Callable[[int], TaskSet]] = {
    "count": lambda seed: library_set(
        letters, seed, max_new=2, words=1, backwards=0, bare=True, tasks=900
    ),
    "backwards": lambda seed: library_set(
        letters, seed, max_new=38, words=2, backwards=1, tasks=2000
    ),
    "tic_tac_toe": lambda seed: library_set(
        tic_tac_toe,
        seed,
        max_new=2,
        demonstrate=lambda task, rng: LegalMoves(rng),
        bare=True,
        history=False,
    ),
    "graded": graded_set,
    "impossible": impossible_set,
}


# --- the policy -------------------------------------------------------------------------


class Row(NamedTuple):
    """A reply with the weight of its logprobs."""

    prompt: list[int]
    reply: list[int]
    weight: float


@dataclass
class Policy:
    """The tiny model with its tokenizer and optimizer."""

    model: Any
    tokenizer: Any
    learning_rate: float
    optimizer: Any = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=self.learning_rate, weight_decay=0.0
        )

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        rendered = self.tokenizer.apply_chat_template(
            [*messages], add_generation_prompt=True, tokenize=False
        )
        return list(self.tokenizer.encode(rendered, add_special_tokens=False))

    def reply_ids(self, text: str) -> list[int]:
        return [
            *self.tokenizer.encode(text, add_special_tokens=False),
            self.tokenizer.eos_token_id,
        ]

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[list[int]], max_new: int, generator: torch.Generator
    ) -> list[list[int]]:
        """A reply to each prompt at temperature 1, with the end token if it came."""
        distinct = sorted({tuple(prompt) for prompt in prompts})  # a group shares its prompt
        which_B = torch.tensor([distinct.index(tuple(prompt)) for prompt in prompts])
        width, pad = max(map(len, distinct)), self.tokenizer.pad_token_id
        ids_PT = torch.tensor([[pad] * (width - len(p)) + [*p] for p in distinct])  # (P, T)
        mask_PT = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in distinct])
        out = self.model(
            ids_PT,
            attention_mask=mask_PT,
            position_ids=(mask_PT.cumsum(1) - 1).clamp(min=0),
            logits_to_keep=1,
        )
        past = out.past_key_values
        past.batch_select_indices(which_B)
        probs_BV, mask_BT = out.logits[which_B, -1].softmax(-1), mask_PT[which_B]
        done, replies = [False] * len(prompts), [[] for _ in prompts]
        for place in range(max_new):
            chosen = torch.multinomial(probs_BV, 1, generator=generator)  # (B, 1)
            for b, token in enumerate(chosen[:, 0].tolist()):
                if not done[b]:
                    replies[b].append(token)
                    done[b] = token == self.tokenizer.eos_token_id
            if all(done) or place == max_new - 1:
                break
            mask_BT = torch.cat([mask_BT, torch.ones_like(chosen)], 1)
            out = self.model(
                chosen,
                attention_mask=mask_BT,
                position_ids=mask_BT.sum(1, keepdim=True) - 1,
                past_key_values=past,
            )
            past, probs_BV = out.past_key_values, out.logits[:, -1].softmax(-1)
        return replies

    def text(self, reply: list[int]) -> str:
        return str(self.tokenizer.decode(reply, skip_special_tokens=True))

    def update(self, rows: Sequence[Row]) -> None:
        """A step on ``rows``: the weighted mean of logprobs goes up."""
        rows = [row for row in rows if row.weight and row.reply]
        width = max(len(row.prompt) + len(row.reply) for row in rows)
        rows_ids, weights = [], []
        for row in rows:
            rest = width - len(row.prompt) - len(row.reply)
            rows_ids.append([*row.prompt, *row.reply, *[self.tokenizer.pad_token_id] * rest])
            weights.append(
                [0.0] * len(row.prompt) + [row.weight] * len(row.reply) + [0.0] * rest
            )
        ids_BT = torch.tensor(rows_ids)
        weights_BT = torch.tensor(weights)[:, 1:]
        logits_BTV = self.model(ids_BT).logits[:, :-1]
        logprobs_BT = logits_BTV.log_softmax(-1).gather(-1, ids_BT[:, 1:, None])[..., 0]
        loss = -(logprobs_BT * weights_BT).sum() / (weights_BT != 0).sum()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


@dataclass
class PolicySession:
    """Session of a rollout on the policy; keeps the tokens of its turns."""

    sampler: JointSampler
    turns: list[tuple[list[int], list[int]]] = field(default_factory=list)  # prompt, reply

    async def chat_completion(self, *, messages: Sequence[Any], **_: Any) -> Any:
        prompt = self.sampler.policy.prompt_ids(messages)
        reply = await self.sampler.reply_to(prompt)
        self.turns.append((prompt, reply))
        ended = reply[-1:] == [self.sampler.policy.tokenizer.eos_token_id]
        message = SimpleNamespace(content=self.sampler.policy.text(reply), tool_calls=None)
        choice = SimpleNamespace(message=message, finish_reason="stop" if ended else "length")
        return SimpleNamespace(id=ids.source().hex, choices=[choice], usage=None)


class JointSampler:
    """Samples the next turns of many rollouts at once, when all that go on wait for theirs."""

    def __init__(self, policy: Policy, max_new: int, generator: torch.Generator) -> None:
        self.policy, self.max_new, self.generator = policy, max_new, generator
        self.waiting: list[tuple[list[int], asyncio.Future[list[int]]]] = []

    async def reply_to(self, prompt: list[int]) -> list[int]:
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self.waiting.append((prompt, future))
        return await future

    async def run(self, rollouts: Sequence[Coroutine[Any, Any, float]]) -> list[float]:
        """The scores of ``rollouts``."""
        begun = [asyncio.ensure_future(rollout) for rollout in rollouts]
        while going_on := sum(not rollout.done() for rollout in begun):
            if len(self.waiting) == going_on:
                waiting, self.waiting = self.waiting, []
                prompts = [prompt for prompt, _ in waiting]
                replies = self.policy.sample(prompts, self.max_new, self.generator)
                for (_, future), reply in zip(waiting, replies):
                    future.set_result(reply)
            await asyncio.sleep(0)
        return [rollout.result() for rollout in begun]


def model_on(session: Any) -> Model:
    async def refuse(name: str) -> Any:
        raise NotImplementedError("no servers here")

    return Model(session, "train", 1.0, 512, open_endpoint=refuse)


def play_on_policy(
    policy: Policy, tasks: TaskSet, rows: Sequence[Any], generator: torch.Generator
) -> tuple[list[float], list[PolicySession]]:
    """Scores of a rollout of each of ``rows``, and their sessions."""
    sampler = JointSampler(policy, tasks.max_new, generator)
    sessions = [PolicySession(sampler) for _ in rows]
    rollouts: list[Any] = [tasks.play(row, model_on(s)) for row, s in zip(rows, sessions)]
    return asyncio.run(sampler.run(rollouts)), sessions


def imitate(policy: Policy, tasks: TaskSet, steps: int, seed: int) -> None:
    """Train on demonstrated replies to trained tasks."""
    rng = random.Random(seed)

    async def lessons(task: Any) -> list[Row]:
        model = model_on(tasks.demonstrate(task, rng))
        asked: list[Sequence[Any]] = []
        model.listener = lambda endpoint, sent, reply: asked.append([*sent])
        await tasks.play(task, model)
        return [
            Row(policy.prompt_ids(sent), policy.reply_ids(reply), 1.0)
            for sent, reply in zip(asked, model.replies)
        ]

    for _ in range(steps):
        batch = rng.choices(tasks.rows, k=64)
        policy.update([row for task in batch for row in asyncio.run(lessons(task))])


# --- a run ------------------------------------------------------------------------------


def held_out_means(policy: Policy, tasks: TaskSet, samples: int) -> list[float]:
    """Mean score of each held-out task at temperature 1."""
    rows = [task for task in tasks.held_out for _ in range(samples)]
    scores, _ = play_on_policy(policy, tasks, rows, torch.Generator().manual_seed(0))
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
    imitate(policy, tasks, options.imitate, seed)
    return model


def run_study(
    name: str,
    sampler: str,
    seed: int,
    tasks: TaskSet,
    start: Any,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """A run of ``options.tokens`` generated tokens; its curve of held-out scores."""
    policy = Policy(deepcopy(start), char_tokenizer(ASCII_ALPHABET), options.lr)
    generator = torch.Generator().manual_seed(seed)
    part = CurriculumPart.model_validate(
        {"name": sampler, **options.settings.get(sampler, {})}
    )
    rows = TaskRows(tasks.rows, range(len(tasks.rows)))
    chooser = make_sampler(part, rows, seed=seed, env=name)
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
            policy.update([row for rows in kept for row in rows])
            kept, step = [], step + 1
            if step % options.check_every == 0:
                held_out = held_out_means(policy, tasks, options.samples)
                curve.append((tokens, step, *mean_and_error(held_out)))
    held_out = held_out_means(policy, tasks, options.samples)
    curve.append((tokens, step, *mean_and_error(held_out)))
    return {
        "set": name,
        "sampler": sampler,
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
        "held_out": held_out,  # at the end, of each task
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
    parser.add_argument("--group-size", type=int, default=16, help="samples of a task")
    parser.add_argument("--imitate", type=int, default=0, help="steps on replies before")
    parser.add_argument("--imitate-lr", type=float, default=2e-3)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--width", type=int, default=64, help="of the two layers of the model")
    parser.add_argument("--check-every", type=int, default=2, help="steps between scores")
    parser.add_argument("--samples", type=int, default=1, help="of each held-out task")
    parser.add_argument("--out", type=Path, help="jsonl file to which runs are appended")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        tasks = SETS[options.set](seed)
        start = starting_model(tasks, seed, options)
        first_run: dict[str, Any] = {}
        for sampler in options.samplers:
            run = run_study(options.set, sampler, seed, tasks, start, options)
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
