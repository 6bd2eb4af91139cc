"""Connections of the trainer: heartbeats, waits, inference servers."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from statistics import median

from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError, InferenceUnavailable, surviving
from atroposlib.wire import Heartbeat
from atroposlib.wire.status import MAX_WAIT_CHARS, ServerState, WaitCause, WaitReport
from example_trainer.settings.weights import ServingSettings
from example_trainer.state import StopSignal
from example_trainer.weights.engines import InferenceServer, connect_engine
from example_trainer.weights.fleet import Fleet

logger = logging.getLogger(__name__)
INTERVAL_S = 2.0
PHASES_KEPT = 20  # durations of each phase
NAME_CHARS = 200  # bound of wire.Heartbeat
SERVER_PHASES = ("checking servers", "publishing weights")  # an absent server holds these up


class HeartbeatThread:
    """A background thread that sends the current phase every few seconds.

    ``send`` must neither raise nor block for long; a beat that does not arrive is lost.
    """

    def __init__(self, send: Callable[[Heartbeat], None], name: str) -> None:
        self._send = send
        self._name = name[:NAME_CHARS]
        self._lock = threading.Lock()
        # Identity of this process for the rollout API, which refuses a second trainer.
        self.life = uuid.uuid4().hex
        details: dict[str, float | int | str] = {"life": self.life}
        self._beat = Heartbeat(
            role="trainer", name=self._name, phase="starting", waiting_on=None, details=details
        )
        self.servers: Callable[[], list[ServerState]] = list  # called for each beat
        self._evaluation: Callable[[], dict[str, float | int | str]] = dict  # likewise
        self._phase_since = self._wait_since = time.monotonic()
        self._wait_cause: WaitCause = "other"
        self._spent: dict[str, deque[float]] = {}  # s in the last visits of each phase
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> HeartbeatThread:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.phase(self._beat.phase, ended=1)
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=2 * INTERVAL_S)

    def phase(
        self,
        phase: str,
        waiting_on: str | None = None,
        cause: WaitCause = "other",
        **details: float | int | str,
    ) -> None:
        """Set the current phase; details replace earlier details of the same name."""
        with self._lock:
            if phase != self._beat.phase:
                now, left = time.monotonic(), self._beat.phase
                spent = self._spent.setdefault(left, deque(maxlen=PHASES_KEPT))
                spent.append(now - self._phase_since)
                self._phase_since = now
            if waiting_on is None or self._beat.waiting_on is None:
                self._wait_since = time.monotonic()
            self._wait_cause = cause
            self._beat = Heartbeat(
                role="trainer",
                name=self._name,
                phase=phase,
                waiting_on=waiting_on[:MAX_WAIT_CHARS] if waiting_on else None,
                details={**self._beat.details, **details},
            )
        self._wake.set()

    def follow_evaluation(self, progress: Callable[[], dict[str, float | int | str]]) -> None:
        """Add to each beat the details of an evaluation that runs; ``progress`` returns these."""
        self._evaluation = progress

    def waiting_on(self, what: str | None, cause: WaitCause = "other") -> None:
        """Keep the phase and set the resource it waits for."""
        self.phase(self._beat.phase, what, cause)

    def _timed_heartbeat(self) -> Heartbeat:
        """The heartbeat of this moment, with the seconds in its phase and their median."""
        servers = self.servers()  # not under the lock: a publish that holds theirs sets phases
        evaluation = self._evaluation()
        with self._lock:
            beat, details = self._beat, {**self._beat.details, **evaluation}
            waits = []
            if on := beat.waiting_on:
                age_s = time.monotonic() - self._wait_since
                waits.append(WaitReport(cause=self._wait_cause, on=on, age_s=age_s))
            details["clock"] = time.time()
            details["phase_s"] = round(time.monotonic() - self._phase_since, 1)
            if spent := self._spent.get(beat.phase):
                details["phase_median_s"] = round(median(spent), 1)
        if absent := [server.url for server in servers if server.silent_s is not None]:
            details["waits_for"] = absent[0][:NAME_CHARS]
            if beat.phase in SERVER_PHASES:
                silent_s = max(server.silent_s or 0.0 for server in servers)
                on = f"inference server {absent[0]}"[:MAX_WAIT_CHARS]
                waits.append(WaitReport(cause="server", on=on, age_s=silent_s))
        waits.sort(key=lambda wait: wait.depth)
        waiting_on = waits[0].on if waits else None
        changed = {"servers": servers, "details": details, "waiting_on": waiting_on}
        return beat.model_copy(update={**changed, "waits": waits})

    def _run(self) -> None:
        stopped = False
        while not stopped:
            self._wake.clear()
            stopped = self._stop.is_set()  # read before the beat: the last phase is sent
            with surviving(lambda bug: logger.error("a heartbeat is lost", exc_info=bug)):
                self._send(self._timed_heartbeat())
            if not stopped:
                self._wake.wait(INTERVAL_S)


WAIT_LOG_INTERVAL_S = 10.0


class WaitReporter:
    """Reports every wait and makes it interruptible; called with the awaited resource."""

    def __init__(self, stop: StopSignal, pulse: HeartbeatThread) -> None:
        self.stop = stop
        self.phase, self.life = pulse.phase, pulse.life
        self.pulse = pulse
        self._printed_at = float("-inf")
        self.checks: list[Callable[[], None]] = []  # each raises what must end a wait

    def __call__(self, what: str, cause: WaitCause = "other") -> None:
        self.stop.check()
        for check in self.checks:
            check()
        self.note(what, cause)

    def note(self, what: str, cause: WaitCause = "other") -> None:
        """Report a wait in which a stop is not safe."""
        self.pulse.waiting_on(what, cause)
        if time.monotonic() - self._printed_at > WAIT_LOG_INTERVAL_S:
            self._printed_at = time.monotonic()
            logger.info(what)


class ServerRoster:
    """Inference servers of the trainer, from a list or from the API's directory."""

    def __init__(
        self, settings: ServingSettings, waits: WaitReporter, stack: ExitStack
    ) -> None:
        self._settings = settings
        self._waits = waits
        self._stack = stack  # closes the connections
        self._api: RolloutClient | None = None
        self._problems: dict[str, str] = {}  # URL of a server that cannot be used -> why

    def connect_all(self, client: RolloutClient, api_url: str) -> list[InferenceServer]:
        """Connect to every server, with a wait for its start; raises as ``connect_engine``.

        Of the directory ``inference_min_ready`` servers are awaited when a run begins, a
        single server when it goes on: the rest join as they come. ``api_url`` is for a client
        of the keeper's thread.
        """
        self._waits.phase("waiting for inference servers")
        if not self._settings.follows_directory:
            bound_s = self._settings.server_timeout_s
            return [self._connect(url, bound_s) for url in self._settings.servers]
        self._api = self._stack.enter_context(closing(RolloutClient(api_url)))
        begins = client.status().batches_acked == 0
        return self._first(self._settings.inference_min_ready if begins else 1)

    def follow(self, fleet: Fleet) -> None:
        """Add the servers that joined the directory; forget absent servers that left it."""
        if self._api is None or (listed := self._api.servers()) is None:
            return
        known = [engine.url for engine in fleet.engines]
        for engine in self._usable_servers(listed.urls_to_add(known, any_weights=True)):
            fleet.join(engine)
        for url in listed.urls_to_remove([engine.url for engine in fleet.engines]):
            fleet.forget(url)

    def _first(self, wanted: int) -> list[InferenceServer]:
        servers: list[InferenceServer] = []
        started, bound_s = time.monotonic(), self._settings.server_timeout_s
        while True:
            listed = self._api.servers() if self._api else None
            if listed is not None:
                known = [engine.url for engine in servers]
                servers += self._usable_servers(listed.urls_to_add(known, any_weights=True))
            waited_s = time.monotonic() - started
            state = (
                f"{len(servers)} of {wanted} inference servers are in the directory of the rollout"
                f" API; {waited_s:.0f} s of at most {bound_s:.0f} s"
            )
            if len(servers) >= wanted:
                return servers
            if waited_s > bound_s and servers:
                logger.warning(f"starting without the others: {state}")
                return servers
            if waited_s > bound_s:
                why = "".join(f"; {url}: {problem}" for url, problem in self._problems.items())
                raise InferenceUnavailable(f"{state}{why}")
            self._waits(state, cause="server")
            time.sleep(0.5)

    def _usable_servers(self, urls: Sequence[str]) -> list[InferenceServer]:
        """The servers of ``urls`` that can be used now; why not is logged once."""
        usable = []
        for url in urls:
            try:
                engine = self._connect(url, 0.0)
                engine.require(self._settings.publisher, self._settings.publish_adapter_name)
                usable.append(engine)
            except AtroposError as error:
                if self._problems.get(url) != str(error):
                    self._problems[url] = str(error)
                    logger.warning(f"inference server {url} is left out: {error}")
        return usable

    def _connect(self, url: str, wait_s: float) -> InferenceServer:
        server = connect_engine(
            url,
            self._settings.inference_engine,
            timeout_s=self._settings.publish_timeout_s,
            wait_s=wait_s,
            on_repeat=partial(self._waits.note, cause="server"),
            on_wait=partial(self._waits, cause="server"),
            token=self._settings.server_token,
            pause_mode=self._settings.publish_pause,
        )
        return self._stack.enter_context(closing(server))
