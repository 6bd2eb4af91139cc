"""Recorded batches posted to a rollout API so that its trainer gets exactly these batches.

    post the groups of a batch --> wait until the trainer claimed it --> the next batch

Only a single batch is ever queued, and the API forms batches of the trainer's size from what is
queued: so each claim is a recorded batch, with its groups in their order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from atroposlib.api.archive.filters import name_of_label
from atroposlib.client import AsyncRolloutClient
from atroposlib.errors import ConfigError, RolloutApiUnavailable
from atroposlib.travel.recorded_batches import Changes, RecordedBatch, RecordedRun
from atroposlib.wire import EnvRegistered, RegisterEnv

POLL_S = 0.05
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class FeedSettings:
    """How batches are fed.

    Args:
        changes: ``version_shift`` is set from the trainer's first version.
        bound_s: of each wait for the trainer.
        check: called in each wait; raises to end it.
    """

    changes: Changes
    bound_s: float
    check: Callable[[], None] = lambda: None


async def require_empty(client: AsyncRolloutClient, api_url: str) -> None:
    """Raise ConfigError if the API has groups or trained batches."""
    status = await client.status()
    if status.queue_size or status.batches_acked or status.batches_open:
        raise ConfigError(
            f"{api_url} has {status.queue_size} groups and {status.batches_acked} trained batches:"
            " replay into an empty API (atropos api serve --store memory)"
        )


async def feed(
    client: AsyncRolloutClient,
    run: RecordedRun,
    batches: Iterable[RecordedBatch],
    settings: FeedSettings,
) -> int:
    """Post the batches one after another; return their number when all are claimed.

    Raises:
        ConfigError: the trainer takes batches of another size, or a payload is freed.
        RolloutApiUnavailable: the trainer does not register or claim within the bound.
    """
    ids = await join_all(client, run.envs or ["replay"], settings)
    size = int((await client.info())["batch_size"])
    changes, count = settings.changes, 0
    for batch in batches:
        if batch.n_rows != size:
            raise ConfigError(
                f"batch {batch.no} has {batch.n_rows} rollouts, the trainer takes {size}: give it"
                " the batch_size and gradient_accumulation_steps of the recorded run"
            )
        if count == 0:
            shift = batch.step - 1 - next(iter(ids.values())).starting_step
            changes = replace(changes, version_shift=max(0, shift))
        groups = [
            msgspec.structs.replace(
                group, env_id=ids[member.env].env_id if member.env else None
            )
            for member, group in zip(batch.members, run.groups(batch, changes))
        ]
        await client.send_groups(groups)
        await until_claimed(client, batch, settings)
        count += 1
    return count


async def join_all(
    client: AsyncRolloutClient, names: Iterable[str], settings: FeedSettings
) -> dict[str, EnvRegistered]:
    """Registrations of environments by name, once the trainer has begun."""
    return {name: await _join(client, name, settings) for name in names}


async def _join(
    client: AsyncRolloutClient, name: str, settings: FeedSettings
) -> EnvRegistered:
    body = RegisterEnv(
        max_token_length=-1,
        desired_name=name_of_label(name),
        weight=1.0,
        group_size=1,
        min_batch_allocation=None,
    )

    async def registration() -> EnvRegistered | None:
        return await client.register_env(body)

    return await first_answer(registration, settings, "no trainer began")


async def until_claimed(
    client: AsyncRolloutClient, batch: RecordedBatch, settings: FeedSettings
) -> None:
    """Wait until no group of the batch is queued any more."""

    async def claim() -> bool | None:
        return (await client.status()).queued_sequences == 0 or None

    await first_answer(claim, settings, f"the trainer did not claim batch {batch.no}")


async def first_answer(
    question: Callable[[], Awaitable[Answer | None]], settings: FeedSettings, problem: str
) -> Answer:
    """The first answer that is not None. Raises RolloutApiUnavailable after the bound."""
    end = time.monotonic() + settings.bound_s
    while True:
        settings.check()
        answer = await question()
        if answer is not None:
            return answer
        if time.monotonic() > end:
            raise RolloutApiUnavailable(f"{problem} within {settings.bound_s:g} s")
        await asyncio.sleep(POLL_S)
