"""Certificate of a batch: what the archive proves, and what damage of it refutes."""

from __future__ import annotations

import pytest

from tests.api.harness import Api, sampled
from tests.certificate.certified import trained_run

PATH = "/explore/batches/1/certificate"


@pytest.fixture
async def kept(tmp_path):
    api = Api(tmp_path, "sqlite", archive_bytes=2**20)
    yield api
    await api.end()


async def test_a_batch_of_sealed_groups_is_proved(kept):
    await trained_run(kept)
    batch = await kept.get(PATH)
    prefix_cache = batch["counts"].pop("prefix_cache")
    assert prefix_cache == {"absent": 2}  # the publish of version 3 was not checked
    assert {claim: {"proved": 2} for claim in batch["counts"]} == batch["counts"]
    assert (batch["no"], [row["row"] for row in batch["rows"]]) == (1, [0, 1])
    assert "version 3" in batch["rows"][0]["why"]["prefix_cache"]


async def test_a_batch_of_groups_without_seals_is_not_refuted(kept):
    [env_id] = await kept.started(batch_size=2)
    await kept.post("/scored_data", sampled(0, env_id=env_id))
    await kept.get("/batch")
    kept.service.context.indexer.flush()
    batch = await kept.get(PATH)
    assert not any("refuted" in values for values in batch["counts"].values())
    assert batch["counts"]["tokens"] == {"absent": 2}


async def test_an_unknown_batch_is_not_found(kept):
    assert (await kept.http.get("/explore/batches/7/certificate")).status_code == 404
    assert (await kept.http.get(f"/explore/batches/{2**70}/certificate")).status_code == 404


async def test_bit_rot_of_the_archive_is_refuted(kept):
    await trained_run(kept)
    [path] = kept.folder.glob("payload-*.log")
    stored = bytearray(path.read_bytes())
    stored[len(stored) // 2] ^= 1
    path.write_bytes(stored)
    batch = await kept.get(PATH)
    assert batch["counts"] == {"bytes": {"refuted": 2}}
    assert "digest" in batch["rows"][0]["why"]["bytes"]


async def test_a_reward_of_the_index_that_the_row_does_not_have_is_refuted(kept):
    await trained_run(kept)
    kept.service.context.indexer.index.change("UPDATE rollout SET reward = 9 WHERE row = 1")
    batch = await kept.get(PATH)
    assert batch["counts"]["bytes"] == {"proved": 1, "refuted": 1}


async def test_a_row_that_the_stored_group_lacks_is_refuted(kept):
    await trained_run(kept)
    kept.service.context.indexer.index.change("UPDATE rollout SET row = 7 WHERE row = 1")
    batch = await kept.get(PATH)
    assert batch["counts"]["bytes"] == {"proved": 1, "refuted": 1}


async def test_a_sample_in_two_groups_of_a_batch_is_refuted(kept, monkeypatch):
    from tests.certificate import certified

    group = certified.sealed_group(incarnation=1)
    monkeypatch.setattr(
        certified,
        "sealed_group",
        lambda idempotency_key, incarnation: _with_key(group, idempotency_key),
    )
    await trained_run(kept, groups=2)
    batch = await kept.get(PATH)
    assert batch["counts"]["distinct"] == {"proved": 2, "refuted": 2}


def _with_key(group, key):
    from dataclasses import replace

    return replace(group, group={**group.group, "idempotency_key": key})


async def test_groups_whose_bytes_are_freed_are_absent(tmp_path):
    api = Api(tmp_path, "sqlite")
    await trained_run(api)
    assert (await api.get(PATH))["counts"] == {"bytes": {"absent": 2}}
    await api.end()
