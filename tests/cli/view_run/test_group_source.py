"""Watching leaves the run as it is; taking is the work of a trainer."""

from __future__ import annotations

import math

import httpx
import msgspec
import pytest

from atroposlib.api.archive.load import open_explorer
from atroposlib.cli.view_run.shown_groups import ArchivedGroups, GroupSource, shown_group
from atroposlib.client import RolloutClient
from tests.cli.view_run.toys import TOKENIZER, group
from tests.client.harness import in_process, registration


@pytest.fixture
def client():
    with in_process() as transport:
        with RolloutClient("http://api", transport=transport, give_up_after_s=0) as client:
            client.transport = transport
            yield client


def source_of(client, take=False):
    return GroupSource(client, lambda one, n: shown_group(one, n, TOKENIZER, 2, 99), take)


def post(client, *answers):
    with httpx.Client(transport=client.transport, base_url="http://api") as http:
        body = msgspec.to_builtins(group(*answers))
        http.post("/scored_data", json=body).raise_for_status()


def test_watching_sees_each_new_group_once_and_changes_nothing(client):
    client.register(registration())
    source = source_of(client)
    source.fetch()
    assert (source.after(0), source.status) == (None, "watching: 0 groups seen")
    post(client, "four", "five")
    before = client.status()
    source.fetch()
    source.fetch()
    post(client, "two", "three")
    source.fetch()
    assert source.after(0).samples[0].output == "four"
    assert source.after(1).samples[0].output == "two"
    assert source.before(2) == source.after(0)
    assert source.status == "watching: 2 groups seen"
    after = client.status()
    assert (after.run_id, after.state) == (before.run_id, before.state)
    assert (after.current_step, after.queue_size) == (0, 2)


def test_taking_claims_a_batch_shows_all_its_groups_and_acks_it(client):
    client.register(registration(batch_size=4))
    source = source_of(client, take=True)
    source.fetch()
    assert source.status.startswith("no batch: ")
    post(client, "four", "five")
    post(client, "two", "three")
    source.fetch()
    assert source.status == "took batch 1: 2 groups"
    assert [source.after(n).samples[0].output for n in (0, 1)] == ["four", "two"]
    assert client.status().batches_acked == 1


def test_groups_of_an_archive_are_passed_through_by_their_ids(tmp_path):
    lines = [
        msgspec.json.encode(group(*words)) for words in (("four", "five"), ("two", "three"))
    ]
    (tmp_path / "groups.jsonl").write_bytes(b"\n".join(lines))
    with open_explorer(tmp_path, None) as (store, explorer):
        source = ArchivedGroups(explorer, lambda one, n: shown_group(one, n, TOKENIZER, 2, 99))
        source.fetch()
        assert (source.status, source.take) == ("archive: 2 groups", False)
        newest = source.before(math.inf)
        assert (newest.number, newest.samples[0].output) == (2, "two")
        assert source.before(2).samples[0].output == "four"
        assert source.after(1) == newest
        assert source.before(1) is source.after(2) is None
        assert store.stats().groups_held == 2


def test_an_api_that_is_gone_is_the_status():
    def refuse(request):
        raise httpx.ConnectError("refused", request=request)

    transport = httpx.MockTransport(refuse)
    source = source_of(RolloutClient("http://api", transport=transport, give_up_after_s=0))
    source.fetch()
    assert "http://api" in source.status
