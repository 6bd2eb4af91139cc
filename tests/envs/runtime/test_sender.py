"""Sending of accepted groups: sent once, or dropped for a counted reason."""

from __future__ import annotations

import asyncio

import pytest

from atroposlib.envs.rollout.filters import (
    AcceptedGroup,
    FilterRules,
    RejectReason,
    filter_group,
)
from atroposlib.envs.runtime.sender import GroupSender, GroupStats
from atroposlib.errors import KeyConflict, RolloutApiRefused, RolloutApiUnavailable
from atroposlib.wire import EnvRegistered

ME = EnvRegistered(
    **{"env_id": 0, "run_id": "r", "wandb_name": "e_0", "checkpoint_dir": ""},
    **{"starting_step": 0, "checkpoint_interval": 0, "num_steps": 1},
)


def kept(key: str = "k") -> AcceptedGroup:
    group = {"tokens": [[1, 2]], "masks": [[1, 2]], "scores": [1.0], "idempotency_key": key}
    verdict = filter_group(group, FilterRules(1, ensure_scores_are_not_same=False))
    assert isinstance(verdict, AcceptedGroup)
    return verdict


class Scripted:
    """A client whose posts end as the test sets."""

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


async def test_a_refused_group_is_dropped_counted_and_logged(caplog):
    sender, group_stats, _ = sender_of(Scripted(RolloutApiRefused(422, "tokens[0]: odd")))
    assert await sender.send([kept()], {"id": 7}, "r") == []
    assert group_stats.totals() == {
        "groups_sent": 0,
        "groups_dropped": 1,
        "dropped_refused": 1,
    }
    assert "item 7" in caplog.text and "tokens[0]: odd" in caplog.text


async def test_a_majority_of_dropped_groups_is_reported_with_its_reason():
    sender, group_stats, _ = sender_of(Scripted())
    for tokens in (70, 80, 90):
        assert group_stats.mostly_dropped() is None
        group_stats.drop(RejectReason.TOO_LONG, f"{tokens} tokens, at most 64", "item")
    await sender.send([kept("a"), kept("b"), kept("c")], "item", "r")
    text = "3 of the last 6 groups dropped, too_long: 90 tokens, at most 64"
    assert group_stats.mostly_dropped() == text
    await sender.send([kept("d")], "item", "r")
    assert group_stats.mostly_dropped() is None


async def test_a_group_of_an_ended_run_is_counted_and_its_item_requeued():
    sender, group_stats, taken_back = sender_of(Scripted())
    assert await sender.send([kept()], "item", "another run") == []
    assert group_stats.dropped == {"run_ended": 1} and taken_back == ["item"]


async def test_a_group_whose_key_is_already_stored_counts_as_sent():
    sender, group_stats, _ = sender_of(Scripted(KeyConflict("k came with other content")))
    assert len(await sender.send([kept()], "item", "r")) == 1
    assert group_stats.sent == 1 and not group_stats.dropped


async def test_groups_not_sent_before_the_end_are_counted():
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
