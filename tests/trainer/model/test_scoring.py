"""The transformers model inside a wrapper, and its output head."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from tests.trainer.rows import flat, row

# peft still reads a name that transformers 5.23 deprecates, and warns of tied heads.
of_peft = pytest.mark.filterwarnings("ignore:.*(checkpointing|tie_word_embeddings|tied)")


ROWS = [row([5, 6, 7], [8, 9, 10]), row([5, 6, 7], [8, 11])]


def gradient(policy):
    for plan in policy.plan(ROWS):
        policy.score(plan).logprobs.sum().backward()
    return [p.grad for p in policy.parameters()]


@of_peft
def test_a_model_in_a_peft_wrapper_is_found_and_only_its_adapter_is_trained(policy):
    peft = pytest.importorskip("peft")
    before = flat(policy.trained_logprobs(ROWS))
    wrapped = peft.get_peft_model(policy.model, peft.LoraConfig(target_modules=["q_proj"]))
    policy.module.model = wrapped
    assert flat(policy.trained_logprobs(ROWS)) == pytest.approx(before, abs=1e-6)
    names = [n for n, p in policy.module.named_parameters() if p.requires_grad]
    assert names and all("lora_" in name for name in names)
    gradient(policy)
    assert any(p.grad is not None and p.grad.any() for p in policy.parameters())


@of_peft
def test_an_adapter_on_the_output_head_is_refused(policy):
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(target_modules=["lm_head"])
    policy.module.model = peft.get_peft_model(policy.model, settings)
    with pytest.raises(ConfigError, match="lora_target_modules"):
        policy.trained_logprobs(ROWS)
