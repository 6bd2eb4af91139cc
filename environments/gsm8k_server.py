"""Grade-school mathematics (GSM8K): word problems with a number as answer.

    python environments/gsm8k_server.py serve --env.dataset_path DIR_OR_JSONL
    python environments/gsm8k_server.py process --env.dataset_path test.jsonl --env.total_steps 4

The data come from ``dataset_path`` (``question`` and ``answer`` ending in ``#### n``), else
from the Hugging Face hub. The boxed answer is checked by math-verify: +1 right, -1 wrong. In a
group of right answers only, shorter answers score higher.
"""

import random

from atroposlib.environments.common.length_penalties import brevity_scores
from atroposlib.environments.common.single_turn import SingleTurnConfig, SingleTurnEnv
from atroposlib.envs.function_env.card import Card
from atroposlib.envs.reward_fns.math_verify.checker import Correctness, MathVerifier
from atroposlib.errors import DatasetUnavailable
from atroposlib.utils.datasets import load_rows

SYSTEM_PROMPT = (
    "You may think at length inside <think> </think> tags before you answer. You have "
    "{budget} tokens in all: stop thinking in time. Then give the final answer, a number, "
    "in the form \\boxed{{answer}}."
)


class GSM8kConfig(SingleTurnConfig):
    """Settings of the word problems."""


def load_problems(dataset_path: str | None) -> tuple[list[dict], list[dict]]:
    """(train, test) problems as {"id", "question", "answer"}, the answer a bare number.

    Raises DatasetUnavailable: the message names the missing data and the option to set.
    """

    def problems_of(split):
        rows = load_rows("openai/gsm8k", split, path=dataset_path, subset="main")
        return [problem(f"{split}/{i}", row) for i, row in enumerate(rows)]

    return problems_of("train"), problems_of("test")


def problem(name: str, row: dict) -> dict:
    if "question" not in row or "####" not in row.get("answer", ""):
        raise DatasetUnavailable(
            f"{name}: a row has a question, and an answer ending in '#### n'"
        )
    number = row["answer"].rpartition("####")[2].strip().replace(",", "")
    return {"id": name, "question": row["question"], "answer": number}


class GSM8kEnv(SingleTurnEnv):
    """Asks word problems and rewards a right boxed number, and brevity if all are right."""

    name = "gsm8k"
    env_config_cls = GSM8kConfig
    card = Card(
        "mathematics",
        data="openai/gsm8k",
        licence="MIT",
        gold=lambda item: f"It is \\boxed{{{item['answer']}}}.",
        floor=-1.0,
        wrong=lambda item: [
            f"It is \\boxed{{1{item['answer']}}}.",
            f"It is {item['answer']}.",
        ],
    )

    async def setup(self):
        self.verifier = MathVerifier()  # nearly all answers are plain numbers
        self.train, self.test = load_problems(self.config.dataset_path)
        random.Random(self.config.seed).shuffle(self.train)

    def messages(self, item):
        budget = self.config.max_token_length
        return [
            {"role": "system", "content": SYSTEM_PROMPT.format(budget=budget)},
            {"role": "user", "content": item["question"]},
        ]

    async def judge(self, item, text):
        verdict = await self.verifier.check(text, item["answer"])
        return {Correctness.CORRECT: 1.0, Correctness.WRONG: -1.0, None: None}[verdict]

    def group_scores(self, rewards, lengths):
        return brevity_scores(rewards, lengths, self.config.max_token_length)


if __name__ == "__main__":
    GSM8kEnv.cli()
