"""Tells the rollout API what the trainer does, also during a step that takes minutes."""

from __future__ import annotations

import threading
from collections.abc import Callable

from atroposlib.wire import Heartbeat

INTERVAL_S = 2.0
NAME_CHARS, WAIT_CHARS = 200, 400  # bounds of wire.Heartbeat


class Pulse:
    """A background thread that sends the current phase every few seconds.

    ``send`` must neither raise nor block for long; a beat that does not arrive is lost.
    """

    def __init__(self, send: Callable[[Heartbeat], None], name: str) -> None:
        self._send = send
        self._name = name[:NAME_CHARS]
        self._lock = threading.Lock()
        self._beat = Heartbeat(
            role="trainer", name=self._name, phase="starting", waiting_on=None
        )
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=2 * INTERVAL_S)

    def phase(
        self, phase: str, waiting_on: str | None = None, **details: float | int | str
    ) -> None:
        """Show this phase from now on; details replace those of the same name."""
        with self._lock:
            self._beat = Heartbeat(
                role="trainer",
                name=self._name,
                phase=phase,
                waiting_on=waiting_on[:WAIT_CHARS] if waiting_on else None,
                details={**self._beat.details, **details},
            )
        self._wake.set()

    def waiting_on(self, what: str | None) -> None:
        """Keep the phase, change what it waits for."""
        self.phase(self._beat.phase, what)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            with self._lock:
                beat = self._beat
            self._send(beat)
            self._wake.wait(INTERVAL_S)
        with self._lock:
            beat = self._beat
        self._send(beat)  # the last phase, such as "done", is not lost
