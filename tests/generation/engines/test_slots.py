from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, strategies as st

from atroposlib.generation.engines.slots import (
    RATE_WINDOW_S,
    AsyncSemWithAdaptiveWeight,
    SplitStats,
    generated_tokens,
    spending,
    timings,
)
from atroposlib.generation.sampling.generation import Generation


@pytest.mark.parametrize(
    ("capacity", "weight", "open_slots"),
    [(8, 1.0, 8), (8, 0.5, 4), (8, 0.51, 5), (8, 0.0, 1), (1, 0.3, 1), (30, 0.1, 3)],
)
def test_the_server_weight_sets_the_share_of_open_slots(
    capacity: int, weight: float, open_slots: int
) -> None:
    slots = AsyncSemWithAdaptiveWeight(capacity)
    slots.update_weight(weight)
    assert slots.limit == open_slots


def test_the_rate_counts_the_tokens_of_calls_that_ended_in_the_window(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr("atroposlib.generation.engines.slots.time.monotonic", lambda: now[0])
    stats = SplitStats(1, 8)
    stats.record(1.0, 1, 60)
    stats.record(1.0, 1, 30)
    assert stats.tokens_per_s() == 90 / RATE_WINDOW_S
    now[0] += RATE_WINDOW_S + 1
    assert stats.tokens_per_s() == 0.0


def test_sampled_tokens_are_counted_in_every_form_of_a_result() -> None:
    fields = {"logprobs": [-0.1, -0.2], "versions": [0, 0], "finish_reason": "stop"}
    generations = [Generation(prompt_ids=[1], tokens=[2, 3], **fields)]
    assert generated_tokens(generations) == 2
    assert generated_tokens(([1], [[2, 3], [4]], [[-0.1, -0.2], [-0.3]], ["stop"] * 2)) == 3
    assert generated_tokens({"prompt_tokens": [1]}) == 0


async def test_seconds_of_subtasks_add_up_under_their_name() -> None:
    async def call() -> None:
        with spending("generate"):
            await asyncio.sleep(0)

    with timings() as spent:
        await asyncio.gather(call(), call())
    await call()  # not collected
    assert spent.keys() == {"generate"} and spent["generate"] >= 0


async def take(slots: AsyncSemWithAdaptiveWeight, order: list[int], name: int) -> None:
    await slots.acquire()
    order.append(name)


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_raising_the_weight_wakes_waiters_in_order() -> None:
    slots = AsyncSemWithAdaptiveWeight(4)
    slots.update_weight(0.25)
    order: list[int] = []
    tasks = [asyncio.ensure_future(take(slots, order, name)) for name in range(4)]
    await settle()
    assert order == [0]
    slots.update_weight(0.75)
    await settle()
    assert order == [0, 1, 2]
    slots.release()
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3]


async def test_a_lowered_weight_takes_no_slot_from_holders_and_admits_no_new_call() -> None:
    slots = AsyncSemWithAdaptiveWeight(4)
    for _ in range(4):
        await slots.acquire()
    slots.update_weight(0.5)
    waiter = asyncio.ensure_future(slots.acquire())
    slots.release()
    slots.release()
    await settle()
    assert (slots.in_use, slots.free, waiter.done()) == (2, 0, False)
    slots.release()
    await waiter


async def test_a_new_call_does_not_overtake_a_waiting_call() -> None:
    slots = AsyncSemWithAdaptiveWeight(1)
    order: list[int] = []
    await slots.acquire()
    first = asyncio.ensure_future(take(slots, order, 1))
    await settle()
    slots.release()
    second = asyncio.ensure_future(take(slots, order, 2))
    await first
    slots.release()
    await second
    assert order == [1, 2]


async def test_a_waiter_cancelled_as_it_gets_its_slot_passes_it_on() -> None:
    slots = AsyncSemWithAdaptiveWeight(1)
    await slots.acquire()
    first = asyncio.ensure_future(slots.acquire())
    second = asyncio.ensure_future(slots.acquire())
    await settle()
    slots.release()
    first.cancel()
    await second
    assert first.cancelled() and slots.in_use == 1


def test_releasing_a_slot_that_is_not_held_raises() -> None:
    with pytest.raises(ValueError, match="nobody holds"):
        AsyncSemWithAdaptiveWeight(1).release()


@given(
    capacity=st.integers(1, 6),
    moves=st.lists(
        st.one_of(st.just("acquire"), st.just("release"), st.just("cancel"), st.floats(0, 1)),
        max_size=40,
    ),
)
def test_holders_never_pass_the_limit_they_were_admitted_under(
    capacity: int, moves: list[str | float]
) -> None:
    async def play() -> None:
        slots = AsyncSemWithAdaptiveWeight(capacity)
        waiting: list[asyncio.Future[bool]] = []
        held = 0
        for move in moves:
            before = slots.in_use
            if move == "acquire":
                waiting.append(asyncio.ensure_future(slots.acquire()))
            elif move == "cancel" and waiting:
                waiting.pop().cancel()
            elif move == "release" and held:
                slots.release()
                held -= 1
            elif isinstance(move, float):
                slots.update_weight(move)
            await settle()
            held += sum(task.done() and not task.cancelled() for task in waiting)
            waiting = [task for task in waiting if not task.done()]
            assert slots.in_use == held
            assert held <= max(before, slots.limit)
            assert not waiting or held >= slots.limit  # no call waits while a slot is free
        for task in waiting:
            task.cancel()
        await settle()

    asyncio.run(play())
