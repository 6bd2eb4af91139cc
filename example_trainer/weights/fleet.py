"""Publish steps on all servers at once, and the handling of failures of servers.

    in the fleet --no answer, or restarted--> left out --answers, has the current weights--> in

A server that answers with an error ends the publish: its weights or settings are wrong. A server
that does not answer is left out, and gets the current weights before it serves again: from the
next publish or, before that, from the keeper (``publisher``). So is a server that loads for
much longer than the rest; only the keeper takes it back, so that it holds up no further
publish.

    in the fleet --hold--> held at its version --release--> left out, gets the current weights

A held server belongs to an evaluation: publishes pass it over.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from itertools import islice, repeat
from pathlib import Path
from typing import Any, TypeVar

from atroposlib.errors import InferenceError, PublishFailed
from atroposlib.wire.status import ServerState
from example_trainer.weights.engines import InferenceServer, ServerGone

logger = logging.getLogger(__name__)
T = TypeVar("T")
Failure = tuple[str, object]  # URL of a server, and what it raised or did wrong
Action = Callable[[InferenceServer], object]
MAX_PARALLEL_SERVERS = 64
# Added to the two waits in which a server may be paused and unchanged: until the
# slowest server has finished its requests, and until the timeout is lifted.
WATCHDOG_SLACK_S = 60.0
AFTERWARDS = (
    "Mend or remove the server, then start the trainer again; POST /resume lets a server"
    " generate with what it holds."
)
POLL_S = 2.0  # between two looks at the servers
PROBE_S = 4.0  # limit of a probe by the heartbeat, which must not become late


class ServerSlow(ServerGone):
    """The server still works on a call that the rest have long answered."""


class Fleet:
    """All servers, called concurrently.

    Args:
        timeout_s: of a call.
        absent_s: bound of the wait for a server when none is left.
        on_wait: called with that wait.
        slow_s: how much longer than half of the servers a server may take to load.

    ``follow`` is called, under ``lock``, before each look at the servers: it may :meth:`join` and
    :meth:`forget` some.
    """

    def __init__(
        self,
        engines: Sequence[InferenceServer],
        timeout_s: float,
        absent_s: float = 600.0,
        on_wait: Callable[[str], None] = lambda what: None,
        slow_s: float | None = None,
    ) -> None:
        self.engines = list(engines)
        self.follow: Callable[[Fleet], None] = lambda fleet: None
        self.absent: dict[str, float] = {}  # URL of a server left out -> since, monotonic
        self.behind: set[str] = set()  # URLs left out because they were slow
        self.renewing: set[str] = set()  # URLs of absent servers that the keeper gives weights
        self.held: dict[str, int] = {}  # URL of a server of an evaluation -> its version
        self.reads: dict[str, Path] = {}  # URL -> the directory that it loaded last
        self.measured: dict[str, dict[str, float]] = {}  # URL -> seconds and bytes, by name
        self._unanswered: dict[str, float] = {}  # URL -> since, monotonic, during a publish
        self._awaited: dict[str, float] = {}  # URL of a slow server -> since, monotonic
        self.rejoined = 0  # servers that came back
        self.lock = threading.Lock()  # held by a publish, and by the keeper
        self._watchdog_s = 2 * timeout_s + WATCHDOG_SLACK_S
        self._absent_s, self.on_wait = absent_s, on_wait
        self.slow_s = slow_s

    def join(self, engine: InferenceServer) -> None:
        """Add a server, which is absent until it holds the current weights."""
        self.absent[engine.url] = time.monotonic()
        self.engines.append(engine)

    def forget(self, url: str) -> None:
        """Look no more for a server that was left out."""
        if self.absent.pop(url, None) is not None:
            self.behind.discard(url)
            for engine in [candidate for candidate in self.engines if candidate.url == url]:
                self.engines.remove(engine)
                engine.http.close()
            logger.warning(f"inference server {url} has left; {len(self.engines)} remain")

    @property
    def present(self) -> list[InferenceServer]:
        """The servers that take part."""
        out = self.absent.keys() | self.held.keys()
        return [engine for engine in self.engines if engine.url not in out]

    def hold(self, share: float, version: int) -> list[str]:
        """Keep a share of the servers at ``version``, which they hold; return their URLs.

        Call it between two publishes. No URL where fewer than two servers take part.
        """
        with self.lock:
            urls = self.urls
            count = held_count(len(urls), share)
            chosen = urls[len(urls) - count :]
            self.held.update(dict.fromkeys(chosen, version))
        return chosen

    def release(self, urls: Iterable[str]) -> None:
        """Let held servers take part again, once they hold the current weights."""
        for url in urls:
            if url in self.held:
                # First absent: at no moment does it take part with its old weights.
                self.absent.setdefault(url, time.monotonic())
                self.held.pop(url, None)

    @property
    def urls(self) -> list[str]:
        """Addresses of the servers that take part."""
        return [engine.url for engine in self.present]

    def counts(self) -> dict[str, Any]:
        """Metrics of a step: counts, largest seconds and bytes, figures of each server."""
        of_each = {url: self.measured[url] for url in self.urls if url in self.measured}
        names = sorted({name for figures in of_each.values() for name in figures})
        largest = {
            f"servers_{name}": max(figures.get(name, 0) for figures in of_each.values())
            for name in names
        }
        return {
            "servers_absent": len(self.absent),
            "servers_behind": len(self.behind),
            "servers_rejoined": self.rejoined,
            **({"servers_held": len(self.held)} if self.held else {}),
            **largest,
            "servers_measured": of_each,
        }

    def measure(self, engine: InferenceServer, **figures: float) -> None:
        """Note seconds or bytes of a server; a publish replaces its predecessor's figures."""
        self.measured.setdefault(engine.url, {}).update(figures)

    def states(self) -> list[ServerState]:
        """The servers, each silent server with the time since it stopped answering.

        A call of a publish waits for minutes, so servers are asked meanwhile whether they live.
        """
        now = time.monotonic()
        paused = self.present if self.lock.locked() else []
        answers = call_all(paused, lambda engine: engine.http.is_ready(PROBE_S))
        since = self._unanswered
        self._unanswered = {
            engine.url: since.get(engine.url, now)
            for engine, ready in zip(paused, answers)
            if ready is not True
        }
        silent = self._unanswered | self._awaited | self.absent
        return [
            ServerState(
                url=e.url,
                silent_s=now - silent[e.url] if e.url in silent else None,
                held=e.url in self.held,
            )
            for e in self.engines
        ]

    def measure_load(self, load: Action) -> Callable[[InferenceServer], None]:
        """The action, which notes its seconds."""

        def load_measured(engine: InferenceServer) -> None:
            began = time.monotonic()
            load(engine)
            self.measure(engine, load_s=time.monotonic() - began)

        return load_measured

    def leave_out(self, failed: Iterable[Failure]) -> list[Failure]:
        """Leave out the servers that gave no answer; return the other failures."""
        answered = []
        for url, what in failed:
            if isinstance(what, ServerGone):
                logger.warning(f"inference server {url} is left out: {what}")
                self.absent.setdefault(url, time.monotonic())
                if isinstance(what, ServerSlow):
                    self.behind.add(url)
            else:
                answered.append((url, what))
        return answered

    def take_back(self, engine: InferenceServer) -> None:
        """Let a server that has, or is about to get, the current weights take part."""
        self.behind.discard(engine.url)
        if self.absent.pop(engine.url, None) is not None:
            self.rejoined += 1
            logger.info(f"inference server {engine.url} takes part")

    def gather(self) -> None:
        """Take back every server that answers, so that the next publish includes it.

        Slow servers only if no server is left, and never a server that the keeper gives
        weights right now: these could arrive after newer weights.

        Raises:
            PublishFailed: none answered for ``absent_s``.
        """

        def take_back_ready() -> None:
            self.follow(self)
            for engine in self.engines:
                url, alone = engine.url, not self.present
                waits = url in self.absent and url not in self.renewing
                if waits and (alone or url not in self.behind) and engine.http.is_ready():
                    self.take_back(engine)

        take_back_ready()
        self.wait(take_back_ready)

    def wait(self, look: Callable[[], None]) -> None:
        """Call ``look`` until a server takes part; raises as :meth:`check`."""
        while self.engines and not self.present:
            self.release(list(self.held))  # an evaluation does not hold up the training
            self.check()
            self.on_wait(self._absence())
            time.sleep(POLL_S)
            look()

    def _absence(self) -> str:
        waited_s = time.monotonic() - max(self.absent.values())
        return (
            f"an inference server: none of {', '.join(self.absent)} answers;"
            f" {waited_s:.0f} s of at most {self._absent_s:.0f} s"
        )

    def check(self) -> None:
        """Raise PublishFailed if every server was absent for longer than ``absent_s``."""
        absent = list(self.absent.values())
        if absent and len(absent) == len(self.engines):
            if time.monotonic() - max(absent) > self._absent_s:
                raise PublishFailed(f"gave up waiting for {self._absence()}. {AFTERWARDS}")

    def pause(self) -> None:
        """Pause all servers, and only then lift the timeout after which they resume.

        If the trainer dies before that, the servers resume on their own (where they
        can). After that, only a trainer, or a person who has checked their weights,
        resumes the servers.

        Raises:
            PublishFailed: a server refuses to pause; none was touched, so the rest go on.
        """
        self.gather()
        self._pause_or_resume(lambda engine: engine.pause(self._watchdog_s))
        self._pause_or_resume(lambda engine: engine.pause())

    def _pause_or_resume(self, pause: Action) -> None:
        failed = self._leave_out_failing(pause)
        if not failed:
            return
        call_all(self.present, lambda engine: engine.resume())
        raise PublishFailed(
            f"could not pause {len(failed)} of {len(self.engines)} servers:"
            f" {_lines(failed)}. No server was touched; those that answer go on with"
            f" what they hold. {AFTERWARDS}"
        )

    def load(self, action: Action, retries: int = 0) -> None:
        """Change the weights of every server.

        Args:
            retries: times to repeat it where it failed; ``action`` must allow that.

        Raises:
            PublishFailed: a server refused; all that answer stay paused.
        """

        measured = self.measure_load(action)
        failed = self._leave_out_failing(measured, slow_s=self.slow_s)
        for _ in range(retries):
            failed = self._leave_out_failing(measured, among=failed, slow_s=self.slow_s)
        if failed:
            raise self.half_updated("load", failed)

    def do(self, action: Action) -> None:
        """Call every server; servers that give no answer, or too late, are left out.

        Raises:
            PublishFailed: a server refused; none was paused.
        """
        if failed := self._leave_out_failing(action, slow_s=self.slow_s):
            raise PublishFailed(f"no server was touched: {_lines(failed)}. {AFTERWARDS}")

    def verify(self, version: int, again: Action | None = None) -> None:
        """Raise PublishFailed unless every server reports this version.

        A server that restarted after its load is given the weights ``again``, once.
        """
        wrong = self._wrong(version)
        if wrong and again is not None:
            self._leave_out_failing(again, among=wrong)
            wrong = self._wrong(version)
        if wrong:
            raise self.half_updated(f"verify version {version} on", wrong)

    def _wrong(self, version: int) -> list[Failure]:
        answers = call_all(self.present, lambda engine: engine.version())
        return self.leave_out(
            (engine.url, answer if _is_error(answer) else f"it names version {answer!r}")
            for engine, answer in list(zip(self.present, answers))
            if answer != str(version)
        )

    def resume(self) -> None:
        """Resume generation on every server.

        Raises:
            PublishFailed: a server refuses; the rest hold the same version and go on.
        """
        if failed := self._leave_out_failing(
            lambda engine: engine.resume(), slow_s=self.slow_s
        ):
            raise PublishFailed(
                f"could not resume {len(failed)} of {len(self.engines)} servers:"
                f" {_lines(failed)}. All hold the new version and the others generate."
                f" {AFTERWARDS}"
            )

    def pause_all(self) -> list[str]:
        """Pause every server that still answers; returns the URLs of the rest."""
        paused = call_all(self.present, lambda engine: engine.pause())
        silent = [e.url for e, answer in zip(self.present, paused) if _is_error(answer)]
        return [*self.absent, *silent]

    def _leave_out_failing(
        self,
        action: Action,
        among: list[Failure] | None = None,
        slow_s: float | None = None,
    ) -> list[Failure]:
        """Call every server, or only ``among``; return the servers that answered with an error.

        Servers that give no answer are left out of the fleet.
        """
        called = [e for e in self.present if among is None or e.url in dict(among)]
        answers = self.call_most(called, action, slow_s, needed=(len(called) + 1) // 2)
        return self.leave_out((e.url, a) for e, a in zip(called, answers) if _is_error(a))

    def call_most(
        self,
        engines: Sequence[InferenceServer],
        action: Callable[[InferenceServer], T],
        slow_s: float | None,
        needed: int,
    ) -> list[T | InferenceError]:
        """Call all servers; ServerSlow for servers later than ``needed`` by ``slow_s``.

        Late calls go on in their threads, at most for the timeout of a call.
        """
        if slow_s is None or not engines:
            return call_all(engines, action)
        pool = ThreadPoolExecutor(len(engines), thread_name_prefix="servers")
        calls = [pool.submit(outcome, engine, action) for engine in engines]
        for _ in islice(as_completed(calls), needed):
            pass
        now = time.monotonic()
        self._awaited = {e.url: now for e, call in zip(engines, calls) if not call.done()}
        wait(calls, slow_s)
        self._awaited = {}
        pool.shutdown(wait=False)
        late = f"not done {slow_s:g} s after {needed} of {len(engines)} servers"
        return [call.result() if call.done() else ServerSlow(late) for call in calls]

    def half_updated(self, stage: str, failed: Sequence[Failure]) -> PublishFailed:
        """Pause a fleet that may hold several versions and return the error to raise."""
        silent = self.pause_all()
        held = call_all(self.engines, lambda engine: engine.version())
        named = ", ".join(
            f"{engine.url} {'is silent' if _is_error(v) else f'holds version {v!r}'}"
            for engine, v in zip(self.engines, held)
        )
        return PublishFailed(
            f"could not {stage} {len(failed)} of {len(self.engines)} servers:"
            f" {_lines(failed)}. Every server that answers stays paused"
            f"{' (silent: ' + ', '.join(silent) + ')' if silent else ''}; {named}."
            f" {AFTERWARDS}"
        )


def held_count(present: int, share: float) -> int:
    """How many of the servers an evaluation may hold: a share, at least 1, never all.

    Example: at a share of 0.25 of 8 servers 2, of 2 servers 1, of 1 server 0.
    """
    return min(max(1, int(share * present)), present - 1) if present > 1 else 0


def call_all(
    engines: Sequence[InferenceServer], action: Callable[[InferenceServer], T]
) -> list[T | InferenceError]:
    """Return the result or the exception of every engine, called concurrently."""

    if not engines:
        return []
    with ThreadPoolExecutor(min(len(engines), MAX_PARALLEL_SERVERS)) as pool:
        return list(pool.map(outcome, engines, repeat(action)))


def outcome(
    engine: InferenceServer, action: Callable[[InferenceServer], T]
) -> T | InferenceError:
    """The result of a call, or its error."""
    try:
        return action(engine)
    except InferenceError as error:
        return error


def _is_error(answer: object) -> bool:
    return isinstance(answer, InferenceError)


def _lines(failed: Sequence[Failure]) -> str:
    return "; ".join(f"{url}: {what}" for url, what in failed)
