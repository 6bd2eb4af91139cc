"""Certificates required at the arrival of a group."""

from __future__ import annotations

import pytest

from tests.api.harness import sampled
from tests.certificate.certified import SEALING, post_sealed


async def run_that(api, policy):
    trainer = {"vocab_size": 100, "starting_step": 5, "life": "a"}
    [env_id] = await api.started(envs=[SEALING], require_certificate=policy, **trainer)
    return env_id


async def test_a_sealed_group_enters_a_run_that_refuses_others(api):
    env_id = await run_that(api, "refuse")
    reply = await post_sealed(api, env_id, "k", incarnation=1)
    assert reply.status_code == 200, reply.text
    status = await api.get("/status")
    assert (status["queued_sequences"], status["uncertified"]) == (2, {})


async def test_a_group_that_lacks_a_claim_is_refused_and_counted(api):
    env_id = await run_that(api, "refuse")
    reply = await api.http.post("/scored_data", json=sampled(5, env_id=env_id))
    assert reply.status_code == 422
    assert "certificate[0]: tokens is absent" in reply.json()["detail"]
    forged = await post_sealed(api, env_id, "k", incarnation=9)
    assert "versions is refuted, incarnation 9" in forged.json()["detail"]
    status = await api.get("/status")
    assert (status["queued_sequences"], status["uncertified"]) == (0, {"refused": 2})
    metrics = (await api.http.get("/metrics")).text
    assert 'groups_uncertified_total{claim="versions",policy="refuse"} 1.0' in metrics


async def test_a_warning_counts_the_group_and_lets_it_enter(api):
    env_id = await run_that(api, "warn")
    reply = await api.http.post("/scored_data", json=sampled(5, env_id=env_id))
    assert reply.status_code == 200
    status = await api.get("/status")
    assert (status["queued_sequences"], status["uncertified"]) == (2, {"warned": 1})


@pytest.mark.parametrize("policy", [None, "off"])
async def test_groups_of_old_clients_enter_where_nothing_is_required(api, policy):
    more = {} if policy is None else {"require_certificate": policy}
    [env_id] = await api.started(**more)
    reply = await api.http.post("/scored_data", json=sampled(0, env_id=env_id))
    assert reply.status_code == 200
    assert (await api.get("/status"))["uncertified"] == {}
