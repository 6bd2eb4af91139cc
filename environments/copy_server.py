"""Copy a short word: what a model of random weights learns by reward alone in a minute.

    python environments/copy_server.py serve --openai.base_url http://localhost:9001/v1

Words are drawn at random; ``held_out_words`` of them are never trained on.
"""

import asyncio
import random
import time

from pydantic import Field

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.envs.groups import from_nodes


class CopyConfig(BaseEnvConfig):
    """Settings of the words; the changed defaults suit a tiny model."""

    group_size: int = Field(
        default=16, ge=1, description="copies of one word, scored together"
    )
    max_token_length: int = Field(default=32, ge=1, description="most tokens of a sequence")
    max_batches_offpolicy: int = Field(default=1, description="batches generated ahead")
    # True would leave out the words that all samples copy, and with them the progress.
    ensure_scores_are_not_same: bool = Field(default=False, description="drop equal scores")
    alphabet: str = Field(default="abcdefghij", description="letters of the words")
    word_length: int = Field(default=4, ge=1, description="letters per word, tokens per copy")
    held_out_words: int = Field(default=64, ge=1, description="words for evaluation only")
    temperature: float = Field(default=1.0, description="of training rollouts")
    eval_temperature: float = Field(default=0.0, description="of evaluation; 0: greedy")


def letters_right(text: str, word: str, alphabet: str) -> float:
    """Share of letters in their place; a wrong letter of the alphabet counts a tenth.

    "abxd" against "abcd" is 0.75, and 0.775 if x is of the alphabet: a model that knows
    nothing has to find the alphabet before it can find the letter.
    """
    places = zip(text, word)
    return sum(1.0 if a == b else 0.1 * (a in alphabet) for a, b in places) / len(word)


class CopyEnv(BaseEnv):
    """Shows a word and rewards every letter that comes back in its place."""

    name = "copy"
    env_config_cls = CopyConfig

    @classmethod
    def config_init(cls):
        server = APIServerConfig(base_url="http://localhost:9001/v1", server_type="vllm")
        return cls.env_config_cls(), [server]

    async def setup(self):
        held_out = random.Random(f"{self.config.seed}/held out")
        self.held_out = [self.word(held_out) for _ in range(self.config.held_out_words)]
        self.iter = 0

    def word(self, rng):
        return "".join(rng.choices(self.config.alphabet, k=self.config.word_length))

    async def get_next_item(self):
        rng = random.Random(f"{self.config.seed}/{self.iter}")
        self.iter += 1
        while (word := self.word(rng)) in self.held_out:
            pass
        return {"id": word}

    async def collect_trajectories(self, item):
        temperature = self.config.temperature
        copies, nodes = await self.copy(item["id"], self.config.group_size, temperature)
        group = from_nodes(
            nodes,
            [copy["reward"] for copy in copies],
            generation_params={"temperature": temperature},
            metrics={"exact": sum(copy["exact"] for copy in copies) / len(copies)},
        )
        return group, []  # nothing for the backlog

    async def copy(self, word, n, temperature, split="train"):
        """``n`` scored copies of ``word``, and their token-exact nodes in the same order."""
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.chat_completion(
                messages=[{"role": "user", "content": word}],
                n=n,
                max_tokens=self.config.word_length,
                temperature=temperature,
                split=split,
            )
            nodes = managed.nodes_for(completion)
        copies = [
            {
                "prompt": word,
                "completion": text,
                "expected": word,
                "reward": letters_right(text, word, self.config.alphabet),
                "exact": text == word,
            }
            for text in (choice.message.content or "" for choice in completion.choices)
        ]
        return copies, nodes

    async def evaluate(self, *args, **kwargs):
        started, temperature = time.time(), self.config.eval_temperature
        copying = [self.copy(word, 1, temperature, split="eval") for word in self.held_out]
        samples = [copy for copies, _ in await asyncio.gather(*copying) for copy in copies]
        await self.evaluate_log(
            {
                "exact": sum(sample["exact"] for sample in samples) / len(samples),
                "reward": sum(sample["reward"] for sample in samples) / len(samples),
            },
            start_time=started,
            end_time=time.time(),
            generation_parameters={"temperature": temperature},
            samples=samples,
        )

    def save_checkpoint(self, step, data=None):
        super().save_checkpoint(step, {"iter": self.iter})


if __name__ == "__main__":
    CopyEnv.cli()
