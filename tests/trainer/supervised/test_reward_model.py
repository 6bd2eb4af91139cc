from __future__ import annotations

import pytest
import torch

from atroposlib.cli.collect.collecting import dpo_gen
from atroposlib.errors import ConfigError
from example_trainer.model import critic
from example_trainer.supervised import reward_model
from example_trainer.supervised.preference import RowSums
from tests.trainer.supervised.answers import PROMPTS, bad, good
from tests.trainer.supervised.pairs import PAIRS, metrics


def test_reward_model_ranks_the_better_answer_higher(collected, settings, tmp_path):
    path = collected[dpo_gen]
    reward_model.train_reward_model(
        reward_model.RewardConfig(
            **settings(path, valid_file=str(path), checkpoint_interval=5)
        )
    )
    told = metrics(tmp_path)
    assert told[0]["loss"] == pytest.approx(0.6931, abs=1e-3)  # a head of zeros
    assert told[-1]["valid/accuracy"] > 0.9

    from transformers import AutoModelForTokenClassification, AutoTokenizer

    final = str(tmp_path / "saved" / "final_model")
    loaded = AutoModelForTokenClassification.from_pretrained(final)
    tokenizer = AutoTokenizer.from_pretrained(final)
    for prompt in PROMPTS[:8]:
        better, worse = (
            loaded(torch.tensor([tokenizer(prompt + end(prompt))["input_ids"]])).logits[
                0, -1, 0
            ]
            for end in (good, bad)
        )
        assert better > worse


def test_the_rewards_of_a_pair_are_those_at_its_last_tokens(settings):
    shared = reward_model.RewardConfig(**settings("none")).shared()
    one = critic.load_value_model(shared, shared.model_name)
    torch.nn.init.normal_(one.model.score.weight, std=0.1)
    rows = [critic.valued_row(side.tokens, side.group) for side in PAIRS[0]]
    found = RowSums(one, lambda plan: one.score(plan)[0]).of(rows)
    for side, reward in zip(PAIRS[0], found.tolist()):
        with torch.no_grad():
            own = one.model.base_model(torch.tensor([side.tokens])).last_hidden_state[0, -1]
            assert reward == pytest.approx(float(one.model.score(own)), abs=1e-5)


def test_a_reward_model_with_an_adapter_is_refused(settings):
    with pytest.raises(ConfigError, match="trains whole"):
        reward_model.train_reward_model(
            reward_model.RewardConfig(**settings("none", lora=True))
        )
