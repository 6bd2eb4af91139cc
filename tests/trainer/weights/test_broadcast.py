from __future__ import annotations

import pytest
import torch

from atroposlib.errors import ConfigError
from atroposlib.utils.models.process_group import GroupSpec
from example_trainer.weights.broadcast import NativeGroup


def test_native_vllm_group_without_vllm_is_rejected_with_a_remedy():
    group = GroupSpec("127.0.0.1", 1, 2, "nccl", "g", 1.0)
    with pytest.raises(ConfigError, match="needs the trainer on CUDA"):
        NativeGroup(group, None, torch.device("cpu"))
    with pytest.raises(ConfigError, match="needs vllm in the trainer's environment"):
        NativeGroup(group, None, torch.device("cuda"))
