"""Names of the weight publisher."""

from __future__ import annotations

import pytest

from example_trainer import TrainingConfig


@pytest.mark.parametrize(
    ("mode", "publisher"),
    [
        ("none", "disk"),
        ("shared_vllm", "shared_memory"),
        ("lora_only", "lora"),
        ("lora_restart", "lora"),
    ],
)
def test_the_original_s_modes_are_names_of_publishers(mode, publisher):
    cfg = TrainingConfig(model_name="m", weight_bridge_mode=mode)
    assert (cfg.publisher, cfg.trains_adapter) == (publisher, publisher == "lora")
