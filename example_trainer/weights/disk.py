"""Publishers by disk: every server reads a directory of the whole model or an adapter."""

from __future__ import annotations

from pathlib import Path

from example_trainer.model.model_dir import TrainerState, keep_newest, save_adapter, save_model
from example_trainer.model.policy import Policy
from example_trainer.weights.engines import InferenceServer
from example_trainer.weights.publisher import Publisher


class DiskPublisher(Publisher):
    """Publishes the whole model; works with every engine and needs a shared directory.

    An adapter is merged into the weights it adapts. A load that fails is tried once more,
    because a directory may reach a server's network file system a moment late.
    """

    prefix = "version_"
    retries = 1

    def stage(self, policy: Policy, state: TrainerState) -> Path:
        # Not synced to disk: if the machine dies, its servers die too.
        untie = self.needs_untying(policy)
        return save_model(
            policy, self.directory(state), state, untie_head=untie, durable=False
        )

    def load(self, engine: InferenceServer, path: str, version: int) -> None:
        engine.load(path, version)

    def tidy(self) -> None:
        keep_newest(self.cfg.published.resolve(), f"{self.prefix}*", self.cfg.keep_published)

    def directory(self, state: TrainerState) -> Path:
        return self.cfg.published.resolve() / f"{self.prefix}{state.version}"


class LoraPublisher(DiskPublisher):
    """Publishes the adapter; needs a shared directory and servers of ``model_name``."""

    prefix = "policy-v"

    @property
    def publishes_start(self) -> bool:
        """A request that selects an adapter fails before its first publish."""
        return self.cfg.publish_adapter_name is not None

    def stage(self, policy: Policy, state: TrainerState) -> Path:
        return save_adapter(policy, self.directory(state), state, durable=False)

    def load(self, engine: InferenceServer, path: str, version: int) -> None:
        engine.load_adapter(path, version, self.cfg.publish_adapter_name)
