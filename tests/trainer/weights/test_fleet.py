"""Tests of publishing to several servers: all hold the version, or all reachable ones stay
paused.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, closing

import pytest
import torch
from safetensors.torch import load_file

from atroposlib.errors import ConfigError, PublishFailed
from example_trainer.model.model_dir import TrainerState, read_state
from example_trainer.weights import make_publisher
from example_trainer.weights.engines import connect_engine
from tests.trainer.weights.support.engine_fakes import sglang_app, vllm_app


@pytest.fixture
def publish_to(serve, config):
    with ExitStack() as stack:

        def make(*apps, **settings):
            engines = [
                stack.enter_context(
                    closing(
                        connect_engine(
                            serve(app),
                            "auto",
                            timeout_s=10,
                            wait_s=0,
                            on_wait=lambda what: None,
                        )
                    )
                )
                for app in apps
            ]
            announced = []
            return make_publisher(config(**settings), engines, announced.append), announced

        yield make


def state(version):
    return TrainerState("run", step=version, version=version, batch_no=version)


def routes(diary):
    return [route for route, _ in diary]


def test_every_server_is_paused_before_the_first_loads_and_loaded_before_one_resumes(
    publish_to, policy, config
):
    diary = []  # one diary for both servers
    publisher, announced = publish_to(vllm_app(diary), sglang_app(diary))
    publisher.publish(policy, state(1))
    seen = routes(diary)
    pauses = {"/pause", "/pause_generation"}
    loads = {"/collective_rpc", "/update_weights_from_disk"}
    resumes = {"/resume", "/continue_generation"}
    # Paused twice: once bounded, and once all rest for as long as it takes.
    assert set(seen[:2]) == set(seen[2:4]) == pauses and set(seen[-2:]) == resumes
    assert loads <= set(seen[4:-2])
    assert announced == [1]
    (directory,) = config().published.iterdir()
    assert read_state(str(directory)) == state(1)


@pytest.mark.parametrize(
    ("broken", "last"),
    [("/pause", "/resume"), ("/collective_rpc", "/pause"), ("/resume", "/resume")],
)
def test_failing_server_keeps_the_others_paused_only_after_weights_changed(
    publish_to, policy, broken, last
):
    healthy, failing = [], []
    publisher, announced = publish_to(vllm_app(healthy), vllm_app(failing, fail=broken))
    with pytest.raises(PublishFailed) as failure:
        publisher.publish(policy, state(1))
    assert publisher.engines[1].url in str(failure.value)
    assert "out of memory" in str(failure.value)
    assert routes(healthy)[-1] == last
    assert announced == []


def test_server_that_keeps_the_old_version_is_detected(publish_to, policy):
    diary = []
    publisher, announced = publish_to(vllm_app(diary, keeps_version=True))
    with pytest.raises(PublishFailed, match="'default'"):
        publisher.publish(policy, state(1))
    assert "/resume" not in routes(diary) and announced == []


def test_only_the_newest_versions_are_kept(publish_to, policy, config):
    publisher, _ = publish_to(vllm_app([]), keep_published=2)
    for version in (8, 9, 10):
        publisher.publish(policy, state(version))
    kept = sorted(read_state(str(path)).version for path in config().published.iterdir())
    assert kept == [9, 10]


@pytest.mark.parametrize(
    ("app", "setting", "untied"),
    [
        (vllm_app, None, True),
        (sglang_app, None, False),
        (sglang_app, True, True),
        (vllm_app, False, False),
    ],
)
def test_a_tied_head_is_published_untied_where_the_engine_needs_it(
    publish_to, policy, config, app, setting, untied
):
    publisher, _ = publish_to(app([]), untie_published_head=setting)
    publisher.publish(policy, state(1))
    (directory,) = config().published.iterdir()
    weights = load_file(directory / "model.safetensors")
    told = json.loads((directory / "config.json").read_text())["tie_word_embeddings"]
    assert ("lm_head.weight" in weights) is untied and told is not untied
    if untied:
        embedding = weights["model.embed_tokens.weight"]
        assert torch.equal(weights["lm_head.weight"], embedding)


def test_an_unknown_publisher_is_refused(config):
    pigeon = config().model_copy(update={"weight_publisher": "pigeon"})
    with pytest.raises(ConfigError, match="there are: disk"):
        make_publisher(pigeon, [], print)


def test_a_server_that_answers_nothing_during_a_publish_is_reported(publish_to, monkeypatch):
    publisher, _ = publish_to(vllm_app([]), vllm_app([]))
    fleet = publisher.fleet
    frozen, other = fleet.engines
    monkeypatch.setattr(frozen.http, "is_ready", lambda timeout_s: False)
    assert [one.silent_s for one in fleet.states()] == [None, None]
    with fleet.lock:  # as a publish holds it
        fleet.states()
        first, second = fleet.states()
    assert (first.url, second.silent_s) == (frozen.url, None)
    assert first.silent_s is not None and first.silent_s > 0
    assert [one.silent_s for one in fleet.states()] == [None, None]
