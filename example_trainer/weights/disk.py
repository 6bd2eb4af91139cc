"""Publishers by disk: every server reads a directory of the whole model or an adapter."""

from __future__ import annotations

import shutil
from pathlib import Path

from safetensors import SafetensorError

from atroposlib.errors import CheckpointError
from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.model import adapter
from example_trainer.model.model_dir import TrainerState, keep_newest, save_model
from example_trainer.model.policy import Policy
from example_trainer.weights.fleet import FleetPublisher


class DiskPublisher(FleetPublisher):
    """Publishes the whole model; works with every engine and needs a shared directory.

    An adapter is merged into the weights it adapts. A load that fails is tried once more,
    because a directory may reach a server's network file system a moment late.
    """

    def stage(self, policy: Policy, state: TrainerState) -> Path:
        directory = self.cfg.published.resolve() / f"version_{state.version}"
        # Not synced to disk: if the machine dies, its servers die too.
        return save_model(
            policy, directory, state, untie_head=self.needs_untying(policy), durable=False
        )

    def apply(self, policy: Policy, staged: Path, version: int) -> None:
        def load() -> None:
            self.fleet.load(lambda engine: engine.load(str(staged), version), retries=1)

        run_on_rank0(policy.world, load)

    def tidy(self) -> None:
        keep_newest(self.cfg.published.resolve(), "version_*", self.cfg.keep_published)


NAME = "policy-v"


class LoraPublisher(FleetPublisher):
    """Publishes the adapter; needs a shared directory and servers started on
    ``model_name``.
    """

    @property
    def publishes_start(self) -> bool:
        """A request that selects an adapter fails before its first publish."""
        return self.cfg.publish_adapter_name is not None

    def stage(self, policy: Policy, state: TrainerState) -> Path:
        directory = self.cfg.published.resolve() / f"{NAME}{state.version}"
        problem: Exception | None = None
        try:
            # A server reads it only after it receives its path, so it need not appear
            # atomically.
            if policy.world.is_rank0:
                shutil.rmtree(directory, ignore_errors=True)
            adapter.save(policy, directory)
        except (OSError, SafetensorError) as error:
            problem = error

        def check() -> None:
            if problem is not None:
                raise CheckpointError(f"{directory} could not be written: {problem}")

        run_on_rank0(policy.world, check)
        return directory

    def apply(self, policy: Policy, staged: Path, version: int) -> None:
        name = self.cfg.publish_adapter_name

        def load() -> None:
            self.fleet.load(lambda e: e.load_adapter(str(staged), version, name), retries=1)

        run_on_rank0(policy.world, load)

    def tidy(self) -> None:
        found = self.cfg.published.resolve().glob(f"{NAME}*")
        numbered = sorted(found, key=lambda path: int(path.name.removeprefix(NAME)))
        for path in numbered[: -self.cfg.keep_published]:
            shutil.rmtree(path, ignore_errors=True)
