"""atropos-dpo: train a model to prefer the better of two answers, by DPO or IPO.

atropos-dpo --model MODEL --train-file dpo.jsonl --save-path runs/dpo

The file has lines of {"prefix", "pos", "neg"}, or of lists of messages {"pos", "neg"}, written
by atropos-dpo-gen. The logprobs of the reference model are computed once, before
the first step, so that a single model is in memory while training. ``preference`` has the
formulae.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from example_trainer.data.rows import Row
from example_trainer.distributed import ranks
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import loading
from example_trainer.model.policy import Policy
from example_trainer.supervised import corpus, loop, preference
from example_trainer.supervised.corpus import Corpus, flat
from example_trainer.supervised.preference import PairObjective, RowSums, sides
from example_trainer.supervised.settings import DpoConfig, parse


def train_dpo(cfg: DpoConfig) -> None:
    """Train and write ``save_path/final_model``."""
    with ranks.join_ranks(cfg.shared()) as world:
        policy = loading.load_policy(cfg.shared(), world)
        rows_of = partial(corpus.pair_rows, policy.tokenizer)
        train_on, valid = corpus.read_both(cfg, rows_of, policy.max_tokens_per_row)
        known = reference_sums(cfg, world, policy, [c for c in (train_on, valid) if c])
        loop.fit(cfg, policy, Preference(cfg, sums_of(policy), known), train_on, valid)


def sums_of(policy: Policy) -> RowSums:
    """Log probabilities of answers."""
    return RowSums(policy, lambda microbatch: policy.score(microbatch).logprobs)


def reference_sums(
    cfg: DpoConfig, world: Ranks, policy: Policy, corpora: Iterable[Corpus]
) -> dict[int, float]:
    """Log probability of each answer by the reference model, by the id of its row.

    The reference is ``reference_model``, or the policy as it is before the first step.
    """
    if cfg.reference_model is not None:
        policy = loading.load_reference(cfg.shared(), cfg.reference_model, world)
    sums = sums_of(policy)
    known: dict[int, float] = {}
    for source in corpora:
        for start in range(0, len(source.examples), cfg.lines_per_step):
            rows = flat(source.examples[start : start + cfg.lines_per_step])
            known |= dict(zip(map(id, rows), sums.of(rows).tolist()))
    return known


@dataclass
class Preference(PairObjective):
    """DPO or IPO loss. Margins in nats, before beta."""

    cfg: DpoConfig
    sums: RowSums
    known: dict[int, float]  # see reference_sums
    summed = "logprob"

    def margins(
        self, rows: Sequence[Row], sums_R: Tensor, *, per_token: bool = False
    ) -> Tensor:
        reference = sums_R.new_tensor([self.known[id(row)] for row in rows])
        lengths = sums_R.new_tensor([len(row.trained) if per_token else 1 for row in rows])
        return preference.margins(*sides(sums_R / lengths), *sides(reference / lengths))

    def losses(self, rows: Sequence[Row], sums_R: Tensor) -> Tensor:
        cfg = self.cfg
        if cfg.preference_loss == "ipo":
            return preference.ipo(self.margins(rows, sums_R, per_token=True), cfg.beta)
        margins = self.margins(rows, sums_R)
        return preference.dpo(margins, cfg.beta, cfg.label_smoothing)


if __name__ == "__main__":
    ranks.end_process(loop.run_command(train_dpo, parse(DpoConfig)))
