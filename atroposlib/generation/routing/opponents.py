"""Earlier versions of the policy as opponents of a rollout.

    servers list NAME@VERSION -> choose_version -> a client of that version -> a session

All samples of a task meet the same version, as long as the pool stays the same: their rewards
differ by their play and not by their opponent.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.versioned import listed_versions, version_client
from atroposlib.generation.routing.failover import pick_server
from atroposlib.generation.routing.manager import backend_for

logger = logging.getLogger(__name__)
PoolRule = Literal["age", "win_rate"]
UNSEEN = 0.5  # score of the policy against a version that it has not played
LEAST_WEIGHT = 0.05  # a version that always loses is still met
NO_VERSIONS = (
    "no inference server lists an earlier version yet: opponents play the present one"
    " (opponent/fallback counts their games). Servers keep versions with --keep-versions K of"
    " atropos-infer, or keep_adapters of the trainer"
)


def choose_version(
    versions: Sequence[int], rule: PoolRule, scores: Mapping[int, float], draw: float
) -> int | None:
    """A version for a game; None of an empty pool.

    By age all versions of the pool, which are the last K, are equally likely. By win rate the
    weight is (1 - score)^2, the score of the policy against it: what beats the policy is met more
    often.

    Args:
        scores: mean score of the policy against a version, 0 to 1.
        draw: a random number in [0, 1).
    """
    ordered = sorted(versions)
    if not ordered:
        return None
    weights = [1.0] * len(ordered)
    if rule == "win_rate":
        losses = [1.0 - min(1.0, max(0.0, scores.get(v, UNSEEN))) for v in ordered]
        weights = [max(LEAST_WEIGHT, loss**2) for loss in losses]
    left = draw * sum(weights)
    for version, weight in zip(ordered, weights):
        left -= weight
        if left < 0:
            return version
    return ordered[-1]


def draw_for(seed: int, item: str, name: str) -> float:
    """The random number of a task's games; ``item`` names its epoch too."""
    return random.Random(f"{seed}/{item}/{name}").random()


@dataclass
class OpponentRecord:
    """Games against each version: how many, and the sum of the policy's scores."""

    games: dict[int, list[float]] = field(default_factory=dict)  # version: [games, sum]

    def add(self, version: int, score: float) -> None:
        games, total = self.games.get(version, (0.0, 0.0))
        self.games[version] = [games + 1, total + score]

    def note(self, numbers: Mapping[str, float], names: Iterable[str], score: str) -> None:
        """Count a rollout by its metrics: the number ``score`` against each named opponent."""
        for name in names:
            version = numbers.get(f"{name}/version")
            if version is not None and score in numbers:
                self.add(int(version), numbers[score])

    def scores(self) -> dict[int, float]:
        return {version: total / games for version, (games, total) in self.games.items()}

    def state(self) -> dict[str, list[float]]:
        """JSON values for a checkpoint."""
        return {str(version): games for version, games in self.games.items()}

    def restore(self, state: Mapping[str, Sequence[float]]) -> None:
        self.games = {int(version): list(games) for version, games in state.items()}


@dataclass
class OpponentPool:
    """Clients of the earlier versions on the servers of an environment.

    Args:
        servers: of the policy; the list may change in place.
        urls: further servers that serve earlier versions alone.
    """

    servers: Sequence[APIServer]
    urls: Sequence[str]
    rule: PoolRule
    seed: int
    record: OpponentRecord = field(default_factory=OpponentRecord)
    _clients: dict[tuple[str, str], APIServer] = field(default_factory=dict)
    _further: list[APIServer] = field(default_factory=list)
    _listed: dict[int, list[APIServer]] = field(default_factory=dict)
    _listed_at: int | None = None  # version of the policy at that time
    _warned: bool = False

    async def choose(self, wanted: int | str, item: str, name: str) -> APIServer | None:
        """A client of the version ``wanted``, or of a version of the pool; None: it is not there."""
        listed = await self._versions()
        version = wanted if isinstance(wanted, int) else None
        if wanted == "pool":
            draw = draw_for(self.seed, item, name)
            version = choose_version([*listed], self.rule, self.record.scores(), draw)
        if version is not None and version in listed:
            return pick_server(listed[version], "train")
        if not self._warned:
            logger.warning("%s", NO_VERSIONS)
            self._warned = True
        return None

    async def close(self) -> None:
        for client in (*self._clients.values(), *self._further):
            await client.close()

    async def _versions(self) -> dict[int, list[APIServer]]:
        """Clients of each listed version; asked again once a version was published."""
        current = max((s.announced_version or 0 for s in self.servers), default=0)
        if current != self._listed_at or not self._listed:
            self._listed_at = current
            self._listed = await self._ask()
        return self._listed

    async def _ask(self) -> dict[int, list[APIServer]]:
        if len(self._further) < len(self.urls) and self.servers:
            self._further = [_server_at(url, self.servers[0]) for url in self.urls]
        listed: dict[int, list[APIServer]] = {}
        names: set[tuple[str, str]] = set()
        for server in (*self.servers, *self._further):
            for version, name in (await listed_versions(server)).items():
                key = server.config.base_url or "", name
                names.add(key)
                client = self._clients.get(key) or version_client(server, name)
                self._clients[key] = client
                listed.setdefault(version, []).append(client)
        for key in [key for key in self._clients if key not in names]:
            if not self._clients[key].sessions:  # no game is played against it
                await self._clients.pop(key).close()
        return listed


def _server_at(url: str, like: APIServer) -> APIServer:
    config = like.config.model_copy(update={"base_url": url})
    return backend_for(config.server_type)(config, like.reasoning_config)
