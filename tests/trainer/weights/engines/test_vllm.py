from __future__ import annotations

import json

import pytest

from atroposlib.errors import ConfigError
from atroposlib.utils.models.process_group import GroupSpec
from tests.trainer.weights.support.engine_fakes import BUCKETS, GROUP, vllm_app


def test_vllm_is_found_by_its_routes_and_reloads_in_place(to):
    diary = []
    engine = to(vllm_app(diary))
    engine.pause()
    engine.load("/weights/version_3", 3)
    engine.resume()
    assert engine.name == "vllm" and engine.version() == "3"
    reload = {"method": "reload_weights", "kwargs": {"weights_path": "/weights/version_3"}}
    assert diary == [
        ("/pause", "abort"),
        ("/collective_rpc", reload),
        ("/reset_prefix_cache", None),
        ("/update_weight_version", "3"),
        ("/resume", None),
    ]


def test_the_copy_of_one_worker_serves_all_workers_of_a_vllm(to):
    app = vllm_app(
        [], extension=True, results=('["/node/version_a_3", 9]', '["/node/version_a_3", 0]')
    )
    engine = to(app)
    engine.require("node_disk", None)
    assert engine.copy_to_node("/weights/version_a_3") == ("/node/version_a_3", 9)


def test_vllm_with_our_extension_gets_its_weights_by_the_extensions_methods(to):
    diary = []
    engine = to(vllm_app(diary, extension=True))
    for publisher in ("disk", "shared_memory", "distributed"):
        engine.require(publisher, None)
    engine.load("/weights/version_3", 3)
    engine.load_shared("/dev/shm/w", 4)
    engine.join_group(GROUP, first_rank=1)
    engine.receive(GROUP, BUCKETS, 5)
    engine.leave_group(GROUP)
    calls = [entry for route, entry in diary if route == "/collective_rpc"]
    assert [call["method"] for call in calls] == [
        "load_checkpoint",
        "load_shared",
        "join_weight_group",
        "receive_weights",
        "leave_weight_group",
    ]
    assert calls[0]["kwargs"] == {"path": "/weights/version_3"}
    assert calls[1]["kwargs"] == {"path": "/dev/shm/w", "version": "4"}
    spec = json.loads(calls[2]["kwargs"]["spec"])
    assert spec.pop("first_rank") == 1 and GroupSpec(**spec) == GROUP
    told = json.loads(calls[3]["kwargs"]["spec"])
    assert told["names"] == ["a", "b", "c"] and told["shapes"] == [[2], [3], [4, 5]]
    assert all(isinstance(v, str) for call in calls for v in call["kwargs"].values())
    assert engine.version() == "5"
    assert not engine.wants_untied_head and not engine.native_group


@pytest.mark.parametrize("bracketed", [True, False])
def test_vllm_without_the_extension_receives_a_broadcast_by_its_own_routes(to, bracketed):
    diary = []
    engine = to(vllm_app(diary, transfer=True, bracketed=bracketed))
    engine.require("distributed", None)
    assert engine.ranks() == 2 and engine.native_group
    engine.join_group(GROUP, first_rank=1)
    engine.receive(GROUP, BUCKETS, 3)
    init = {"master_address": "127.0.0.1", "master_port": 5, "rank_offset": 1}
    info = {"names": ["a", "b", "c"], "dtype_names": ["bfloat16", "bfloat16", "float32"]}
    update = {"update_info": {**info, "shapes": [[2], [3], [4, 5]]}}
    around = [("/start_weight_update", {})], [("/finish_weight_update", {})]
    start, finish = around if bracketed else ([], [])
    assert diary == [
        ("/init_weight_transfer_engine", {"init_info": {**init, "world_size": 3}}),
        *start,
        ("/update_weights", update),
        *finish,
        ("/reset_prefix_cache", None),
        ("/update_weight_version", "3"),
    ]


def test_vllm_serves_an_adapter_by_name(to):
    diary = []
    engine = to(vllm_app(diary, lora=True))
    engine.require("lora", "policy")
    engine.load_adapter("/weights/policy-v3", 3, "policy")
    assert engine.score([4, 5, 6]) == [-0.5, -0.6]
    body = {"lora_name": "policy", "lora_path": "/weights/policy-v3", "load_inplace": True}
    assert diary[0] == ("/v1/load_lora_adapter", body)
    assert diary[-1] == ("model", "policy")
    with pytest.raises(ConfigError, match="publishes merged weights"):
        engine.require("lora", None)
    with pytest.raises(ConfigError, match="another --served-model-name"):
        engine.require("lora", "served")
