"""Publishers by disk: every server reads a directory of the whole model or an adapter.

A directory gets a name that was never used, also by a trainer that repeats a version: a server may
still map the files of an older version, and a file that is replaced kills its reader.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from atroposlib.errors import InferenceError
from atroposlib.utils.models.version_names import versioned_name
from example_trainer.model.model_dir import DRAFT, TrainerState, save_adapter, save_model
from example_trainer.model.policy import Policy
from example_trainer.weights.engines import InferenceServer
from example_trainer.weights.publisher import Publisher

logger = logging.getLogger(__name__)


class DiskPublisher(Publisher):
    """Publishes the whole model; works with every engine and needs a shared directory.

    An adapter is merged into the weights it adapts. A load that fails is tried once more,
    because a directory may reach a server's network file system a moment late.
    """

    kind, number = "version", "_"  # version_1f00a3_17
    retries = 1
    _written: Sequence[Path] = ()  # directories that are kept, the newest last
    _further: Sequence[Path] = ()  # directories that are kept as well

    def stage(self, policy: Policy, state: TrainerState) -> Path:
        # Not synced to disk: if the machine dies, its servers die too.
        untie = self.needs_untying(policy)
        return save_model(
            policy, self.directory(state), state, untie_head=untie, durable=False
        )

    def load(self, engine: InferenceServer, path: str, version: int) -> None:
        self.fleet.reads[engine.url] = Path(path)
        self.load_from(engine, path, version)

    def load_from(self, engine: InferenceServer, path: str, version: int) -> None:
        """Let a server load the directory."""
        engine.load(path, version)

    def tidy(self) -> None:
        """Delete the directories that no server reads, also directories of killed trainers.

        Every server that takes part has confirmed the newest. A server that is behind, or
        held, may still read the directory that it was given last.
        """
        fleet, reads = self.fleet, self.fleet.reads
        others = fleet.behind | fleet.renewing | fleet.held.keys()
        further = (reads[url] for url in others & reads.keys())
        kept = {*self._written, *self._further, *further}
        folder = self.cfg.published.resolve()
        for path in (*folder.glob(f"{self.kind}*"), *folder.glob(f".{self.kind}*{DRAFT}")):
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def directory(self, state: TrainerState) -> Path:
        name = f"{self.kind}_{secrets.token_hex(3)}{self.number}{state.version}"
        self._written = [*self._written, self.cfg.published.resolve() / name]
        self._written = self._written[-self.cfg.keep_published :]
        return self._written[-1]


class LoraPublisher(DiskPublisher):
    """Publishes the adapter; needs a shared directory and servers of ``model_name``."""

    kind, number = "policy", "-v"
    _earlier: Mapping[int, Path] = MappingProxyType({})  # adapters that servers keep

    @property
    def publishes_start(self) -> bool:
        """A request that selects an adapter fails before its first publish."""
        return self.cfg.publish_adapter_name is not None

    def stage(self, policy: Policy, state: TrainerState) -> Path:
        return save_adapter(policy, self.directory(state), state, durable=False)

    def load_from(self, engine: InferenceServer, path: str, version: int) -> None:
        engine.load_adapter(path, version, self.cfg.publish_adapter_name)

    def tidy(self) -> None:
        if self.cfg.keep_adapters and self._held is not None:
            self._keep_earlier(*self._held)
        super().tidy()

    def _keep_earlier(self, version: int, published: Path | None) -> None:
        """Let the servers keep the adapters before ``version``, for requests of NAME@VERSION.

        A server that refuses is logged: its environments then have no opponents, and name that in
        their metrics.
        """
        cfg = self.cfg
        before = {number: path for number, path in self._earlier.items() if number < version}
        named = {
            versioned_name(str(cfg.publish_adapter_name), number): str(path)
            for number, path in before.items()
        }
        for engine in self.fleet.present:
            try:
                engine.hold_adapters(named)
            except InferenceError as error:
                logger.warning("%s does not keep earlier adapters: %s", engine.url, error)
        if published is not None and version % cfg.keep_adapters_every == 0:
            before[version] = published  # from the next publish on
        newest = sorted(before)[-cfg.keep_adapters :]
        self._earlier = {number: before[number] for number in newest}
        self._further = [*before.values()]
