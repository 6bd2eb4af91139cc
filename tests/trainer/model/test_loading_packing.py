"""Tests of the measurement on loading whether a model can be packed."""

from __future__ import annotations

import pytest
import torch

from example_trainer.model import attention, loading
from tests.trainer.rows import MULTI_TURN


def test_packing_is_switched_off_by_its_setting(config, gqa_dir):
    padded = loading.load(config(model_name=str(gqa_dir), packing="padded"))
    assert padded.padded and not padded.share_prefixes
    assert padded.model.config._attn_implementation == "sdpa"
    plain = loading.load(config(model_name=str(gqa_dir), share_prefixes=False))
    assert not plain.padded and not plain.share_prefixes


def test_attention_that_leaks_between_rows_is_detected_on_loading(
    config, gqa_dir, monkeypatch
):
    def one_long_row(packs, device):
        length = sum(len(pack.tokens) for pack in packs)
        bounds = torch.tensor([0, length])
        return attention.Layout([attention.Span(1, length, None)], bounds, length, length)

    monkeypatch.setattr("example_trainer.model.scoring.layout_of", one_long_row)
    policy = loading.load(config(model_name=str(gqa_dir)))
    assert policy.padded and policy.model.config._attn_implementation == "sdpa"


def test_attention_that_ignores_branches_is_detected_on_loading(config, gqa_dir, monkeypatch):
    monkeypatch.setattr(
        attention, "ancestor_mask", lambda pack: torch.ones(len(pack.tokens), 1).bool()
    )
    policy = loading.load(config(model_name=str(gqa_dir)))
    assert not policy.padded and not policy.share_prefixes


@pytest.mark.parametrize("asked", ["softcap", "s_aux", "position_bias"])
def test_a_model_with_more_than_dot_products_is_padded(config, gqa_dir, monkeypatch, asked):
    ours = attention.packed_rows

    def with_more(*args, **kwargs):
        return ours(*args, **{**kwargs, asked: 1.0})

    monkeypatch.setattr(attention, "packed_rows", with_more)
    assert loading.load(config(model_name=str(gqa_dir))).padded
    monkeypatch.undo()
    attention.register()


def test_a_window_shorter_than_the_rows_is_not_packed(config, gqa_dir):
    policy = loading.load(config(model_name=str(gqa_dir)))
    settings = policy.model.config
    settings.sliding_window, settings.use_sliding_window = 32, True
    assert loading.attention_window(policy.model) == 32
    settings.use_sliding_window = False
    assert loading.attention_window(policy.model) == float("inf")


def test_a_recurrent_model_is_padded_and_still_exact(config, tmp_path, gqa_dir):
    from transformers import MambaConfig, MambaForCausalLM

    from atroposlib.testing.tiny import char_tokenizer

    sizes = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4}
    MambaForCausalLM(MambaConfig(**sizes)).save_pretrained(tmp_path / "mamba")
    char_tokenizer().save_pretrained(tmp_path / "mamba")
    policy = loading.load(config(model_name=str(tmp_path / "mamba")))
    assert policy.padded and not policy.share_prefixes
    rows = MULTI_TURN[:2]
    together = policy.trained_logprobs(rows)
    alone = [policy.trained_logprobs([row])[0] for row in rows]
    for one, other in zip(together, alone):
        assert one == pytest.approx(other, abs=1e-5)
