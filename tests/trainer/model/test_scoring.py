"""The transformers model inside a wrapper, and its output head."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atroposlib.errors import ConfigError
from example_trainer.data.packing import pack_rows, plan_microbatches
from example_trainer.model.scoring import pad_teacher, pad_to_tensor
from tests.trainer.rows import ROWS, flat, row

# peft still reads a name that transformers 5.23 deprecates, and warns of tied heads.
of_peft = pytest.mark.filterwarnings("ignore:.*(checkpointing|tie_word_embeddings|tied)")


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


CPU = torch.device("cpu")
RAGGED = [row([1], [2]), row([1], [3, 4, 5])]


def microbatch(rows):
    packs = pack_rows(rows, max_tokens=64, crossover=100.0, share=False)
    (found,) = plan_microbatches(packs, rows, 64)
    return found


def test_rows_are_padded_to_the_longest_in_the_order_of_the_microbatch():
    one = microbatch(RAGGED)
    table = pad_to_tensor(one, [[7.0], [1.0, 2.0, 3.0]], CPU, fill=-1.0)
    by_row = dict(zip(one.row_ids, table.tolist()))
    assert by_row == {0: [7.0, -1.0, -1.0], 1: [1.0, 2.0, 3.0]}


def test_a_teacher_is_padded_to_its_longest_entry():
    taught = replace(
        RAGGED[1],
        teacher_ids=[[9], [8, 9], []],
        teacher_logprobs=[[-0.5], [-1.0, -2.0], []],
    )
    logprobs, present = pad_teacher(microbatch([taught]), [taught], CPU)
    assert logprobs.tolist() == [[[-0.5, 0.0], [-1.0, -2.0], [0.0, 0.0]]]
    assert present.tolist() == [[[True, False], [True, True], [False, False]]]
