"""Staleness over HTTP: kept, masked or dropped at the claim, and measured."""

from __future__ import annotations

from tests.api.harness import group, sampled


async def old_and_new(api, policy):
    """A run at version 5 with one group of version 1 and one of version 5."""
    generation = await api.registered(max_staleness=2, staleness_policy=policy)
    await api.post("/policy_version", {"version": 3})
    await api.post("/scored_data", sampled(1, mark=1))
    await api.post("/policy_version", {"version": 5})
    await api.post("/scored_data", sampled(5, mark=2))
    return generation


async def test_the_keep_policy_delivers_old_tokens_unchanged(api):
    generation = await old_and_new(api, "keep")
    old, new = (await api.claim(generation))["batch"]
    assert old["versions"] == [[-1, 1]] * 2 and new["versions"] == [[-1, 5]] * 2
    staleness = (await api.get("/status"))["staleness"]
    assert staleness["groups"] == 2
    assert staleness["in_flight"] == {"mean": 1.0, "p95": 2.0, "max": 2.0}
    assert staleness["in_queue"] == {"mean": 1.0, "p95": 2.0, "max": 2.0}


async def test_the_mask_policy_masks_old_tokens_in_every_delivery(api):
    generation = await old_and_new(api, "mask")
    first = await api.claim(generation, claim_id="a")
    old, new = first["batch"]
    assert old["masks"] == [[-100, -100]] * 2 and old["tokens"] == [[1, 7]] * 2
    assert old["inference_logprobs"] == [[1.0, 1.0]] * 2 and old["versions"] == [[-1, -1]] * 2
    assert new["masks"] == [[-100, 7]] * 2 and new["inference_logprobs"] == [[1.0, -0.5]] * 2
    await api.post("/policy_version", {"version": 9})
    assert (await api.claim(generation, claim_id="a"))["batch"] == first["batch"]


async def test_the_drop_policy_frees_stale_groups_and_counts_them(api):
    generation = await old_and_new(api, "drop")
    empty = await api.claim(generation)
    assert empty["batch"] is None and "2 of 4" in empty["blocked_reason"]
    status = await api.get("/status")
    assert (status["dropped_groups"], status["queue_size"]) == (1, 1)
    await api.post("/scored_data", sampled(5, mark=3))
    assert len((await api.claim(generation))["batch"]) == 2


async def test_the_age_of_groups_without_versions_counts_from_their_arrival(api):
    generation = await api.registered(max_staleness=2, staleness_policy="drop")
    await api.post("/scored_data_list", [group(mark=1), group(mark=2)])
    await api.post("/policy_version", {"version": 3})
    assert (await api.claim(generation))["batch"] is None
    assert (await api.get("/status"))["dropped_groups"] == 2


async def test_the_status_shows_requested_and_realised_shares(api):
    env = {"max_token_length": 64, "group_size": 2}
    heavy = env | {"desired_name": "heavy", "weight": 3.0}
    light = env | {"desired_name": "light", "weight": 1.0}
    envs = await api.started(batch_size=8, envs=(heavy, light))
    for mark in range(8):
        for env_id in envs:
            await api.post("/scored_data", group(mark=mark, env_id=env_id))
    await api.get("/batch")
    shares = (await api.get("/status"))["shares"]
    assert [(one["name"], one["asked"], one["realised"]) for one in shares] == [
        ("heavy_0", 0.75, 0.75),
        ("light_0", 0.25, 0.25),
    ]
