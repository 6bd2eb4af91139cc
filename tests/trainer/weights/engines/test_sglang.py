from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError, InferenceRefused
from tests.trainer.weights.support.engine_fakes import BUCKETS, GROUP, sglang_app


def test_sglang_is_found_by_its_routes_and_loads_from_disk(to):
    diary = []
    engine = to(sglang_app(diary))
    engine.pause()
    engine.load("/weights/version_3", 3)
    engine.resume()
    assert engine.name == "sglang" and engine.version() == "3"
    assert [route for route, _ in diary] == [
        "/pause_generation",
        "/update_weights_from_disk",
        "/continue_generation",
    ]


def test_sglang_takes_a_broadcast_bucket_by_bucket_and_a_version_with_the_last(to):
    diary = []
    engine = to(sglang_app(diary, ranks=2))
    engine.require("distributed", None)
    assert engine.ranks() == 2
    engine.join_group(GROUP, first_rank=1)
    engine.receive(GROUP, BUCKETS, 3)
    engine.leave_group(GROUP)
    assert [route for route, _ in diary] == [
        "/init_weights_update_group",
        "/update_weights_from_distributed",
        "/update_weights_from_distributed",
        "/destroy_weights_update_group",
    ]
    first, last = diary[1][1], diary[2][1]
    assert first["names"] == ["a", "b"] and last["names"] == ["c"]
    assert "weight_version" not in first and last["weight_version"] == "3"
    assert (first["flush_cache"], last["flush_cache"]) == (False, True)
    assert engine.version() == "3"


def test_sglang_serves_an_adapter_by_name_and_replaces_it_by_name(to):
    diary = []
    engine = to(sglang_app(diary, lora=True))
    engine.require("lora", "policy")
    engine.load_adapter("/weights/policy-v3", 3, "policy")
    engine.load_adapter("/weights/policy-v4", 4, "policy")
    engine.score([4, 5])
    assert [route for route, _ in diary] == [
        "/load_lora_adapter",
        "/flush_cache",
        "/unload_lora_adapter",
        "/load_lora_adapter",
        "/flush_cache",
        "lora_path",
    ]
    assert engine.version() == "4"


def test_sglang_that_answers_200_but_did_not_load_is_a_failure(to):
    with pytest.raises(InferenceRefused, match="shape mismatch"):
        to(sglang_app([], success=False)).load("/weights/version_1", 1)


def test_sglang_cannot_copy_weights_to_its_node(to):
    with pytest.raises(ConfigError, match="cannot take weights by node_disk"):
        to(sglang_app([])).require("node_disk", None)


def test_copies_that_would_join_a_group_as_the_same_ranks_are_refused(to):
    with pytest.raises(ConfigError, match="add --enable-dp-attention"):
        to(sglang_app([], dp_size=2)).require("distributed", None)
    to(sglang_app([], dp_size=2, enable_dp_attention=True)).require("distributed", None)
    to(sglang_app([], dp_size=2)).require("disk", None)
