"""What is measured on loading: packing, shared prefixes, lengths, what follows the head."""

from __future__ import annotations

import pytest
import torch

from atroposlib.errors import ConfigError
from example_trainer.model import attention, loading, probing
from tests.trainer.architectures import write
from tests.trainer.families import family_of
from tests.trainer.rows import MULTI_TURN


def test_packing_is_switched_off_by_its_setting(config, gqa_dir):
    padded = loading.load_policy(config(model_name=str(gqa_dir), packing="padded"))
    assert padded.padded and not padded.share_prefixes
    assert padded.model.config._attn_implementation == "sdpa"
    plain = loading.load_policy(config(model_name=str(gqa_dir), share_prefixes=False))
    assert not plain.padded and not plain.share_prefixes


def test_attention_that_leaks_between_rows_is_detected_on_loading(
    config, gqa_dir, monkeypatch
):
    def one_long_row(packs, device):
        length = sum(len(pack.tokens) for pack in packs)
        bounds = torch.tensor([0, length])
        return attention.Layout([attention.Span(1, length, None)], bounds, length, length)

    monkeypatch.setattr("example_trainer.model.scoring.layout_of", one_long_row)
    policy = loading.load_policy(config(model_name=str(gqa_dir)))
    assert policy.padded and policy.model.config._attn_implementation == "sdpa"


def test_attention_that_ignores_branches_is_detected_on_loading(config, gqa_dir, monkeypatch):
    monkeypatch.setattr(
        attention, "ancestor_mask", lambda pack: torch.ones(len(pack.tokens), 1).bool()
    )
    policy = loading.load_policy(config(model_name=str(gqa_dir)))
    assert not policy.padded and not policy.share_prefixes


@pytest.mark.parametrize("asked", ["softcap", "s_aux", "position_bias"])
def test_a_model_with_more_than_dot_products_is_padded(config, gqa_dir, monkeypatch, asked):
    ours = attention.packed_rows

    def with_more(*args, **kwargs):
        return ours(*args, **{**kwargs, asked: 1.0})

    monkeypatch.setattr(attention, "packed_rows", with_more)
    assert loading.load_policy(config(model_name=str(gqa_dir))).padded
    monkeypatch.undo()
    attention.register_attention()


def test_a_window_shorter_than_the_rows_is_not_packed(config, gqa_dir):
    policy = loading.load_policy(config(model_name=str(gqa_dir)))
    settings = policy.model.config
    settings.sliding_window, settings.use_sliding_window = 32, True
    assert probing.attention_window(policy.model) == 32
    settings.use_sliding_window = False
    assert probing.attention_window(policy.model) == float("inf")


def test_a_recurrent_model_is_padded_and_still_exact(config, tmp_path, gqa_dir):
    from transformers import MambaConfig, MambaForCausalLM

    from atroposlib.testing.tiny import char_tokenizer

    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    MambaForCausalLM(MambaConfig(**sizes)).save_pretrained(tmp_path / "mamba")
    char_tokenizer().save_pretrained(tmp_path / "mamba")
    policy = loading.load_policy(config(model_name=str(tmp_path / "mamba")))
    assert policy.padded and not policy.share_prefixes
    rows = MULTI_TURN[:2]
    together = policy.trained_logprobs(rows)
    alone = [policy.trained_logprobs([row])[0] for row in rows]
    for one, other in zip(together, alone):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.fixture
def load_family(config, tmp_path):
    def load(name, std=0.2, **settings):
        path = write(family_of(name), tmp_path / "family", std)
        return loading.load_policy(config(model_name=str(path), seq_len=256, **settings))

    return load


def test_the_length_from_which_positions_are_rotated_otherwise_is_found(load_family):
    assert load_family("phi 3, longrope").rope_switch == 65
    assert load_family("phi 3, longrope, window").rope_switch == 65


def test_a_context_below_that_length_has_none(load_family, tmp_path):
    policy = load_family("phi 3, longrope")
    policy.max_tokens_per_row = 64
    own = policy.module.own_hidden(torch.tensor([probing.PROBES[0].tokens]))[0, :-1]
    assert probing.rope_switch(policy, own) == float("inf")


def test_positions_that_change_with_every_length_are_refused(load_family):
    policy = load_family("llama, dynamic")
    assert policy.rope_switch == float("inf")  # rows are as long as the model's positions
    policy.max_tokens_per_row = 1000
    own = policy.module.own_hidden(torch.tensor([probing.PROBES[0].tokens]))[0, :-1]
    with pytest.raises(ConfigError, match="set seq_len 256 or less"):
        probing.rope_switch(policy, own)


def test_a_cap_is_found_where_the_logits_are_too_small_to_show_it(load_family):
    policy = load_family("gemma 2", std=0.02)
    assert policy.module.transform.cap == 5.0


def test_a_scale_is_found_whether_it_divides_or_multiplies(load_family):
    assert load_family("granite").module.transform.scale == pytest.approx(1 / 3)
    assert load_family("hyperclovax").module.transform.scale == 3.0


def test_a_model_that_changes_its_logits_after_the_head_is_refused(policy, monkeypatch):
    forward = type(policy.model).forward

    def softcapped(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        output.logits = 5 * torch.tanh(output.logits / 5)
        return output

    monkeypatch.setattr(type(policy.model), "forward", softcapped)
    with torch.no_grad():
        policy.parameters()[0].mul_(20)  # or the cap changes too little to see
    with pytest.raises(ConfigError, match="after the output head"):
        probing.check_head(policy)
