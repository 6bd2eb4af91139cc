"""How a new policy version reaches the inference servers. One publisher per file.

A publisher promises: when ``publish`` returns, every server holds exactly this version and
answers requests again. When it raises, every server it could reach stays paused, so no
sample of an unknown mixture is generated. The order is

    stage    write the new weights while servers still generate
    pause    every server; running requests finish first
    load     on every server
    verify   every server names the new version
    resume   every server
    announce the version to the rollout API
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from atroposlib.errors import ConfigError
from example_trainer.weights.disk import DiskPublisher

if TYPE_CHECKING:
    from example_trainer.checkpoint import TrainerState
    from example_trainer.config import TrainingConfig
    from example_trainer.model import Policy
    from example_trainer.weights.engines import Engine


class Publisher(Protocol):
    """Carries the weights of a policy to servers."""

    engines: Sequence[Engine]

    def publish(self, policy: Policy, state: TrainerState) -> None:
        """Make every server hold ``state.version``.

        Raises:
            PublishFailed: names the server and what it said; servers stay paused.
        """

    def hold(self) -> list[str]:
        """Pause every server that still answers; returns the URLs of those that do not."""


PUBLISHERS: dict[
    str, Callable[[TrainingConfig, Sequence[Engine], Callable[[int], None]], Publisher]
] = {
    "disk": DiskPublisher,
}


def make_publisher(
    cfg: TrainingConfig, engines: Sequence[Engine], announce: Callable[[int], None]
) -> Publisher:
    """The publisher named in the settings.

    Raises:
        ConfigError: there is none of that name.
    """
    if cfg.weight_publisher not in PUBLISHERS:
        known = ", ".join(sorted(PUBLISHERS))
        raise ConfigError(
            f"weight_publisher {cfg.weight_publisher!r} is unknown; there are: {known}"
        )
    return PUBLISHERS[cfg.weight_publisher](cfg, engines, announce)
