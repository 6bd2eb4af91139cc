"""Seeds of the simulator, and the simulator itself: repeatable, without threads, not blind."""

from __future__ import annotations

import asyncio
import math
import threading
import time

import pytest

from tests.simulator.campaign import KEPT, shrink
from tests.simulator.checks import completes
from tests.simulator.loop import Blocking, Stuck, run_virtual
from tests.simulator.mutants import batch_one_short
from tests.simulator.plan import Kind, draw, load
from tests.simulator.simulation import simulate


def test_a_day_passes_at_once_in_the_order_of_its_timers():
    order = []

    async def after(seconds):
        await asyncio.sleep(seconds)
        order.append(asyncio.get_running_loop().time())

    async def main():
        await asyncio.gather(after(80_000.0), after(1.5), after(7.0))

    begun = time.process_time()
    run_virtual(main)
    assert order == pytest.approx([1.5, 7.0, 80_000.0])
    assert time.process_time() - begun < 60


def test_a_wait_below_the_resolution_of_the_clock_ends():
    async def main():
        await asyncio.sleep(0.1)
        now = asyncio.get_running_loop().time
        end = math.nextafter(now(), 1.0)
        while now() < end:
            await asyncio.sleep(end - now())

    run_virtual(main)


def test_a_wait_that_nothing_ends_is_a_failure():
    with pytest.raises(Stuck):
        run_virtual(lambda: asyncio.Event().wait())


def test_a_thread_in_a_simulation_is_a_failure():
    async def main():
        threading.Thread(target=print, name="hidden").start()

    with pytest.raises(AssertionError, match="hidden"):
        run_virtual(main)


def test_blocking_programs_alternate_with_the_loop():
    seen = []

    def program(name, waits, blocking):
        for _ in range(3):
            blocking.wait(asyncio.sleep(waits))
            seen.append(name)

    async def main():
        one, other = Blocking(), Blocking()
        await asyncio.gather(
            one.run(lambda: program("a", 1.0, one)),
            other.run(lambda: program("b", 1.4, other)),
        )

    run_virtual(main)
    assert seen == ["a", "b", "a", "b", "a", "b"]


def test_a_cancelled_program_ends_where_it_waits():
    seen = []

    async def main():
        blocking = Blocking()

        def program():
            try:
                blocking.wait(asyncio.sleep(1e4))
            finally:
                seen.append("end")

        task = asyncio.ensure_future(blocking.run(program))
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(main)
    assert seen == ["end"]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_seed_takes_the_same_course_again(store):
    plan = draw(3, 0.1, store)
    one, other = simulate(plan), simulate(plan)
    assert one.trace == other.trace and one.digest == other.digest
    assert one.seen["steps"] > 0 and one.failure == ""


def test_a_failing_plan_shrinks_and_can_be_kept(monkeypatch, tmp_path):
    from atroposlib.api.run import claims

    monkeypatch.setattr(claims, "choose", claims.choose)  # restored after the patch
    batch_one_short()
    small = shrink(draw(5, 0.05, "memory"))
    assert len(small.envs) == 1 and small.faults == ()
    small.save(tmp_path / "plan.json")
    assert load(tmp_path / "plan.json") == small
    assert simulate(small).failure


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_a_kept_plan_has_no_violation(path):
    assert simulate(load(path)).failure == ""


def test_each_machine_has_a_wall_clock_of_its_own():
    plan, now = draw(1, 0.05, "memory"), time.time
    one = simulate(plan)
    assert one.failure == "" and one.seen["clock"] == 2 * len(plan.envs) + 2
    assert time.time is now  # restored


@pytest.mark.parametrize(
    "queue, needs, expected",
    [
        ([(1, 1), (1, 4), (1, 4)], {}, False),
        ([(1, 1), (1, 4), (1, 3)], {}, True),
        ([(1, 1), (1, 4), (1, 3)], {2: 2}, False),
        ([(1, 1), (1, 4), (1, 3), (2, 2), (2, 1)], {2: 3}, True),
        ([(1, 1), (1, 8)], {}, False),
    ],
)
def test_a_group_may_wait_only_while_no_exact_batch_holds_it(queue, needs, expected):
    assert completes((1, 1), queue, 8, needs) is expected


def test_every_fault_is_drawn():
    plans = [draw(seed) for seed in range(100)]
    assert {one.kind for plan in plans for one in plan.faults} == set(Kind)
