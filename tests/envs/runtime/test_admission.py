"""Admission of rollouts against a scripted API."""

from __future__ import annotations

import json
import logging

import httpx

from atroposlib.client import AsyncRolloutClient
from atroposlib.envs.runtime import admission
from atroposlib.envs.runtime.admission import RolloutAdmission
from atroposlib.wire import EnvIdentifier

WHO = EnvIdentifier(env_id=0, run_id="r")


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


async def test_without_a_bound_every_rollout_is_admitted_without_a_request():
    leases, api = await leases_of(0)
    assert await admits(leases, "a", bounded=False)
    assert api.asked == []


async def test_a_rollout_begins_under_an_admission_that_is_released():
    leases, api = await leases_of(4)
    assert await admits(leases, "a")
    await leases.settle({"a"}, WHO, 4)
    await leases.settle((), WHO, 4)
    assert [path for path, _ in api.asked] == ["/admission", "/admission/release"]
    assert api.asked[1][1] == {"admission_id": "a"}


async def test_a_refusal_has_a_reason_and_is_requested_again_later(monkeypatch):
    leases, api = await leases_of(0)
    assert not await admits(leases, "a")
    assert leases.refusal == "waiting for the trainer"
    assert not await admits(leases, "a") and len(api.asked) == 1
    monkeypatch.setattr(admission, "ASK_AGAIN_S", 0.0)
    leases.forget()
    api.room = 4
    assert await admits(leases, "a") and leases.refusal is None


async def test_room_for_a_part_of_a_group_suffices_only_without_a_running_rollout():
    leases, api = await leases_of(2)
    assert not await admits(leases, "a", idle=False)
    assert [path for path, _ in api.asked] == ["/admission", "/admission/release"]
    leases.forget()
    assert await admits(leases, "a", idle=True)


async def test_the_admission_of_a_long_rollout_is_extended(monkeypatch):
    monkeypatch.setattr(admission, "EXTEND_EVERY_S", 0.0)
    leases, api = await leases_of(4)
    assert await admits(leases, "a")
    api.room = 0  # it ended meanwhile: the rollout goes on all the same
    await leases.settle({"a"}, WHO, 4)
    assert [body["admission_id"] for _, body in api.asked] == ["a", "a"]


async def test_an_api_without_admission_paces_by_its_queue_alone(caplog):
    caplog.set_level(logging.INFO)
    leases, api = await leases_of(0, status=404)
    assert await admits(leases, "a") and await admits(leases, "b")
    assert len(api.asked) == 1 and caplog.text.count("no admission control") == 1
