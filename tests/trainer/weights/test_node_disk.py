"""Two servers of one node that load from the node's own copy."""

from __future__ import annotations

from pathlib import Path

from tests.trainer.weights.support.fleets import distance, expected, state

EXACT = 1e-4


def told_paths(servers, monkeypatch):
    """The directories that servers are to load."""
    paths = []
    for server in servers:
        load = server.client.load

        def noted(path, version, load=load):
            paths.append(Path(path))
            load(path, version)

        monkeypatch.setattr(server.client, "load", noted)
    return paths


def test_servers_of_a_node_load_from_one_copy(
    publisher_for, policy_for, servers, node_directory, monkeypatch
):
    publisher, _ = publisher_for("node_disk")
    policy, paths = policy_for("disk"), told_paths(servers, monkeypatch)
    publisher.publish(policy, state(1))
    assert len(set(paths)) == 1 and paths[0].is_relative_to(node_directory)
    each = publisher.fleet.counts()["servers_measured"]
    copied = sorted(each[server.url]["copy_bytes"] for server in servers)
    assert copied[0] == 0 and copied[1] == each[servers[0].url]["load_bytes"] > 10**5
    assert all(one["copy_s"] > 0 and one["load_s"] > 0 for one in each.values())
    assert distance(servers[1].logprobs(), expected(policy)) < EXACT


def test_a_node_keeps_the_newest_two_copies(publisher_for, policy_for, servers, monkeypatch):
    publisher, _ = publisher_for("node_disk")
    policy, paths = policy_for("disk"), told_paths(servers, monkeypatch)
    for version in (1, 2, 3):
        publisher.publish(policy, state(version))
    assert [path.exists() for path in paths] == [False, False, True, True, True, True]


def test_servers_of_a_node_that_cannot_copy_load_from_the_shared_directory(
    publisher_for, policy_for, servers, node_directory, monkeypatch, caplog
):
    node_directory.touch()
    publisher, announced = publisher_for("node_disk")
    paths = told_paths(servers, monkeypatch)
    publisher.publish(policy_for("disk"), state(1))
    (shared,) = publisher.cfg.published.resolve().iterdir()
    assert set(paths) == {shared} and announced == [1]
    assert f"loads from {shared} itself" in caplog.text


def test_a_server_that_restarted_loads_the_copy(
    publisher_for, policy_for, servers, model_dir, monkeypatch
):
    publisher, _ = publisher_for("node_disk")
    publisher.publish(policy_for("disk"), state(1))
    servers[1].engine.update_weights(str(model_dir), 0)
    paths = told_paths(servers, monkeypatch)
    publisher.look()
    assert paths[0].exists() and paths[0].name.endswith("_1")
    assert servers[1].engine.weight_version == 1
