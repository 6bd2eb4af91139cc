from __future__ import annotations

import pytest

from atroposlib.cli.collect.collecting import dpo_gen
from example_trainer.model import loading
from example_trainer.supervised import dpo
from tests.trainer.supervised.pairs import PAIRS, metrics


@pytest.mark.parametrize("kind", ["sigmoid", "ipo"])
def test_the_margin_of_pairs_grows(collected, settings, tmp_path, kind):
    path = collected[dpo_gen]
    cfg = settings(path, preference_loss=kind, valid_file=str(path), epochs=3)
    dpo.train_dpo(dpo.DpoConfig(**cfg))
    told = metrics(tmp_path)
    assert told[0]["margin"] == pytest.approx(0.0, abs=1e-4)  # the reference is the start
    assert told[0]["accuracy"] == pytest.approx(0.5, abs=0.5)
    assert told[-1]["valid/margin"] > 1.0 and told[-1]["valid/accuracy"] == 1.0
    assert told[-1]["loss"] < told[0]["loss"]


def test_the_loss_of_a_pair_is_that_of_the_formula(settings):
    cfg = dpo.DpoConfig(**settings("none"), beta=0.5)
    policy = loading.load_policy(cfg.shared())
    better, worse = (sum(one) for one in policy.trained_logprobs(PAIRS[0]))
    known = {id(PAIRS[0][0]): better - 1.0, id(PAIRS[0][1]): worse + 1.0}  # margin 2
    told = dpo.Preference(cfg, dpo.sums_of(policy), known).learn(PAIRS[:1])
    assert told["margin"] == pytest.approx(2.0, abs=1e-4)
    assert told["loss"] == pytest.approx(0.3132616875, abs=1e-4)  # -log sigmoid(1)
