"""Single-digit sums, which a model of 135 M parameters learns on a laptop in minutes.

    python environments/arithmetic_server.py serve --openai.base_url http://localhost:9001/v1

64 of the 81 sums are trained on and 17 are held out; ``seed`` decides which.
"""

import random
import re

from pydantic import Field

from atroposlib.environments.common.rollouts import SampledConfig
from atroposlib.environments.common.short_answers import ShuffledEnv, texts_of
from atroposlib.envs.function_env.card import Card

SYSTEM_PROMPT = "Answer with only a number."
HELD_OUT = 17
SHAPED = "partial scores lead a small model from prose to bare numbers"


class ArithmeticConfig(SampledConfig):
    """Settings of the sums; the changed defaults suit a small model on a CPU."""

    group_size: int = Field(default=8, ge=1, description="answers to one sum, scored together")
    max_token_length: int = Field(default=128, ge=1, description="most tokens of a sequence")
    max_batches_offpolicy: int = Field(default=1, description="batches generated ahead")
    # True would leave the easiest and the hardest sums out of the measured rate.
    ensure_scores_are_not_same: bool = Field(default=False, description="drop equal scores")
    max_new_tokens: int = Field(default=6, description="most tokens of an answer")
    eval_samples: int = Field(default=1, description="answers to each held-out sum")


def problems(seed: int) -> tuple[list[dict], list[dict]]:
    """The 81 sums as (training, held-out), the same for the same ``seed``."""
    sums = [
        {"id": f"{a}+{b}", "prompt": f"What is {a} + {b}?", "answer": str(a + b)}
        for a in range(1, 10)
        for b in range(1, 10)
    ]
    random.Random(seed).shuffle(sums)
    return sums[HELD_OUT:], sums[:HELD_OUT]


def score(text: str, answer: str, stopped: bool) -> float:
    """1.0 for exactly the answer and an end token, and partial scores for the rest.

    0.4 if the first number is right, plus 0.3 (0.2 without an end) times the share of digits
    in the text: at most 0.7 for a text that is not exact. The share rises continuously from
    prose to a bare number. A fixed score for any number would reward prose that contains a
    number.
    """
    text, numbers = text.strip(), re.findall(r"\d+", text)
    if text == answer and stopped:
        return 1.0
    digits = sum(character.isdigit() for character in text) / max(len(text), 1)
    right = 0.4 if numbers and numbers[0] == answer else 0.0
    return right + digits * (0.3 if stopped else 0.2)


class ArithmeticEnv(ShuffledEnv):
    """Asks for sums, rewards answers by the rules of :func:`score`, measures exact answers."""

    name = "arithmetic"
    env_config_cls = ArithmeticConfig
    card = Card(
        "mathematics",
        data="made on the spot",
        licence="MIT",
        gold=lambda item: item["answer"],
        bounds={
            "garbage.fails": (0.35, SHAPED),
            "swap.fails": (0.35, SHAPED),
            "score.length": (None, SHAPED),
        },
    )

    async def setup(self):
        self.train, self.held_out = problems(self.config.seed)

    def messages(self, item):
        return [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": item["prompt"]},
        ]

    async def scored(self, item, choices):
        answers = []
        for choice, text in zip(choices, texts_of(choices)):
            reward = score(text, item["answer"], choice.finish_reason == "stop")
            answers.append(
                {
                    "prompt": item["prompt"],
                    "completion": text,
                    "expected": item["answer"],
                    "reward": reward,
                    "exact": reward == 1.0,
                }
            )
        return answers

    def eval_samples(self):
        return self.config.eval_samples


if __name__ == "__main__":
    ArithmeticEnv.cli()
