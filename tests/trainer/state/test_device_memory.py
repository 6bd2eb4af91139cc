"""A device that is out of memory ends a command with a remedy."""

from __future__ import annotations

import pytest
import torch

from atroposlib.errors import OutOfDeviceMemory
from example_trainer import grpo
from example_trainer.state.device_memory import named_out_of_memory

TOLD = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB of"
    " which 1 GiB is free."
)


def without_memory(*_):
    raise torch.OutOfMemoryError(TOLD)


def test_the_error_names_what_to_make_smaller():
    with pytest.raises(OutOfDeviceMemory, match="max_tokens_per_microbatch") as raised:
        with named_out_of_memory():
            without_memory()
    assert str(raised.value).startswith("CUDA out of memory. ")
    assert isinstance(raised.value.__cause__, torch.OutOfMemoryError)


def test_a_trainer_without_memory_is_not_started_again_with_the_same_batch(caplog, capsys):
    assert grpo.run_training(without_memory) == 2  # the status of settings that fail alike
    assert "inference.memory_share" in capsys.readouterr().err + caplog.text
