"""Admission over HTTP: number of granted rollouts, and progress of every waiting environment."""

from __future__ import annotations

import json

import pytest

from tests.api.harness import ENV, JSON, group


async def admit(api, env_id, sequences, **more):
    return await api.post("/admission", {"env_id": env_id, "sequences": sequences} | more)


async def test_without_a_staleness_bound_every_rollout_may_begin(api):
    [env_id] = await api.started()
    reply = await admit(api, env_id, 1000, admission_id="a")
    assert (reply["admission_id"], reply["granted"], reply["blocked_reason"]) == (
        "a",
        1000,
        None,
    )
    assert reply["credit_bytes"] > 0


async def test_the_staleness_bound_limits_the_batches_ahead_of_the_trainer(api):
    [env_id] = await api.started(max_staleness=1)
    assert (await admit(api, env_id, 6, admission_id="a"))["granted"] == 6
    assert (await admit(api, env_id, 6, admission_id="b"))["granted"] == 2
    refused = await admit(api, env_id, 6)
    assert refused["granted"] == 0 and "waiting for the trainer" in refused["blocked_reason"]
    assert (await admit(api, env_id, 6, admission_id="a"))["granted"] == 6  # a lost reply
    await api.post("/policy_version", {"version": 1})
    assert (await admit(api, env_id, 6, admission_id="c"))["granted"] == 4


async def test_released_and_expired_admissions_may_be_granted_again(api):
    [env_id] = await api.started(max_staleness=0)
    assert (await admit(api, env_id, 4, admission_id="a"))["granted"] == 4
    assert await api.post("/admission/release", {"admission_id": "a"}) == {
        "status": "released",
        "found": True,
    }
    assert (await api.post("/admission/release", {"admission_id": "a"}))["found"] is False
    assert (await admit(api, env_id, 4, admission_id="b", ttl_s=60))["granted"] == 4
    assert (await admit(api, env_id, 4))["granted"] == 0
    api.now += 61
    assert (await admit(api, env_id, 4))["granted"] == 4


async def test_queued_sequences_count_until_they_are_trained_on_and_published(api):
    [env_id] = await api.started(max_staleness=0)
    generation = await api.registered(max_staleness=0)
    await api.post("/scored_data", group(4, env_id=env_id))
    assert (await admit(api, env_id, 4))["granted"] == 0
    await api.trained(generation)
    assert (await admit(api, env_id, 4, admission_id="x"))[
        "granted"
    ] == 4  # the trainer starves
    await api.post("/admission/release", {"admission_id": "x"})
    await api.post("/policy_version", {"version": 1})
    assert (await admit(api, env_id, 9))["granted"] == 4


async def test_a_trainer_that_restarts_at_an_older_step_does_not_block_environments(api):
    [env_id] = await api.started(max_staleness=0, commits=True)
    generation = await api.registered(max_staleness=0, commits=True)
    for version in range(1, 4):
        await api.post("/scored_data", group(4, env_id=env_id, mark=version))
        await api.trained(generation)
        await api.post("/policy_version", {"version": version})
    generation = await api.registered(max_staleness=0, commits=True, starting_step=1)
    await api.post("/batches/1/rewind", {"generation": generation})
    assert (await admit(api, env_id, 4))["granted"] == 0  # batches 2 and 3 come first
    for version in (2, 3):
        await api.trained(generation)
        await api.post("/policy_version", {"version": version})
    assert (await admit(api, env_id, 4))["granted"] == 4


async def test_groups_that_form_no_batch_do_not_block_new_admissions(api):
    [env_id] = await api.started(max_staleness=0, envs=(ENV | {"group_size": 3},))
    await api.post("/scored_data", group(3, env_id=env_id))
    assert (await admit(api, env_id, 3, admission_id="a"))[
        "granted"
    ] == 1  # 4 of a batch, 3 held
    await api.post("/admission/release", {"admission_id": "a"})
    await api.post("/scored_data", group(3, env_id=env_id))
    assert (await admit(api, env_id, 3))["granted"] == 3


async def test_room_for_the_minimum_of_an_environment_is_kept_from_the_admissions_of_others(
    api,
):
    [greedy, small] = await api.started(
        max_staleness=0, envs=(ENV, ENV | {"min_batch_allocation": 0.5})
    )
    assert (await admit(api, greedy, 4))["granted"] == 2
    assert (await admit(api, greedy, 4))["granted"] == 0
    assert (await admit(api, small, 4))["granted"] == 2


async def test_rollouts_of_others_delay_no_environment_whose_minimum_the_batch_lacks(api):
    [greedy] = await api.started(max_staleness=0)
    await api.post("/scored_data", group(3, env_id=greedy))
    assert (await admit(api, greedy, 1, admission_id="in flight"))["granted"] == 1
    late = await api.post("/register-env", ENV | {"min_batch_allocation": 0.5})
    assert (await admit(api, late["env_id"], 2))["granted"] == 2
    await api.post("/admission/release", {"admission_id": "in flight"})
    assert (await admit(api, greedy, 1))["granted"] == 0  # it cannot complete the batch


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/admission", {"env_id": 7, "sequences": 1}, 404),
        ("/admission", {"env_id": 10**30, "sequences": 1}, 404),
        ("/admission", {"env_id": 0, "sequences": 1, "run_id": "another"}, 404),
        ("/admission", {"env_id": 0, "sequences": 0}, 422),
        ("/admission", {"env_id": 0, "sequences": 10**30}, 422),
        ("/admission", {"env_id": 0, "sequences": 1, "admission_id": "a\0"}, 422),
        ("/admission", {"env_id": 0, "sequences": 1, "ttl_s": float("nan")}, 422),
        ("/admission/release", {"admission_id": ""}, 422),
        ("/admission/release", {"admission_id": "\0"}, 422),
    ],
)
async def test_an_invalid_admission_is_rejected(api, path, body, status):
    await api.started()
    reply = await api.http.post(path, content=json.dumps(body), headers=JSON)
    assert reply.status_code == status, reply.text


async def test_an_admission_survives_a_restart(durable):
    [env_id] = await durable.started(max_staleness=0)
    await admit(durable, env_id, 4, admission_id="a")
    await durable.restart()
    assert (await admit(durable, env_id, 4))["granted"] == 0
    assert (await admit(durable, env_id, 4, admission_id="a"))["granted"] == 4


async def test_deprecated_paths_and_names_are_accepted_and_marked_deprecated(api):
    [env_id] = await api.started(max_staleness=0)
    asked = {"env_id": env_id, "sequences": 4, "lease_id": "a"}
    reply = await api.post("/lease", asked)
    assert (reply["lease_id"], reply["admission_id"], reply["granted"]) == ("a", "a", 4)
    assert (await admit(api, env_id, 4, admission_id="b"))["granted"] == 0
    assert (await api.post("/release", {"lease_id": "a"}))["found"] is True
    assert (await admit(api, env_id, 4, admission_id="b"))["granted"] == 4
    paths = (await api.http.get("/openapi.json")).json()["paths"]
    assert {
        path for path, verbs in paths.items() if verbs.get("post", {}).get("deprecated")
    } == {
        "/lease",
        "/release",
    }
