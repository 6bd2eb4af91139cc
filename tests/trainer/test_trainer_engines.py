from __future__ import annotations

import json
from contextlib import closing

import pytest
from fastapi import FastAPI, Request

from atroposlib.errors import ConfigError, InferenceRefused, InferenceUnavailable
from example_trainer.weights.engines import Bucket, GroupSpec, connect
from tests.trainer.engine_fakes import sglang_app, vllm_app

QUICK = {"timeout_s": 10.0, "wait_s": 0.0, "on_wait": lambda what: None}


@pytest.fixture
def to(serve):
    opened = []

    def connect_to(app, kind="auto"):
        opened.append(connect(serve(app), kind, **QUICK))
        return opened[-1]

    yield connect_to
    for engine in opened:
        engine.close()


def test_vllm_is_found_by_its_routes_and_reloads_in_place(to):
    diary = []
    engine = to(vllm_app(diary))
    engine.pause()
    engine.load("/weights/version_3", 3)
    engine.resume()
    assert engine.name == "vllm" and engine.version() == "3"
    reload = {"method": "reload_weights", "kwargs": {"weights_path": "/weights/version_3"}}
    assert diary == [
        ("/pause", "wait"),
        ("/collective_rpc", reload),
        ("/reset_prefix_cache", None),
        ("/update_weight_version", "3"),
        ("/resume", None),
    ]


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


@pytest.mark.parametrize("app", [vllm_app, sglang_app])
def test_every_engine_scores_and_tokenizes(to, app):
    engine = to(app([]))
    assert engine.score([4, 5, 6]) == [-0.5, -0.6]
    assert engine.token_ids("a sentence") == [1, 2, 3]


GROUP = GroupSpec("127.0.0.1", 5, 3, "nccl", "weights", 9.0)
BUCKETS = [
    Bucket(["a", "b"], ["bfloat16", "bfloat16"], [[2], [3]]),
    Bucket(["c"], ["float32"], [[4, 5]]),
]


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
def test_vllm_without_it_takes_a_broadcast_by_its_own_routes(to, bracketed):
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


def test_vllm_gives_an_adapter_to_requests_that_name_it(to):
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


def test_the_originals_server_gives_an_adapter_to_every_request(to):
    diary = []
    app = vllm_app(diary)

    @app.post("/lora/load")
    def load(body: dict[str, str]):
        diary.append(("/lora/load", body))

    engine = to(app)
    engine.require("lora", None)
    engine.load_adapter("/weights/policy-v3", 3, None)
    body = {"adapter_path": "/weights/policy-v3", "adapter_name": "policy-v3"}
    assert diary[0] == ("/lora/load", body)
    assert engine.score([4, 5, 6]) == [-0.5, -0.6] and engine.version() == "3"


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


def test_sglang_gives_an_adapter_to_requests_that_name_it_and_swaps_it_by_name(to):
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


@pytest.mark.parametrize(
    ("app", "publisher", "remedy"),
    [
        (vllm_app, "shared_memory", "--worker-extension-cls"),
        (vllm_app, "distributed", "--weight-transfer-config"),
        (vllm_app, "lora", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        (sglang_app, "shared_memory", "another --weight-publisher"),
        (sglang_app, "lora", "publishes merged weights"),
    ],
)
def test_a_publisher_that_an_engine_cannot_take_is_refused_with_the_remedy(
    to, app, publisher, remedy
):
    with pytest.raises(ConfigError, match=remedy):
        to(app([])).require(publisher, None)


@pytest.mark.parametrize("app", [vllm_app, sglang_app])
def test_every_engine_samples_with_logprobs(to, app):
    assert to(app([])).sample([4, 5], 2, 0.5) == ([7, 8], [-0.7, -0.8])


def test_the_token_goes_with_every_request(serve):
    app, seen = FastAPI(), []

    @app.get("/health")
    def health(request: Request):
        seen.append(request.headers["authorization"])

    with closing(connect(serve(app), "sglang", token="secret", **QUICK)):
        assert seen == ["Bearer secret"]


def test_sglang_that_answers_200_but_did_not_load_is_a_failure(to):
    with pytest.raises(InferenceRefused, match="shape mismatch"):
        to(sglang_app([], success=False)).load("/weights/version_1", 1)


def test_a_server_that_cannot_take_weights_is_refused_with_the_remedy(to):
    app = FastAPI()
    app.get("/health")(lambda: {})
    with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE=1"):
        to(app)


def test_an_absent_server_is_waited_for_visibly_and_not_for_ever(free_port_url):
    waits = []
    with pytest.raises(InferenceUnavailable, match="--inference-urls"):
        with closing(
            connect(free_port_url, "auto", timeout_s=1, wait_s=0.1, on_wait=waits.append)
        ):
            pass
    assert waits and free_port_url in waits[0]


@pytest.fixture
def free_port_url(monkeypatch):
    import socket

    monkeypatch.setattr("example_trainer.weights.engines.http.RETRIES_S", ())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"http://127.0.0.1:{port}"
