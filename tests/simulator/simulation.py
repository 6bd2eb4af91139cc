"""One simulation: the actors of a plan, its faults, and the checks until its end."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import apsw

from atroposlib.errors import ConfigError, StoreError
from atroposlib.wire import ids
from tests.simulator.actors import Environment, Trainer, World
from tests.simulator.checks import Ledger
from tests.simulator.host import ApiHost
from tests.simulator.loop import Stuck, run_virtual
from tests.simulator.plan import CALM_S, MOST_CALMS, EnvSpec, Fault, Kind, Plan
from tests.torture.figures import fast_folder

AUDIT_S = 5.0
RESTART_S = 3.0  # of a trainer that ended by itself


@dataclass
class Outcome:
    plan: Plan
    failure: str  # empty: none
    digest: str
    seen: Counter[str]
    trace: list[str]
    virtual_s: float
    cpu_s: float


class Simulation:
    """The director: starts actors, acts on them by the plan, and looks."""

    def __init__(self, plan: Plan, folder: Path | None) -> None:
        self.plan, loop = plan, asyncio.get_running_loop()
        self.ledger = Ledger(loop.time, plan)
        rng = World.rng_of(plan.seed, "api")
        self.host = ApiHost(folder, rng, plan.max_bytes)
        time.time = self.host.clock  # simulate() restores it
        self.world = World(self.host, self.ledger, plan.seed, plan.trainer.batch_size)
        self.lives = 0  # of trainers
        self.born: Counter[str] = Counter()
        self.running: dict[str, asyncio.Task[object]] = {}
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        loop.set_exception_handler(self._on_error)

    def _on_error(self, loop: asyncio.AbstractEventLoop, about: dict[str, object]) -> None:
        error = about.get("exception")
        if isinstance(error, (AssertionError, Stuck)):
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self.failed.set()

    async def run(self) -> None:
        self.host.start()
        for env in self.plan.envs:
            self._start_env(env)
        self._start_trainer()
        director = asyncio.ensure_future(self._direct())
        failed = asyncio.ensure_future(self.failed.wait())
        try:
            await asyncio.wait((director, failed), return_when=asyncio.FIRST_COMPLETED)
            if self.failure is None and director.done():
                director.result()
        finally:
            failed.cancel()
            left = [director, *self.running.values()]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            self.host.close()
        if self.failure is not None:
            raise self.failure

    async def _direct(self) -> None:
        faults = [asyncio.ensure_future(self._do(one)) for one in self.plan.faults]
        audits = asyncio.ensure_future(self._audits())
        loop, trouble_s, why = asyncio.get_running_loop(), self.plan.trouble_s, ""
        try:
            for calms in range(1, MOST_CALMS + 1):
                end = trouble_s + calms * CALM_S
                while loop.time() < end:
                    await asyncio.sleep(AUDIT_S)
                    for task in (*faults, audits):
                        if task.done():
                            task.result()
                last = calms == MOST_CALMS
                why = await self.ledger.left_over(self.host, end - CALM_S, last)
                if not why:
                    return
            raise AssertionError(why)
        finally:
            for task in (*faults, audits):
                task.cancel()

    async def _audits(self) -> None:
        while True:
            await asyncio.sleep(AUDIT_S)
            self.ledger.audit(self.host)

    # --- processes --------------------------------------------------------------------------

    def _start(self, name: str, process: Environment | Trainer) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(process.run())
        self.running[name] = task
        task.add_done_callback(lambda done: self._ended(name, done))

    def _ended(self, name: str, task: asyncio.Task[object]) -> None:
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._fail(error)
        elif name == "trainer" and self.running.get(name) is task:
            asyncio.get_running_loop().call_later(RESTART_S, self._start_trainer)

    def _start_env(self, spec: EnvSpec) -> None:
        self.born[spec.name] += 1
        self._start(spec.name, Environment(self.world, spec, self.born[spec.name]))

    def _start_trainer(self, take_over: bool = False) -> None:
        if self.failure is None:
            self.lives += 1
            self._start(
                "trainer", Trainer(self.world, self.plan.trainer, self.lives, take_over)
            )

    # --- faults -----------------------------------------------------------------------------

    async def _do(self, fault: Fault) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(fault.at)
        until = min(fault.at + fault.lasts, self.plan.trouble_s)
        self.ledger.note("fault", f"{fault.kind.value} of {fault.who} until {until:.1f}")
        self.ledger.seen[fault.kind.value] += 1
        if fault.kind is Kind.POWER:
            self.host.cut_power_after(fault.steps)
            while self.host.up and loop.time() < until:
                await asyncio.sleep(0.5)
            self.host.cut_power_after(10**9)
            await asyncio.sleep(max(0.0, until - loop.time()))
            if not self.host.up:
                self.host.restart()
                self.ledger.seen["restarts"] += 1
                self.ledger.audit(self.host)
        elif fault.kind is Kind.CRASH:
            await self._crash(fault.who, until)
        elif fault.kind is Kind.CLOCK:
            self.host.clocks[fault.who] = fault.steps
        elif fault.kind is Kind.FREEZE:
            self.world.frozen_until = until
        elif fault.kind is Kind.SECOND:
            old = self.running.pop("trainer", None)
            if old is not None:
                self.running[f"old {self.lives}"] = old
            self._start_trainer(take_over=True)
        else:
            weather = self.world.link(fault.who).weather
            name, bad, good = _WEATHER[fault.kind]
            setattr(weather, name, bad)
            await asyncio.sleep(until - loop.time())
            setattr(weather, name, good)

    async def _crash(self, who: str, until: float) -> None:
        task = self.running.pop(who, None)
        if task is None:
            return
        task.cancel()
        specs = [env for env in self.plan.envs if env.name == who]
        self.ledger.killed += [(asyncio.get_running_loop().time(), env) for env in specs]
        await asyncio.sleep(max(0.0, until - asyncio.get_running_loop().time()))
        if who in self.running:  # started meanwhile, by another fault
            return
        if who == "trainer":
            self._start_trainer()
        else:
            self._start_env(specs[0])


_WEATHER: dict[Kind, tuple[str, object, object]] = {
    Kind.LOSS: ("lost", 0.3, 0.0),
    Kind.REPEAT: ("repeated", 0.3, 0.0),
    Kind.SLOW: ("delay_s", 8.0, 0.02),
    Kind.CUT: ("cut", True, False),
    Kind.SLOW_BODY: ("body_pause_s", 4.0, 0.0),
}


def simulate(plan: Plan) -> Outcome:
    """Run a plan; a violation is its ``failure``."""
    logging.disable(logging.WARNING)
    made: list[Simulation] = []
    failure, begun = "", time.process_time()
    rng = World.rng_of(plan.seed, "ids")
    wall = time.time
    usual, ids.source = ids.source, lambda: uuid.UUID(int=rng.getrandbits(128))
    with ExitStack() as stack:
        folder = stack.enter_context(fast_folder()) if plan.store == "sqlite" else None

        async def main() -> None:
            made.append(Simulation(plan, folder))
            await made[0].run()

        try:
            run_virtual(main)
        # ConfigError: a store that refuses to open after a power cut.
        except (AssertionError, StoreError, ConfigError, apsw.Error) as error:
            failure = f"{type(error).__name__}: {error}"
        finally:
            ids.source, time.time = usual, wall
            logging.disable(logging.NOTSET)
    ledger = made[0].ledger
    return Outcome(
        plan,
        failure,
        ledger.digest,
        ledger.seen,
        ledger.lines,
        ledger.virtual_s,
        time.process_time() - begun,
    )
