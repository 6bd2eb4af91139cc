"""A publisher, as the training loop sees it; the package says what each of them promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from example_trainer.model.model_dir import TrainerState
    from example_trainer.model.policy import Policy
    from example_trainer.weights.engines import Engine

Announce = Callable[[int], None]


class Publisher(Protocol):
    """Carries the weights of a policy to servers. Every rank has one; rank 0 the servers."""

    engines: Sequence[Engine]
    # Servers cannot answer the environments before the first version is published.
    publishes_start: bool

    def publish(self, policy: Policy, state: TrainerState) -> None:
        """Make every server hold ``state.version``. Collective: every rank calls it.

        Raises:
            PublishFailed: names the server and what it said; see the module.
            CheckpointError: nothing could be staged; no server was touched.
        """

    def hold(self) -> list[str]:
        """Pause every server that still answers; returns the URLs of those that do not."""

    def close(self) -> None:
        """Give back groups and shared memory."""
