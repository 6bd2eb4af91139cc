"""Publisher by disk whose versions each node copies to its own disk, once for all its servers.

With many servers of several gigabytes each, the shared file system is the limit: it is read once per
node instead of once per server, and while servers still generate, so that the pause is shorter.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from atroposlib.errors import InferenceError
from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.weights.disk import DiskPublisher
from example_trainer.weights.engines import InferenceServer, ServerGone

logger = logging.getLogger(__name__)


class NodeDiskPublisher(DiskPublisher):
    """Publishes the whole model; needs a shared directory, and room for two versions on each node.

    A server whose node cannot copy loads from the shared directory.
    """

    def stage(self, policy: Policy, state: TrainerState) -> Path:
        path = super().stage(policy, state)
        run_on_rank0(policy.world, lambda: self._copy_everywhere(path))
        return path

    def load_from(self, engine: InferenceServer, path: str, version: int) -> None:
        # Asked again: a node that was lost meanwhile, or has just joined, has no copy yet.
        engine.load(self._copy_for(engine, path), version)

    def _copy_everywhere(self, path: Path) -> None:
        self.fleet.gather()
        self.fleet.do(lambda engine: self._copy_for(engine, str(path), staging=True))

    def _copy_for(self, engine: InferenceServer, path: str, staging: bool = False) -> str:
        """The directory that a server loads."""
        began = time.monotonic()
        try:
            directory, copied_bytes = engine.copy_to_node(path)
        except ServerGone:
            raise
        except InferenceError as error:
            logger.warning(f"{engine.url} loads from {path} itself: {error}")
            return path
        if staging or copied_bytes:
            self.fleet.measure(
                engine, copy_s=time.monotonic() - began, copy_bytes=copied_bytes
            )
        return directory
