"""Preference rewards: a judge model compares two replies by a wanted character.

    python environments/rlaif_server.py serve --env.dataset_path wildchat.jsonl \\
        --env.character "calm, precise, and without flattery"

Questions: the first user turns of allenai/WildChat. The judge sees each pair in both orders,
``votes_per_order`` times each, so a preference for the first place cancels out. A reply's
score is its share of the votes minus a half. The judge is the trained model or another model
(``judge_base_url``).
"""

import random
import time
from typing import Annotated

from pydantic import Field

from atroposlib.environments.common.judge import judge_server, verdict_in
from atroposlib.environments.common.rollouts import (
    SampledConfig,
    SequentialEnv,
    mean,
    tokens_left,
)
from atroposlib.envs.rollout.groups import from_nodes
from atroposlib.errors import AtroposError, DatasetUnavailable
from atroposlib.utils.datasets import LOCAL_ROWS, load_rows
from atroposlib.utils.gathering import gather_bounded

CHARACTER = (
    "warm and plain-spoken: says the useful thing first, admits what it does not know, and "
    "never lectures"
)
JUDGE_PROMPT = """Two assistants answered the same question. Which answer is nearer to this \
character: {character}?

Judge only that and whether the question is answered; not length, and not the order.

[Question]
{question}

[Answer A]
{first}

[Answer B]
{second}

Compare them in a few sentences. Then end with one line: "Verdict: A", "Verdict: B" or \
"Verdict: tie"."""
SHARES = {"a": 1.0, "b": 0.0, "tie": 0.5}


class JudgeError(AtroposError):
    """judge_error: an order has no verdict, so the pair has no score."""


class RlaifConfig(SampledConfig):
    """Settings of the questions, the character and the judge."""

    group_size: int = Field(default=2, ge=2, le=2, description="replies compared: a pair")
    dataset_path: Annotated[str | None, LOCAL_ROWS] = Field(
        default=None, description=".jsonl, .json or .parquet file of WildChat; None: the hub"
    )
    dataset_rows: int = Field(
        default=20_000, ge=2, description="conversations read; all of WildChat is a million"
    )
    max_chars: int = Field(
        default=4000, ge=1, description="longer questions and recorded answers are left out"
    )
    character: str = Field(default=CHARACTER, description="what the judge looks for")
    character_share: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="share of questions asked with the character in the prompt",
    )
    max_reply_tokens: int = Field(default=1024, ge=1, description="most tokens of a reply")
    eval_temperature: float = Field(default=0.6, description="of evaluated replies")
    eval_questions: int = Field(
        default=50, ge=1, description="questions held out; at most half of all"
    )
    votes_per_order: int = Field(default=3, ge=1, description="verdicts in each order")
    judge_temperature: float = Field(default=0.7, description="of the judge")
    judge_max_tokens: int = Field(default=512, ge=1, description="most tokens of a verdict")
    judge_base_url: str | None = Field(
        default=None, description="server of another judge, .../v1; None: the trained model"
    )
    judge_model_name: str | None = Field(default=None, description="that judge's model")
    judge_api_key: str | None = Field(default=None, exclude=True, description="and its key")


def question(name: str, row: dict, max_chars: int) -> dict | None:
    """{"id", "question", "answer"} of a conversation's first exchange; None if unusable."""
    turns = row.get("conversation")
    if not isinstance(turns, list):
        raise DatasetUnavailable(f"{name}: a row has a conversation, a list of turns")
    texts = [str(turn.get("content") or "").strip() for turn in turns[:2]]
    roles = [turn.get("role") for turn in turns[:2]]
    if roles != ["user", "assistant"] or not all(0 < len(t) <= max_chars for t in texts):
        return None
    return {"id": name, "question": texts[0], "answer": texts[1]}


def verdict(text: str) -> float | None:
    """Share of the vote for answer A: 1, 0, or 0.5 for a tie; None without a last verdict."""
    return SHARES.get(verdict_in(text, [*SHARES]) or "")


def win_rate(as_first: list[float | None], as_second: list[float | None]) -> float:
    """Share of the votes for a reply; shares of A from both orders, each order weighing half.

    [1, 1, None] as A and [0, 0.5, 0] as B: (1 + (1 - 1/6)) / 2 = 0.917. Raises JudgeError: an
    order has no verdict at all.
    """
    orders = [[v for v in votes if v is not None] for votes in (as_first, as_second)]
    if not all(orders):
        raise JudgeError(
            "judge_error: no verdict in one of the orders; raise --env.judge_max_tokens or set "
            "--env.judge_base_url to a model that ends with 'Verdict: A', 'B' or 'tie'"
        )
    return (mean(orders[0]) + 1.0 - mean(orders[1])) / 2


def scores_by_length(cut_off: list[bool]) -> list[float] | None:
    """Scores without a judge: a truncated reply loses to a complete reply.

    None: neither was truncated, so the judge decides. Two truncated replies are equal.
    """
    if not any(cut_off):
        return None
    if all(cut_off):
        return [0.0, 0.0]
    return [-0.5 if cut else 0.5 for cut in cut_off]


class RlaifEnv(SequentialEnv):
    """Asks real questions and rewards the reply that the judge prefers."""

    name = "rlaif"
    env_config_cls = RlaifConfig
    judge = None  # None until setup
    default_settings = {"steps_per_eval": 100}

    async def setup(self):
        config = self.config
        rows = load_rows(
            "allenai/WildChat",
            "train",
            path=config.dataset_path,
            limit=config.dataset_rows,
            columns=("conversation",),
        )
        read = (question(f"{i}", row, config.max_chars) for i, row in enumerate(rows))
        prompts = [item for item in read if item is not None]
        if len(prompts) < 2:
            raise DatasetUnavailable(
                f"WildChat: {len(prompts)} of {len(rows)} rows begin with a user's and an "
                f"assistant's turn of at most {config.max_chars} characters (--env.max_chars); "
                "--env.dataset_path names a file with more"
            )
        self.hold_out(prompts, config.eval_questions)
        self.judge = judge_server(config) or self.server

    async def get_next_item(self):
        rng = random.Random(f"{self.config.seed}/{self.iter}")
        item = await super().get_next_item()
        return {**item, "with_character": rng.random() < self.config.character_share}

    async def reply(self, item, n, temperature, split):
        """``n`` replies to ``item``: (choice, token-exact node) of each."""
        messages = [{"role": "user", "content": item["question"]}]
        if item.get("with_character"):
            instruction = f"Answer in this character: {self.config.character}."
            messages.insert(0, {"role": "system", "content": instruction})
        tokens = tokens_left(self.tokenizer, messages, self.config.max_token_length)
        if tokens < 1:
            return []  # the question alone is longer than a sequence may be
        limit = min(tokens, self.config.max_reply_tokens)
        return await self.answers(messages, n, limit, temperature, split)

    async def votes(self, question, first, second, split):
        """Shares of answer A for each vote; None for a vote without a verdict."""
        prompt = JUDGE_PROMPT.format(
            character=self.config.character, question=question, first=first, second=second
        )
        completion = await self.judge.chat_completion(
            messages=[{"role": "user", "content": prompt}],
            n=self.config.votes_per_order,
            max_tokens=self.config.judge_max_tokens,
            temperature=self.config.judge_temperature,
            split=split,
        )
        return [verdict(choice.message.content or "") for choice in completion.choices]

    async def compare(self, question, first, second, split):
        """Win rate of the text ``first`` over ``second``; raises JudgeError."""
        as_first, as_second = await gather_bounded(
            [(first, second), (second, first)],
            lambda pair: self.votes(question, *pair, split),
            2,
        )
        return win_rate(as_first, as_second)

    async def collect_trajectories(self, item):
        replies = await self.reply(item, 2, self.config.temperature, "train")
        if not replies:
            return None, []
        texts = [choice.message.content or "" for choice, _ in replies]
        cut_off = [choice.finish_reason == "length" for choice, _ in replies]
        scores = scores_by_length(cut_off)
        metrics = {"percent_cut_off": mean(cut_off), "judged": float(scores is None)}
        if scores is None:
            rate = await self.compare(item["question"], *texts, "train")
            scores = [rate - 0.5, 0.5 - rate]
            metrics["decisiveness"] = abs(2 * rate - 1)
        messages = None
        if self.config.include_messages:
            user_turn = {"role": "user", "content": item["question"]}
            messages = [[user_turn, {"role": "assistant", "content": text}] for text in texts]
        group = from_nodes(
            [node for _, node in replies],
            scores,
            messages=messages,
            metrics=metrics,
        )
        return group, []

    async def evaluate(self, *args, **kwargs):
        """Win rate over the answers recorded in WildChat, on questions never trained on."""
        started, temperature = time.time(), self.config.eval_temperature

        async def one(item):
            replies = await self.reply(item, 1, temperature, "eval")
            text = replies[0][0].message.content or "" if replies else ""
            sample = {"prompt": item["question"], "completion": text, "other": item["answer"]}
            try:
                rate = await self.compare(item["question"], text, item["answer"], "eval")
            except JudgeError as error:
                return {
                    **sample,
                    "win_rate": None,
                    "outcome": "judge_error",
                    "why": str(error),
                }
            return {**sample, "win_rate": rate, "outcome": "ok"}

        samples = await gather_bounded(self.test, one, self.config.max_eval_workers)
        rates = [sample["win_rate"] for sample in samples if sample["win_rate"] is not None]
        metrics = {"judge_errors": len(samples) - len(rates), "questions": len(samples)}
        if rates:  # a win rate needs verdicts
            metrics["win_rate"] = mean(rates)
        await self.evaluate_log(
            metrics,
            start_time=started,
            generation_parameters={"temperature": temperature},
            samples=samples,
        )

    async def close(self):
        if self.judge not in (None, self.server):
            await self.judge.close()
        await super().close()


if __name__ == "__main__":
    RlaifEnv.cli()
