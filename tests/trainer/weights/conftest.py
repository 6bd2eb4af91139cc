"""Fixtures of this folder."""

from __future__ import annotations

import copy
from contextlib import ExitStack, closing

import pytest

from example_trainer.distributed.ranks import Ranks
from example_trainer.model import loading
from example_trainer.weights import make_publisher
from tests.trainer.weights.support.fleets import change, fleet
from tests.trainer.weights.support.in_process_engine import InProcessEngine


@pytest.fixture(autouse=True)
def node_directory(tmp_path, monkeypatch):
    """Where the node's copies of published weights lie."""
    monkeypatch.setenv("ATROPOS_NODE_DIR", str(tmp_path / "node"))
    return tmp_path / "node"


@pytest.fixture(scope="module")
def lasting(model_dir):
    with fleet(model_dir, 2) as started:
        yield started


@pytest.fixture
def servers(lasting, model_dir):
    """Two servers in their initial state."""
    for server in lasting:
        server.engine.update_weights(str(model_dir), 0)
        server.engine.resume()
    return lasting


@pytest.fixture
def publisher_for(config, lasting):
    """A publisher to both servers and the versions it announced."""
    with ExitStack() as stack:

        def make(name, servers=lasting, **settings):
            announced = []
            cfg = config(weight_publisher=name, publish_timeout_s=20, **settings)
            clients = [server.client for server in servers]
            publisher = stack.enter_context(
                closing(make_publisher(cfg, clients, announced.append))
            )
            return publisher, announced

        yield make


@pytest.fixture
def policy_for(config):
    def make(name):
        cfg = config(weight_publisher=name, lora=name == "lora")
        policy = loading.load_policy(cfg, Ranks.single())
        change(policy)
        return policy

    return make


@pytest.fixture
def server(policy):
    return InProcessEngine(copy.deepcopy(policy))
