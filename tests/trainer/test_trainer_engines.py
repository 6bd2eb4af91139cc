from __future__ import annotations

from contextlib import closing

import pytest
from fastapi import FastAPI

from atroposlib.errors import ConfigError, InferenceRefused, InferenceUnavailable
from example_trainer.weights.engines import connect
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

    monkeypatch.setattr("example_trainer.weights.engines.RETRIES_S", ())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"http://127.0.0.1:{port}"
