"""Connections of the trainer: heartbeats, waits, inference servers."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, closing

from atroposlib.wire import Heartbeat
from atroposlib.wire.status import ServerState
from example_trainer.settings.weights import ServingSettings
from example_trainer.state import StopSignal
from example_trainer.weights.engines import InferenceServer, connect

logger = logging.getLogger(__name__)
INTERVAL_S = 2.0
NAME_CHARS, WAIT_CHARS = 200, 400  # bounds of wire.Heartbeat


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
        self._since = time.monotonic()  # of the phase
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
        self, phase: str, waiting_on: str | None = None, **details: float | int | str
    ) -> None:
        """Set the current phase; details replace those of the same name."""
        with self._lock:
            if phase != self._beat.phase:
                self._since = time.monotonic()
            self._beat = Heartbeat(
                role="trainer",
                name=self._name,
                phase=phase,
                waiting_on=waiting_on[:WAIT_CHARS] if waiting_on else None,
                details={**self._beat.details, **details},
            )
        self._wake.set()

    def waiting_on(self, what: str | None) -> None:
        """Keep the phase and set the resource it waits for."""
        self.phase(self._beat.phase, what)

    def _run(self) -> None:
        stopped = False
        while not stopped:
            self._wake.clear()
            stopped = self._stop.is_set()  # before the beat: the last phase is sent
            beat, servers = self._beat, self.servers()
            details = {**beat.details, "phase_s": round(time.monotonic() - self._since, 1)}
            if absent := [one.url for one in servers if one.silent_s is not None]:
                details["waits_for"] = absent[0][:NAME_CHARS]
            self._send(beat.model_copy(update={"servers": servers, "details": details}))
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

    def __call__(self, what: str) -> None:
        self.stop.check()
        for check in self.checks:
            check()
        self.note(what)

    def note(self, what: str) -> None:
        """Report a wait in which a stop is not safe."""
        self.pulse.waiting_on(what)
        if time.monotonic() - self._printed_at > WAIT_LOG_INTERVAL_S:
            self._printed_at = time.monotonic()
            logger.info(what)


def connect_servers(
    settings: ServingSettings, waits: WaitReporter, stack: ExitStack
) -> list[InferenceServer]:
    """Connect to every server, waiting for starting ones; raises as ``engines.connect``."""
    waits.phase("waiting for inference servers")
    servers = []
    for url in settings.servers:
        server = connect(
            url,
            settings.inference_engine,
            timeout_s=settings.publish_timeout_s,
            wait_s=settings.server_timeout_s,
            on_repeat=waits.note,
            on_wait=waits,
            token=settings.server_token,
            pause_mode=settings.publish_pause,
        )
        servers.append(stack.enter_context(closing(server)))
    return servers
