"""The trainer's dealings with the other processes: waiting, stopping, registering."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

from atroposlib.client import RolloutClient
from atroposlib.wire import Registration
from example_trainer.run.heartbeat import Pulse
from example_trainer.settings.config import TrainingConfig
from example_trainer.state.stop import Stop, Stopped
from example_trainer.weights.engines import Engine, connect

__all__ = ["Stop", "Stopped", "Waits", "connect_all", "name_weights", "registration"]

SERVER_START_S = 600.0
REPEAT_WAIT_LINE_S = 30.0


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
                    token=cfg.server_token,
                )
            )
        )
        for url in cfg.servers
    ]


def registration(
    cfg: TrainingConfig, max_token_len: int, starting_step: int, *, commits: bool
) -> Registration:
    """What the run is told about its trainer.

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


def name_weights(client: RolloutClient, engines: Sequence[Engine], version: int) -> None:
    """Servers and API call the weights that all hold at the start by this version."""
    for engine in engines:
        engine.label(version)
    client.announce_version(version)
