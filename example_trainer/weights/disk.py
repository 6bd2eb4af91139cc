"""Weights by disk: write a directory, tell every server to read it."""

from __future__ import annotations

from pathlib import Path

from example_trainer.distributed.collectives import on_first
from example_trainer.model.model_dir import TrainerState, keep_newest, save_model
from example_trainer.model.policy import Policy
from example_trainer.weights.fleet import FleetPublisher


class DiskPublisher(FleetPublisher):
    """Works with every engine; needs a directory that trainer and servers all see.

    An adapter is merged into the weights it adapts. A load that fails is tried once more,
    because a directory may reach a server's network file system a moment late.
    """

    def stage(self, policy: Policy, state: TrainerState) -> Path:
        directory = self.cfg.published.resolve() / f"version_{state.version}"
        # Not durable: after the death of the machine the servers are gone as well.
        return save_model(
            policy, directory, state, untie_head=self.unties(policy), durable=False
        )

    def apply(self, policy: Policy, staged: Path, version: int) -> None:
        def load() -> None:
            self.fleet.load(lambda engine: engine.load(str(staged), version), retries=1)

        on_first(policy.world, load)

    def tidy(self) -> None:
        keep_newest(self.cfg.published.resolve(), "version_*", self.cfg.keep_published)
