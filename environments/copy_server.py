"""Copy a short word; a model of random weights learns it from rewards in a minute.

    python environments/copy_server.py serve --openai.base_url http://localhost:9001/v1

Words are drawn at random; ``held_out_words`` words are never trained on.
"""

import random

from pydantic import Field

from atroposlib.environments.common.rollouts import SampledConfig
from atroposlib.environments.common.short_answers import ShortAnswerEnv, texts_of
from atroposlib.envs.function_env.card import Card

SHAPED = "letters count one by one, and a tenth for any of the alphabet"


class CopyConfig(SampledConfig):
    """Settings of the words; the changed defaults suit a tiny model."""

    group_size: int = Field(
        default=16, ge=1, description="copies of one word, scored together"
    )
    max_token_length: int = Field(default=32, ge=1, description="most tokens of a sequence")
    max_batches_offpolicy: int = Field(default=1, description="batches generated ahead")
    # True would drop the words that all samples copy, and hide the progress.
    ensure_scores_are_not_same: bool = Field(default=False, description="drop equal scores")
    alphabet: str = Field(default="abcdefghij", description="letters of the words")
    word_length: int = Field(default=4, ge=1, description="letters per word, tokens per copy")
    held_out_words: int = Field(default=64, ge=1, description="words for evaluation only")


def letters_right(text: str, word: str, alphabet: str) -> float:
    """Share of letters in their place; a wrong letter of the alphabet counts a tenth.

    "abxd" against "abcd" is 0.75, and 0.775 if x is in the alphabet: an untrained model has
    to learn the alphabet before the letters.
    """
    places = zip(text, word)
    return sum(1.0 if a == b else 0.1 * (a in alphabet) for a, b in places) / len(word)


class CopyEnv(ShortAnswerEnv):
    """Shows a word and rewards every letter copied to its place."""

    name = "copy"
    env_config_cls = CopyConfig
    card = Card(
        "text",
        data="made on the spot",
        licence="MIT",
        gold=lambda item: item["id"],
        bounds={
            **dict.fromkeys(("leak.prompt", "echo.fails"), (None, "the task is to copy")),
            **dict.fromkeys(("garbage.fails", "judge.injection"), (0.35, SHAPED)),
            "swap.fails": (0.3, SHAPED),
            "score.length": (None, "only the first letters count"),
        },
    )

    async def setup(self):
        held_out = random.Random(f"{self.config.seed}/held out")
        self.held_out = [self.drawn(held_out) for _ in range(self.config.held_out_words)]

    def drawn(self, rng):
        return {"id": "".join(rng.choices(self.config.alphabet, k=self.config.word_length))}

    async def get_next_item(self):
        rng = random.Random(f"{self.config.seed}/{self.iter}")
        self.iter += 1
        while (item := self.drawn(rng)) in self.held_out:
            pass
        return item

    def messages(self, item):
        return [{"role": "user", "content": item["id"]}]

    def answer_tokens(self):
        return self.config.word_length

    async def scored(self, item, choices):
        word = item["id"]
        return [
            {
                "prompt": word,
                "completion": text,
                "expected": word,
                "reward": letters_right(text, word, self.config.alphabet),
                "exact": text == word,
            }
            for text in texts_of(choices)
        ]


if __name__ == "__main__":
    CopyEnv.cli()
