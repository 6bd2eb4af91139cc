from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError, InferenceError
from tests.trainer.weights.support.fleets import distance, expected, state

EXACT = 1e-4


def test_an_adapter_that_is_published_by_disk_arrives_merged(
    publisher_for, policy_for, servers
):
    policy = policy_for("lora")
    publisher_for("disk", lora=True)[0].publish(policy, state(1))
    assert distance(servers[0].logprobs(), expected(policy)) < EXACT


def test_a_failed_load_is_tried_once_more(publisher_for, policy_for, servers, monkeypatch):
    publisher, announced = publisher_for("disk")
    load, failures = servers[1].client.load, [InferenceError("not there yet")]

    def late(*args):
        if failures:
            raise failures.pop()
        load(*args)

    monkeypatch.setattr(servers[1].client, "load", late)
    publisher.publish(policy_for("disk"), state(1))
    assert announced == [1]


def test_a_merging_server_needs_no_adapter_name(publisher_for):
    with pytest.raises(ConfigError, match="leave --publish-adapter-name out"):
        publisher_for("lora", lora=True, publish_adapter_name="policy")
