"""The run over HTTP: original clients first, then the new calls."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from atroposlib.api.decisions.run_state import ENV_TIMEOUT_S
from atroposlib.api.web.routes_run import MAX_POLL_S, WAITING_POLLS_PER_S, Pacing
from atroposlib.wire import ScoredData
from tests.api.harness import ENV, TRAINER, Api, group, marks

# --- before a trainer ---------------------------------------------------------------


async def test_an_empty_api_answers_as_the_original_did(api):
    assert await api.get("/") == {"message": "AtroposLib API"}
    assert await api.get("/wandb_info") == {"group": None, "project": None}
    assert await api.get("/info") == {"batch_size": -1, "max_token_len": -1}
    assert await api.post("/register-env", ENV) == {"status": "wait for trainer to start"}
    batch = await api.get("/batch")
    assert batch["status"] == "error" and batch["batch"] == [] and batch["message"]
    status = await api.get("/status")
    assert (status["current_step"], status["queue_size"], status["state"]) == (0, 0, "EMPTY")
    example = await api.get("/latest_example")
    assert example["tokens"] == [] and example["images"] == []


async def test_groups_posted_before_the_trainer_registers_are_served_to_it(api):
    await api.post("/scored_data", group(4, mark=9))
    await api.post("/register", TRAINER)
    assert marks(await api.get("/batch")) == [9]


# --- the run ------------------------------------------------------------------------


async def test_the_call_order_of_original_clients_is_supported(api):
    registered = await api.post("/register", TRAINER)
    assert registered["generation"] == 1 and isinstance(registered["uuid"], int)
    assert await api.get("/wandb_info") == {"group": "g", "project": "p"}
    assert await api.get("/info") == {"batch_size": 4, "max_token_len": 64}
    assert await api.post("/register-env", ENV) == {"status": "wait for trainer to start"}
    assert await api.get("/batch") == {"batch": None}
    assert await api.post("/register-env", ENV) == {
        "status": "success",
        "env_id": 0,
        "run_id": registered["run_id"],
        "wandb_name": "e_0",
        "checkpoint_dir": "ckpt",
        "starting_step": 0,
        "checkpoint_interval": 10,
        "num_steps": 40,
    }
    assert (await api.post("/register-env", ENV))["wandb_name"] == "e_1"
    for mark in (1, 2):
        reply = await api.post("/scored_data", group(mark=mark, env_id=0))
        assert reply == {"status": "received"}
    assert marks(await api.get("/batch")) == [1, 2]
    assert (await api.get("/status"))["current_step"] == 1


async def test_each_request_returns_one_batch_and_the_oldest_first(api):
    await api.started()
    await api.post("/scored_data_list", [group(mark=mark) for mark in range(6)])
    assert marks(await api.get("/batch")) == [0, 1]
    assert (await api.get("/status"))["current_step"] == 1
    assert marks(await api.get("/batch")) == [2, 3]
    assert (await api.get("/status"))["current_step"] == 2


async def test_a_served_group_has_every_key_of_the_record(api):
    await api.started()
    await api.post("/scored_data", group(4, messages=[[{"role": "x", "content": None}]] * 4))
    [served] = (await api.get("/batch"))["batch"]
    assert set(served) == {field.name for field in msgspec.structs.fields(ScoredData)}
    assert served["advantages"] is None and served["messages"][0][0]["role"] == "x"


async def test_a_restarted_trainer_may_change_the_batch_size_and_keeps_queue_and_envs(api):
    [env_id] = await api.started(batch_size=64)
    await api.post("/scored_data_list", [group(env_id=env_id)] * 4)
    again = await api.post("/register", TRAINER | {"batch_size": 8, "starting_step": 7})
    assert again["generation"] == 2
    assert len((await api.get("/batch"))["batch"]) == 4
    status = await api.post("/status-env", {"env_id": env_id})
    assert (status["current_step"], status["policy_version"]) == (8, 7)


async def test_a_reset_begins_a_new_run_with_no_valid_env_ids(api):
    [env_id] = await api.started()
    old = (await api.get("/status"))["run_id"]
    await api.post("/scored_data", group(env_id=env_id))
    reset = await api.http.get("/reset_data")
    assert (reset.status_code, reset.text) == (200, "Reset successful")
    assert await api.get("/info") == {"batch_size": -1, "max_token_len": -1}
    assert (await api.get("/status"))["queue_size"] == 0
    # Late posts of an environment of the old run must not block the new one (D3).
    stale = await api.http.post("/scored_data", json=group(env_id=env_id))
    assert (stale.status_code, stale.json()["status"]) == (404, "unknown_env")
    assert await api.started() == [0]
    assert (await api.get("/status"))["run_id"] != old
    stale = await api.http.post("/status-env", json={"env_id": 0, "run_id": old})
    assert (stale.status_code, stale.json()["status"]) == (404, "unknown_env")
    headers = {"X-Atropos-Run-Id": old}
    stale = await api.http.post("/scored_data", json=group(env_id=0), headers=headers)
    assert stale.status_code == 404
    assert (await api.http.post("/reset_data")).status_code == 200


@pytest.mark.parametrize("env_id", [-1, 1, 2**80])
async def test_an_unknown_env_is_answered_404(api, env_id):
    await api.started()
    for reply in (
        await api.http.request("GET", "/status-env", json={"env_id": env_id}),
        await api.http.get("/status-env", params={"env_id": env_id}),
    ):
        assert (reply.status_code, reply.json()["status"]) == (404, "unknown_env")
    goodbye = await api.post("/disconnect-env", {"env_id": env_id})
    assert goodbye["status"] == "failure" and goodbye["error"]


async def test_status_env_answers_a_body_a_query_and_a_post(api):
    [env_id] = await api.started(batch_size=64)
    await api.post("/scored_data", group(env_id=env_id))
    expected = {
        "current_step": 0,
        "queue_size": 1,
        "unallocated_fraction": 1.0,
        "self_queue_size": 1,
        "max_group_size": 2,
        "env_weight": 1.0,
        "policy_version": 0,
    }
    body = {"env_id": env_id}
    by_body = await api.http.request("GET", "/status-env", json=body)
    assert by_body.json() == expected
    assert await api.get("/status-env", params=body) == expected
    assert await api.post("/status-env", body) == expected


async def test_queue_sizes_count_the_batch_in_training(api):
    [env_id] = await api.started()
    await api.post("/scored_data_list", [group(env_id=env_id)] * 2)
    await api.get("/batch")
    status = await api.get("/status")
    assert (status["queue_size"], status["queued_sequences"]) == (2, 0)
    assert status["leased_sequences"] == 4
    assert (await api.post("/status-env", {"env_id": env_id}))["queue_size"] == 2


async def shares(api):
    listed = (await api.get("/status"))["shares"]
    return [share["name"] for share in listed if share["connected"]]


async def test_a_restart_of_the_api_gives_a_dead_environment_nothing_back(tmp_path):
    api = Api(tmp_path, "sqlite")
    polls = ENV | {"min_batch_allocation": 0.5}
    dead, live = await api.started(
        envs=(
            polls | {"join_id": "a", "desired_name": "dead"},
            polls | {"join_id": "b", "desired_name": "live"},
        )
    )
    for _ in range(20):
        api.now += 5.0
        await api.post("/status-env", {"env_id": live})
    await api.restart()
    assert await shares(api) == ["live_0"]
    await api.post("/status-env", {"env_id": dead})  # it was only slow
    assert len(await shares(api)) == 2
    await api.end()


async def test_a_successor_in_the_seat_of_a_dead_environment_ends_its_minimum_at_once(api):
    seat = ENV | {"min_batch_allocation": 0.5, "seat": "environment-0"}
    other = ENV | {"desired_name": "other"}
    _, feeds = await api.started(envs=(seat | {"join_id": "first"}, other))
    for mark in (1, 2):
        await api.post("/scored_data", group(2, mark=mark, env_id=feeds))
    assert (await api.get("/batch"))["batch"] is None  # the minimum of the dead one
    successor = await api.post("/register-env", seat | {"join_id": "second"})
    assert await shares(api) == ["other_0", "e_1"]
    await api.post("/scored_data", group(2, mark=3, env_id=successor["env_id"]))
    assert marks(await api.get("/batch")) == [1, 3]


async def test_a_disconnected_or_silent_env_has_no_share(api):
    greedy = ENV | {"min_batch_allocation": 0.5}
    first, second, third = await api.started(envs=(ENV, greedy, greedy))
    await api.post("/scored_data_list", [group(env_id=first)] * 2)
    blocked = (await api.get("/status"))["blocked_reason"]
    assert "at least 2 sequences of e_1 (env 1)" in blocked
    assert await api.get("/batch") == {"batch": None}
    assert (await api.post("/disconnect-env", {"env_id": second})) == {"status": "success"}
    assert "e_2 (env 2)" in (await api.get("/status"))["blocked_reason"]
    api.now += ENV_TIMEOUT_S + 1
    status = await api.post("/status-env", {"env_id": first})
    assert (status["env_weight"], status["unallocated_fraction"]) == (1.0, 1.0)
    assert len((await api.get("/batch"))["batch"]) == 2


async def test_the_status_reports_the_reason_why_no_batch_is_formed(api):
    reasons = [(await api.get("/status"))["blocked_reason"]]
    await api.post("/register", TRAINER)
    reasons.append((await api.get("/status"))["blocked_reason"])
    await api.get("/batch")
    reasons.append((await api.get("/status"))["blocked_reason"])
    await api.post("/scored_data", group(4))
    assert "no trainer" in reasons[0]
    assert "first batch" in reasons[1]
    assert "empty" in reasons[2]
    assert (await api.get("/status"))["blocked_reason"] is None


async def test_heartbeats_are_reported_with_their_age(api):
    beat = {"role": "trainer", "name": "t", "phase": "training", "details": {"step": 3}}
    assert await api.post("/heartbeat", beat) == {"status": "ok"}
    api.now += 2.5
    [seen] = (await api.get("/status"))["participants"]
    assert (seen["phase"], seen["age_s"], seen["details"]) == ("training", 2.5, {"step": 3})
    assert await api.get("/health") == {"status": "ok"}


async def test_the_policy_version_never_falls(api):
    await api.post("/register", TRAINER)
    assert await api.post("/policy_version", {"version": 5}) == {"policy_version": 5}
    assert await api.post("/policy_version", {"version": 3}) == {"policy_version": 5}


async def test_a_page_of_another_site_resets_nothing_over_plain_http(api):
    await api.started()
    evil = {"host": "10.0.0.5:8000", "referer": "https://evil.example/x"}
    for path in ("/reset_data", "/batch"):
        reply = await api.http.get(path, headers=evil)
        assert (reply.status_code, reply.json()["status"]) == (403, "cross_site")
    assert (await api.get("/status"))["state"] == "STARTED"
    assert (await api.http.get("/reset_data", headers={"host": "10.0.0.5:8000"})).is_success
    assert (await api.get("/status"))["state"] == "EMPTY"


async def test_environments_that_wait_for_the_trainer_poll_less_often_the_more_they_are(
    monkeypatch, api
):
    reply = await api.http.post("/register-env", json=ENV)
    assert int(reply.headers["retry-after"]) == 0
    pacing = Pacing(WAITING_POLLS_PER_S, MAX_POLL_S)
    with monkeypatch.context() as at_once:
        at_once.setattr(asyncio.get_running_loop(), "time", lambda: 7.0)
        pauses = [int(pacing()) for _ in range(500)]
    assert pauses[0] == 0 and 4 <= max(pauses) <= 10


async def test_a_batch_size_is_bounded(api):
    reply = await api.http.post("/register", json=TRAINER | {"batch_size": 2**24 + 1})
    assert reply.status_code == 422


async def test_numbers_of_a_step_are_kept_for_trainer_and_environments(api):
    [env_id] = await api.started(run_name="grpo-7")
    report = {"role": "trainer", "step": 3, "values": {"loss": 0.5}}
    assert await api.post("/steps", report) == {"kept": True}
    assert await api.post("/steps", report | {"values": {"loss": 0.25}}) == {"kept": True}
    mine = {"role": "env", "env_id": env_id, "step": 3, "values": {"train/exact": 1}}
    assert await api.post("/steps", mine) == {"kept": True}
    api.service.context.indexer.flush()
    found = api.service.context.indexer.index.read("SELECT role, name, step, body FROM step")
    assert found == [
        ("env", "e_0", 3, '{"train/exact":1.0}'),
        ("trainer", "grpo-7", 3, '{"loss":0.25}'),
    ]


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"values": {str(n): n for n in range(257)}}, 422),
        ({"values": {"x" * 201: 1}}, 422),
        ({"values": {"x": "1e999"}}, 422),
        ({"step": -1}, 422),
        ({"role": "env"}, 422),
        ({"role": "env", "env_id": 9}, 404),
    ],
)
async def test_a_report_of_a_step_that_breaks_its_bounds_is_refused(api, more, code):
    await api.started()
    body = {"role": "trainer", "step": 1, "values": {"loss": 0.5}} | more
    assert (await api.http.post("/steps", json=body)).status_code == code
