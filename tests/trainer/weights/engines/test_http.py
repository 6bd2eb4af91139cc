from __future__ import annotations

from contextlib import closing

import pytest
from fastapi import FastAPI, Request, Response

from atroposlib.errors import ConfigError, InferenceUnavailable
from atroposlib.utils.backoff import Backoff
from example_trainer.weights.engines import ServerGone, connect_engine
from example_trainer.weights.engines.http import Http
from tests.trainer.weights.support.engine_fakes import sglang_app, vllm_app

QUICK = {"timeout_s": 10.0, "wait_s": 0.0, "on_wait": lambda what: None}


@pytest.mark.parametrize("app", [vllm_app, sglang_app])
def test_every_engine_scores_and_tokenizes(to, app):
    engine = to(app([]))
    assert engine.score([4, 5, 6]) == [-0.5, -0.6]
    assert engine.token_ids("a sentence") == [1, 2, 3]


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


@pytest.mark.parametrize(
    ("app", "asked", "route", "sent"),
    [
        (vllm_app, None, "/pause", "abort"),
        (vllm_app, "keep", "/pause", "keep"),
        (sglang_app, None, "/pause_generation", "abort"),
        (sglang_app, "keep", "/pause_generation", "retract"),
    ],
)
def test_a_pause_is_the_one_of_the_settings_in_the_engines_words(
    serve, app, asked, route, sent
):
    diary = []
    with closing(
        connect_engine(serve(app(diary)), "auto", pause_mode=asked, **QUICK)
    ) as engine:
        engine.pause()
    assert diary == [(route, sent)]


def test_a_pause_that_an_engine_lacks_is_refused_with_those_it_has(serve):
    with pytest.raises(ConfigError, match="set --publish-pause to abort or keep"):
        connect_engine(serve(sglang_app([])), "auto", pause_mode="wait", **QUICK)


def test_bearer_token_is_sent_with_every_request(serve):
    app, seen = FastAPI(), []

    @app.get("/health")
    def health(request: Request):
        seen.append(request.headers["authorization"])

    with closing(connect_engine(serve(app), "sglang", token="secret", **QUICK)):
        assert seen == ["Bearer secret"]


def test_a_server_that_cannot_take_weights_is_refused_with_the_remedy(to):
    app = FastAPI()
    app.get("/health")(lambda: {})
    with pytest.raises(ConfigError, match="VLLM_SERVER_DEV_MODE=1"):
        to(app)


def test_wait_for_an_absent_server_is_reported_and_bounded(free_port_url):
    waits = []
    with pytest.raises(InferenceUnavailable, match="--inference-urls"):
        with closing(
            connect_engine(
                free_port_url, "auto", timeout_s=1, wait_s=0.1, on_wait=waits.append
            )
        ):
            pass
    assert waits and free_port_url in waits[0]


@pytest.fixture
def free_port_url(monkeypatch):
    import socket

    monkeypatch.setattr("example_trainer.weights.engines.http.GONE_AFTER_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return f"http://127.0.0.1:{port}"


def test_a_server_that_left_while_it_was_called_is_gone(serve):
    http = Http(serve(FastAPI()), 10.0)
    http.close()
    with pytest.raises(ServerGone, match="has left"):
        http.post("/generate", {})


def test_a_call_without_a_usable_answer_is_repeated_and_the_wait_reported(serve, monkeypatch):
    monkeypatch.setattr("example_trainer.weights.engines.http.BACKOFF", Backoff(0.0, 0.0))
    app, answers, waits = FastAPI(), [503, 502], []

    @app.post("/pause")
    def pause():
        return Response(status_code=answers.pop() if answers else 200)

    with closing(Http(serve(app), 10.0, on_wait=waits.append)) as http:
        http.post("/pause")
    assert answers == [] and len(waits) == 2 and "/pause: 502" in waits[0]


def test_a_broadcast_is_not_asked_for_twice(serve, monkeypatch):
    app, asked = FastAPI(), []

    @app.post("/update_weights_from_distributed")
    def update():
        asked.append(1)
        return Response(status_code=503)

    with closing(Http(serve(app), 10.0)) as http:
        with pytest.raises(ServerGone, match="503"):
            http.post("/update_weights_from_distributed", {})
    assert asked == [1]


@pytest.mark.parametrize(
    ("app", "prefix"), [(vllm_app, "/v1"), (sglang_app, "")], ids=["vllm", "sglang"]
)
def test_earlier_adapters_are_loaded_once_and_unloaded_when_they_leave(to, app, prefix):
    diary = []
    engine = to(app(diary, lora=True))
    engine.hold_adapters({"policy@2": "/weights/2"})
    engine.hold_adapters({"policy@2": "/weights/2", "policy@4": "/weights/4"})
    engine.hold_adapters({"policy@4": "/weights/4"})
    load, unload = f"{prefix}/load_lora_adapter", f"{prefix}/unload_lora_adapter"
    assert diary == [
        (load, {"lora_name": "policy@2", "lora_path": "/weights/2"}),
        (load, {"lora_name": "policy@4", "lora_path": "/weights/4"}),
        (unload, {"lora_name": "policy@2"}),
    ]
