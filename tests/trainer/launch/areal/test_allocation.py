"""Allocation strings of AReaL as servers and ranks."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from example_trainer.launch.areal.allocation import Allocation, parse, places

PARSED = {
    "sglang:d4t2+fsdp:d8": Allocation("sglang", 4, 2, 8, gpus=16),
    "sglang.d4p1t1+d4p1t1": Allocation("sglang", 4, 1, 4, gpus=8),
    "vllm:d2t2+d4": Allocation("vllm", 2, 2, 4, gpus=8),
    "vllm:d1+megatron:d2p2t2": Allocation("vllm", 1, 1, 8, gpus=9, other_degrees="p2t2"),
    "local:d1+fsdp[actor]:d2c1": Allocation("local", 1, 1, 2, gpus=3),
    "sglang:d2": Allocation("sglang", 2, 1, None, gpus=2),
    "": Allocation(),
}


@pytest.mark.parametrize("text", PARSED)
def test_an_allocation_is_read(text):
    assert parse(text) == PARSED[text]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("sglang:d4|fsdp:d4", "write . for"),
        ("sglang:d4+eval", "such as sglang:d4t2.fsdp:d8"),
        ("trt:d4+d4", "inference.tensor_parallel"),
        ("vllm:d2p2+d4", "inference.args"),
        ("vllm:d4+megatron:(attn:d2p3t2c1|ffn:d2p3t1e2)", "write fsdp:d12 for the part with"),
        ("local:d1+fsdp:d1c2", "no context parallelism.*write d for c"),
    ],
)
def test_another_allocation_is_an_error_that_says_what_to_write(text, advice):
    with pytest.raises(ConfigError, match=advice):
        parse(text)


def test_on_one_machine_servers_have_the_first_gpus():
    found = places(parse("sglang:d2t2+d2"), None, None, on_cluster=False)
    assert (found["inference.first_gpu"], found["trainer.gpus"]) == (0, "4,5")
    assert "trainer.gpus" not in places(parse("local:d1+d1"), None, None, on_cluster=False)


def test_on_a_cluster_ranks_fill_nodes():
    found = places(parse("sglang:d4t2+fsdp:d16"), 3, 8, on_cluster=True)
    assert (found["trainer.nodes"], found["trainer.nproc"]) == (2, 8)
    assert (found["inference.count"], found["inference.tensor_parallel"]) == (4, 2)
    for text, wrong in (("d12", "do not fill nodes of 8"), ("d32", "32 GPUs are allocated")):
        with pytest.raises(ConfigError, match=wrong):
            places(parse(text), 3, 8, on_cluster=True)
