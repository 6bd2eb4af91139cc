"""The contestants of bench_trainer.py take the same step; TRL's is left to the benchmark."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trainerbench import workload
from trainerbench.workload import SIZES, Shape, Workload, rows_of, useful_flops

LOAD = Workload(
    size="tiny",
    groups=2,
    group_size=4,
    prompt=6,
    median=8,
    shortest=2,
    longest=20,
    rows_per_pass=3,
    device="cpu",
    threads=1,
    checkpointing=False,
)


def step(name):
    from trainerbench.contestants import CONTESTANTS

    contestant = CONTESTANTS[name](LOAD)
    loss = contestant.backward(rows_of(LOAD))
    gradients = [p.grad for p in contestant.model.parameters()]
    return loss, float(torch.nn.utils.get_total_norm(gradients)), contestant.padding


def test_every_variant_of_the_step_gives_the_same_loss_and_gradient():
    loss, norm, padding = step("full logits")
    assert padding > 0.05
    for name in ("shared", "packed", "padded"):
        ours = step(name)
        assert ours[:2] == pytest.approx((loss, norm), abs=1e-5)
        assert (ours[2] == 0) == (name != "padded")


def test_rows_are_the_same_in_every_process_and_share_the_prompt_of_their_group():
    rows = rows_of(LOAD)
    assert rows == rows_of(LOAD) != rows_of(replace(LOAD, seed=1))
    assert len(rows) == 8
    assert len({(row.group, tuple(row.tokens[:6])) for row in rows}) == 2


def test_the_work_of_a_row_counts_weights_attention_and_head(monkeypatch):
    shape = Shape(10, hidden=4, mlp=8, layers=1, heads=2, key_heads=1, head_dim=2)
    monkeypatch.setitem(workload.SIZES, "tiny", shape)
    row, *_ = rows_of(LOAD)
    length, trained = len(row.tokens), len(row.trained)
    weights = 4 * 4 + 2 * (4 * 2) + 4 * 4 + 3 * 4 * 8  # q, k and v, o, MLP
    expected = 6 * (weights * length + 4 * length**2 + 10 * 4 * trained)
    assert useful_flops([row], LOAD) == expected


def test_frozen_weights_cost_two_thirds_and_an_adapter_its_own_work():
    rows, shape = rows_of(LOAD), SIZES["tiny"]
    tokens = sum(len(row.tokens) for row in rows)
    trained = sum(len(row.trained) for row in rows)
    less = 2 * (shape.layers * shape.layer_matrices * tokens + shape.head * trained)
    more = 6 * shape.adapter(8) * tokens
    with_adapter = useful_flops(rows, replace(LOAD, lora=8))
    assert with_adapter == pytest.approx(useful_flops(rows, LOAD) - less + more)


def test_the_parameters_of_a_shape_are_those_of_its_model():
    from transformers import AutoModelForCausalLM

    for size in ("tiny", "tiny-qwen3"):
        model = AutoModelForCausalLM.from_config(workload.model_config(size))
        matrices = sum(p.numel() for p in model.parameters() if p.ndim > 1)
        assert SIZES[size].parameters == matrices
