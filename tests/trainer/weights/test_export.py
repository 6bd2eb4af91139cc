from __future__ import annotations

from example_trainer.weights.export import TensorSpec, layout


def test_tied_head_is_exported_separately_if_untied(policy):
    assert "lm_head.weight" in {t.name for t in layout(policy, untie_head=True)}


def test_bytes_of_a_layout_are_those_of_its_tensors():
    import torch

    assert TensorSpec("w", torch.bfloat16, (3, 5)).bytes == 30
