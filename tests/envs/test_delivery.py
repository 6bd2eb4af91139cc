"""What becomes of a kept group: sent once, dropped for a counted reason, saved whole."""

from __future__ import annotations

import asyncio
import json
import logging

import httpx
import pytest

from atroposlib.client import AsyncRolloutClient
from atroposlib.envs.rollout.filters import AcceptedGroup, FilterRules, filter_group
from atroposlib.envs.runtime import admission
from atroposlib.envs.runtime.admission import RolloutAdmission
from atroposlib.envs.runtime.sender import GroupFile, GroupSender, GroupStats
from atroposlib.envs.runtime.wait_status import WaitStatus
from atroposlib.errors import KeyConflict, RolloutApiRefused, RolloutApiUnavailable
from atroposlib.wire import EnvIdentifier, EnvRegistered

ME = EnvRegistered(
    **{"env_id": 0, "run_id": "r", "wandb_name": "e_0", "checkpoint_dir": ""},
    **{"starting_step": 0, "checkpoint_interval": 0, "num_steps": 1},
)
WHO = EnvIdentifier(env_id=0, run_id="r")


def kept(key: str = "k") -> AcceptedGroup:
    group = {"tokens": [[1, 2]], "masks": [[1, 2]], "scores": [1.0], "idempotency_key": key}
    verdict = filter_group(group, FilterRules(1, ensure_scores_are_not_same=False))
    assert isinstance(verdict, AcceptedGroup)
    return verdict


class Scripted:
    """A client whose posts end as the test says."""

    def __init__(self, *ends):
        self.ends = list(ends)
        self.sent = []

    async def send_groups(self, groups, *, run_id):
        end = self.ends.pop(0) if self.ends else None
        if isinstance(end, BaseException):
            raise end
        if end is not None:
            await end.wait()
        self.sent += [group.idempotency_key for group in groups]


def sender_of(client):
    group_stats, taken_back = GroupStats(), []

    async def never(stale):
        raise AssertionError("it was not asked to join again")

    sender = GroupSender(
        client,
        lambda: ME,
        group_stats,
        group_size=1,
        re_register=never,
        requeue=taken_back.append,
    )
    return sender, group_stats, taken_back


async def test_groups_are_sent_under_their_keys_and_counted():
    client = Scripted()
    sender, group_stats, _ = sender_of(client)
    assert len(await sender.send([kept("a"), kept("b")], "item", "r")) == 2
    assert client.sent == ["a", "b"]
    assert (group_stats.sent, sender.accepted_groups) == (2, 2)
    assert sender.next_key() != sender.next_key()


async def test_a_refused_group_is_dropped_counted_and_said(caplog):
    sender, group_stats, _ = sender_of(Scripted(RolloutApiRefused(422, "tokens[0]: odd")))
    assert await sender.send([kept()], {"id": 7}, "r") == []
    assert group_stats.totals() == {
        "groups_sent": 0,
        "groups_dropped": 1,
        "dropped_refused": 1,
    }
    assert "item 7" in caplog.text and "tokens[0]: odd" in caplog.text


async def test_a_group_of_a_run_that_is_over_is_counted_and_its_item_comes_back():
    sender, group_stats, taken_back = sender_of(Scripted())
    assert await sender.send([kept()], "item", "another run") == []
    assert group_stats.dropped == {"run_ended": 1} and taken_back == ["item"]


async def test_a_key_that_the_api_knows_has_arrived():
    sender, group_stats, _ = sender_of(Scripted(KeyConflict("k came with other content")))
    assert len(await sender.send([kept()], "item", "r")) == 1
    assert group_stats.sent == 1 and not group_stats.dropped


async def test_what_could_not_be_sent_before_the_end_is_counted():
    sender, group_stats, _ = sender_of(Scripted(asyncio.Event()))
    sending = asyncio.ensure_future(sender.send([kept()], "item", "r"))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert group_stats.dropped == {"unsent": 1}
    sender, group_stats, _ = sender_of(Scripted(RolloutApiUnavailable("away for too long")))
    with pytest.raises(RolloutApiUnavailable):
        await sender.send([kept()], "item", "r")
    assert group_stats.dropped == {"unsent": 1}


def test_a_saved_group_is_one_line_whatever_it_carries(tmp_path):
    file = GroupFile(str(tmp_path / "g.jsonl"))
    file.write({"tokens": [[1]], "images": b"raw", "notes": {"hook": file}})
    line = json.loads((tmp_path / "g.jsonl").read_text())  # flushed before it is closed
    file.close()
    assert line["images"] == "cmF3" and "GroupFile" in line["notes"]["hook"]


# --- admission ------------------------------------------------------------------------


class Leasing:
    """An API that grants what it has room for; ``asked`` are (path, body)."""

    def __init__(self, room: int, status: int = 200) -> None:
        self.room = room
        self.status = status
        self.asked: list[tuple[str, dict]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(await request.aread())
        self.asked.append((request.url.path, body))
        if request.url.path == "/admission/release" or self.status != 200:
            return httpx.Response(self.status, json={"status": "released", "found": True})
        granted = min(self.room, body["sequences"])
        why = None if granted else "waiting for the trainer"
        reply = {"admission_id": body["admission_id"], "granted": granted}
        return httpx.Response(200, json=reply | {"blocked_reason": why, "credit_bytes": 1})


class LeasingTransport(Leasing, httpx.AsyncBaseTransport):
    pass


async def leases_of(room: int, status: int = 200):
    transport = LeasingTransport(room, status)
    client = AsyncRolloutClient("http://api", transport=transport, give_up_after_s=0)
    return RolloutAdmission(client), transport


async def admits(leases: RolloutAdmission, name: str, *, bounded=True, idle=False) -> bool:
    return await leases.admits(name, WHO, 4, bounded=bounded, idle=idle)


async def test_without_a_bound_nobody_is_asked():
    leases, api = await leases_of(0)
    assert await admits(leases, "a", bounded=False)
    assert api.asked == []


async def test_a_rollout_begins_under_a_lease_that_is_given_back():
    leases, api = await leases_of(4)
    assert await admits(leases, "a")
    await leases.settle({"a"}, WHO, 4)
    await leases.settle((), WHO, 4)
    assert [path for path, _ in api.asked] == ["/admission", "/admission/release"]
    assert api.asked[1][1] == {"admission_id": "a"}


async def test_a_refusal_is_said_and_asked_about_again_later(monkeypatch):
    leases, api = await leases_of(0)
    assert not await admits(leases, "a")
    assert leases.refusal == "waiting for the trainer"
    assert not await admits(leases, "a") and len(api.asked) == 1
    monkeypatch.setattr(admission, "ASK_AGAIN_S", 0.0)
    leases.forget()
    api.room = 4
    assert await admits(leases, "a") and leases.refusal is None


async def test_room_for_a_part_is_taken_only_where_nothing_is_under_way():
    leases, api = await leases_of(2)
    assert not await admits(leases, "a", idle=False)
    assert [path for path, _ in api.asked] == ["/admission", "/admission/release"]
    leases.forget()
    assert await admits(leases, "a", idle=True)


async def test_a_long_rollout_s_lease_is_extended(monkeypatch):
    monkeypatch.setattr(admission, "EXTEND_EVERY_S", 0.0)
    leases, api = await leases_of(4)
    assert await admits(leases, "a")
    api.room = 0  # it ended meanwhile: the rollout goes on all the same
    await leases.settle({"a"}, WHO, 4)
    assert [body["admission_id"] for _, body in api.asked] == ["a", "a"]


async def test_an_api_without_leases_paces_by_its_queue_alone(caplog):
    caplog.set_level(logging.INFO)
    leases, api = await leases_of(0, status=404)
    assert await admits(leases, "a") and await admits(leases, "b")
    assert len(api.asked) == 1 and caplog.text.count("no admission control") == 1


# --- waiting --------------------------------------------------------------------------


def test_a_wait_is_said_at_its_beginning_and_every_thirty_seconds(caplog):
    caplog.set_level(logging.INFO)
    now = [100.0]
    one = WaitStatus("toy", clock=lambda: now[0])
    for second in range(65):
        now[0] = 100.0 + second
        one.start(f"waiting for rollout API at http://api: refused, {second} s")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3 and "toy waits for rollout API" in said[0]
    assert one.on.endswith("64 s") and one.seconds() == 64
    one.clear()
    assert one.on is None and "continues after 64 s" in caplog.records[-1].getMessage()


def test_a_usual_wait_is_said_only_when_it_lasts(caplog):
    caplog.set_level(logging.INFO)
    now = [100.0]
    one = WaitStatus("toy", clock=lambda: now[0])
    one.start("the trainer to take a batch", usual=True)
    one.clear()
    assert caplog.records == []
    one.start("the trainer to take a batch", usual=True)
    now[0] += 31
    one.start("the trainer to take a batch", usual=True)
    assert len(caplog.records) == 1
