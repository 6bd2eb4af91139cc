"""atropos-rm: train a reward model on pairs, by the Bradley-Terry loss.

atropos-rm --model MODEL --train-file dpo.jsonl --save-path runs/rm

The file has the format of atropos-dpo. The reward of a text is the number that the model
returns at its last token; the saved model opens with AutoModelForTokenClassification.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from atroposlib.errors import ConfigError
from example_trainer.data.rows import Row
from example_trainer.distributed import ranks
from example_trainer.model import critic
from example_trainer.model.critic import ValueModel, valued_row
from example_trainer.supervised import corpus, loop, preference
from example_trainer.supervised.corpus import Example, flat
from example_trainer.supervised.preference import PairObjective, RowSums, sides
from example_trainer.supervised.settings import RewardConfig, parse


def train_reward_model(cfg: RewardConfig) -> None:
    """Train and write ``save_path/final_model``."""
    if cfg.shared().trains_adapter or cfg.train_layer_indices is not None or cfg.freeze:
        raise ConfigError(
            "a reward model trains whole: leave lora, train_layer_indices and freeze out"
        )
    with ranks.join_ranks(cfg.shared()) as world:
        model = critic.load_value_model(cfg.shared(), cfg.model_name, world)
        rows_of = partial(corpus.pair_rows, model.tokenizer)
        train_on, valid = corpus.read_both(cfg, rows_of, model.max_tokens_per_row)

        loop.fit(cfg, model, BradleyTerry(rewards_of(model)), train_on, valid)


def rewards_of(model: ValueModel) -> RowSums:
    """Return the rewards of rows made by :func:`scored_row`, a number each."""
    return RowSums(model, lambda microbatch: model.score(microbatch)[0])


@dataclass
class BradleyTerry(PairObjective):
    """Bradley-Terry loss: the better text gets the higher reward, each at its last token."""

    sums: RowSums
    summed = "reward"

    def rows(self, examples: Sequence[Example]) -> list[Row]:
        return [valued_row(row.tokens, row.group) for row in flat(examples)]

    def margins(self, rows: Sequence[Row], sums_R: Tensor) -> Tensor:
        better, worse = sides(sums_R)
        return better - worse

    def losses(self, rows: Sequence[Row], sums_R: Tensor) -> Tensor:
        return preference.bradley_terry(*sides(sums_R))


if __name__ == "__main__":
    ranks.end_process(loop.run_command(train_reward_model, parse(RewardConfig)))
