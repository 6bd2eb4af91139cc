"""Connections of the trainer: heartbeats, waits, inference servers, registration."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing

from atroposlib.client import RolloutClient
from atroposlib.wire import Heartbeat, Registration
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.weights import WeightSettings
from example_trainer.state import StopSignal
from example_trainer.weights.engines import InferenceServer, connect

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
        self._beat = Heartbeat(
            role="trainer", name=self._name, phase="starting", waiting_on=None
        )
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> HeartbeatThread:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=2 * INTERVAL_S)

    def phase(
        self, phase: str, waiting_on: str | None = None, **details: float | int | str
    ) -> None:
        """Set the current phase; details replace those of the same name."""
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
        """Keep the phase and set the resource it waits for."""
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
        self._send(beat)  # so that the last phase, such as "done", is sent


SERVER_START_TIMEOUT_S = 600.0
WAIT_LOG_INTERVAL_S = 30.0


class WaitReporter:
    """Reports every wait and makes it interruptible; called with the awaited resource."""

    def __init__(self, stop: StopSignal, pulse: HeartbeatThread) -> None:
        self.stop = stop
        self.phase = pulse.phase
        self._pulse = pulse
        self._printed_at = float("-inf")

    def __call__(self, what: str) -> None:
        self.stop.check()
        self._pulse.waiting_on(what)
        if time.monotonic() - self._printed_at > WAIT_LOG_INTERVAL_S:
            self._printed_at = time.monotonic()
            print(what, flush=True)


def connect_servers(
    settings: WeightSettings,
    urls: Sequence[str],
    token: str | None,
    waits: WaitReporter,
    stack: ExitStack,
) -> list[InferenceServer]:
    """Connect to every inference server, waiting for starting ones; ``stack`` closes them.

    Raises:
        InferenceUnavailable: one did not start in time.
        ConfigError: one cannot take new weights.
    """
    waits.phase("waiting for inference servers")
    return [
        stack.enter_context(
            closing(
                connect(
                    url,
                    settings.inference_engine,
                    timeout_s=settings.publish_timeout_s,
                    wait_s=SERVER_START_TIMEOUT_S,
                    on_wait=waits,
                    token=token,
                )
            )
        )
        for url in urls
    ]


def registration(
    cfg: TrainingConfig, max_token_len: int, starting_step: int, *, commits: bool
) -> Registration:
    """Build the registration of the trainer with the run.

    Args:
        commits: keep acked batches until a checkpoint that holds them is committed.
    """
    return Registration(
        wandb_group=cfg.wandb_group or "",
        wandb_project=cfg.wandb_project or "",
        batch_size=cfg.sequences_per_step,
        max_token_len=max_token_len,
        checkpoint_dir=cfg.save_path,
        save_checkpoint_interval=cfg.checkpoint_interval or cfg.training_steps,
        starting_step=starting_step,
        num_steps=cfg.training_steps,
        commits=commits,
        max_staleness=cfg.max_staleness,
        staleness_policy=cfg.staleness_policy,
    )


def label_servers(
    client: RolloutClient, engines: Sequence[InferenceServer], version: int
) -> None:
    """Label the initial weights with this version on all servers and the API."""
    for engine in engines:
        engine.label(version)
    client.announce_version(version)
