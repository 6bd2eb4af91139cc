"""atropos-sft: train a model on text, by plain cross entropy.

atropos-sft --model MODEL --train-file sft.jsonl --save-path runs/sft

The file has lines of {"prefix", "completion"} or {"messages"}, written by atropos-sft-gen.
Completions and turns of the assistant are trained; every token counts the same. A vision-language
model takes messages with pictures in data URLs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from example_trainer.data.rows import Row
from example_trainer.distributed import ranks
from example_trainer.model import loading
from example_trainer.model.policy import Policy
from example_trainer.supervised import corpus, loop
from example_trainer.supervised.corpus import Example
from example_trainer.supervised.pictured import with_pixels
from example_trainer.supervised.settings import SftConfig, parse


def train_sft(cfg: SftConfig) -> None:
    """Train and write ``save_path/final_model``."""
    with ranks.join_ranks(cfg.shared()) as world:
        policy = loading.load_policy(cfg.shared(), world)
        rows_of = partial(
            corpus.sft_rows,
            policy.tokenizer,
            end_completions=cfg.end_completions,
            reader=policy.pictures,
        )
        train_on, valid = corpus.read_both(cfg, rows_of, policy.max_tokens_per_row)
        loop.fit(cfg, policy, CrossEntropy(policy), train_on, valid)


@dataclass
class CrossEntropy:
    """-log p of the trained tokens, in nats; the mean over the tokens of a step."""

    policy: Policy

    def learn(self, examples: Sequence[Example]) -> dict[str, float]:
        rows = self._rows(examples)
        tokens = sum(len(row.trained) for row in rows)
        total = torch.zeros((), dtype=torch.float64)
        for microbatch in self.policy.plan_share(rows):
            # A single divisor for the whole step: the gradient is the same for any split.
            loss_sum = -self.policy.score(microbatch).logprobs.sum()
            torch.autograd.backward(loss_sum / tokens)
            total += loss_sum.detach().cpu().double()
        loss = float(self.policy.world.sum_(total)) / tokens
        return {"loss": loss, "trained_tokens": tokens}

    def measure(self, examples: Sequence[Example]) -> tuple[dict[str, float], float]:
        logprobs_R_T = self.policy.trained_logprobs(self._rows(examples))
        tokens = sum(map(len, logprobs_R_T))
        return {"loss": -sum(map(sum, logprobs_R_T))}, float(tokens)

    def _rows(self, examples: Sequence[Example]) -> list[Row]:
        return [with_pixels(row, self.policy.pictures) for row in corpus.flat(examples)]


if __name__ == "__main__":
    ranks.end_process(loop.run_command(train_sft, parse(SftConfig)))
