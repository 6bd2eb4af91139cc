"""The trainer's dealings with the other processes: waiting, stopping, registering."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from types import FrameType

from atroposlib.client import RolloutClient
from atroposlib.errors import RolloutApiUnavailable
from atroposlib.wire import ClaimedBatch, Registration
from example_trainer.checkpoint import TrainerState, read_state
from example_trainer.config import TrainingConfig
from example_trainer.heartbeat import Pulse
from example_trainer.model import Policy
from example_trainer.weights.engines import Engine, connect

CLAIM_WAIT_S = 5.0  # of one call; short, so that a signal is noticed soon
SERVER_START_S = 600.0
REPEAT_WAIT_LINE_S = 30.0


class Stopped(Exception):
    """The trainer was asked to stop, by the signal the message names."""


class Stop:
    """Set by a signal, read where stopping is safe: never between publish and ack."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def request(self, number: int, frame: FrameType | None = None) -> None:
        self.reason = signal.Signals(number).name

    def check(self) -> None:
        if self.reason is not None:
            raise Stopped(self.reason)


class Waits:
    """Makes every wait visible and interruptible; called with what is waited for."""

    def __init__(self, stop: Stop, pulse: Pulse) -> None:
        self.stop = stop
        self.phase = pulse.phase
        self._pulse = pulse
        self._printed_at = float("-inf")

    def __call__(self, what: str) -> None:
        self.stop.check()
        self._pulse.waiting_on(what)
        if time.monotonic() - self._printed_at > REPEAT_WAIT_LINE_S:
            self._printed_at = time.monotonic()
            print(what, flush=True)


def connect_all(cfg: TrainingConfig, waits: Waits, stack: ExitStack) -> list[Engine]:
    """Every inference server, waiting for those that still start; ``stack`` closes them.

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
                    cfg.inference_engine,
                    timeout_s=cfg.publish_timeout_s,
                    wait_s=SERVER_START_S,
                    on_wait=waits,
                )
            )
        )
        for url in cfg.servers
    ]


def register(client: RolloutClient, cfg: TrainingConfig, policy: Policy) -> TrainerState:
    """Open the run, or join it again with weights the trainer itself published in it."""
    state = read_state(cfg.model_name)
    registration = Registration(
        wandb_group=cfg.wandb_group or "",
        wandb_project=cfg.wandb_project or "",
        batch_size=cfg.sequences_per_step,
        max_token_len=policy.max_tokens_per_row,
        checkpoint_dir=cfg.save_path,
        save_checkpoint_interval=cfg.checkpoint_interval or cfg.training_steps,
        starting_step=state.step if state else 0,
        num_steps=cfg.training_steps,
    )
    registered = client.register(registration)
    if state is None or state.run_id != registered.run_id:
        return TrainerState(registered.run_id, 0, 0, None)
    print(f"continuing run {state.run_id} at step {state.step}; optimizer starts afresh")
    return state


def name_weights(client: RolloutClient, engines: Sequence[Engine], version: int) -> None:
    """Servers and API call the weights that all hold at the start by this version."""
    for engine in engines:
        engine.label(version)
    client.announce_version(version)


def wait_for_batch(
    client: RolloutClient, cfg: TrainingConfig, state: TrainerState, waits: Waits
) -> ClaimedBatch:
    """The next batch these weights have not been trained on.

    Raises:
        RolloutApiUnavailable: none could be formed within ``batch_timeout_s``.
        Stopped: asked to stop.
    """
    started = time.monotonic()
    while True:
        waits.stop.check()
        claimed = client.claim(lease_s=cfg.lease_s, wait_s=CLAIM_WAIT_S)
        if claimed.batch is not None and claimed.batch_no is not None:
            if not state.has_trained(state.run_id, claimed.batch_no):
                return claimed
            print(
                f"batch {claimed.batch_no} is in the weights already: acked, not trained again"
            )
            client.ack(claimed)
            continue
        waited_s = time.monotonic() - started
        reason = claimed.blocked_reason or "no reason given"
        if waited_s > cfg.batch_timeout_s:
            raise RolloutApiUnavailable(f"no batch for {waited_s:.0f} s: {reason}")
        waits(f"a batch: {reason}; {waited_s:.0f} s of at most {cfg.batch_timeout_s:.0f} s")
