"""Publishers of policy versions to the inference servers.

Guarantee of a publisher: when ``publish`` returns, every server holds exactly this
version and answers requests again. The order is

    stage    make the new weights ready while servers still generate
    pause    every server; running requests finish first
    apply    on every server
    verify   every server names the new version
    resume   every server
    announce the version to the rollout API

A server that does not answer is left out, and gets the current weights before it serves again
(``fleet``). If a server refuses before the first was changed, all continue with the weights
they held. If a server refuses later, every reachable server stays paused, so that no sample of
a mixture of versions is generated, and the message gives the version of each.

    disk            a directory that every server sees; works with every engine
    lora            only the adapter
    distributed     broadcast to the servers, no file
    node_disk       as disk, and each node copies a version once to its own disk
    shared_memory   through memory of the machine that trainer and servers share

A plug-in is a subclass of ``publisher.Publisher`` or of one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from atroposlib.utils.command import plugins

if TYPE_CHECKING:
    from example_trainer.settings.config import TrainingConfig
    from example_trainer.weights.engines import InferenceServer
    from example_trainer.weights.publisher import Announce, Publisher

__all__ = ["PUBLISHERS", "make_publisher"]

# Imported on use: a vLLM worker imports this package only for ``vllm_worker``.
PUBLISHERS: dict[str, tuple[str, str]] = {
    "disk": ("disk", "DiskPublisher"),
    "node_disk": ("node_disk", "NodeDiskPublisher"),
    "lora": ("disk", "LoraPublisher"),
    "distributed": ("distributed", "DistributedPublisher"),
    "shared_memory": ("shared_memory", "SharedMemoryPublisher"),
}


def make_publisher(
    cfg: TrainingConfig,
    engines: Sequence[InferenceServer],
    announce: Announce | None,
    on_wait: Callable[[str], None] = lambda what: None,
) -> Publisher:
    """Create the publisher of the settings and check that every server supports it.

    Args:
        engines: all servers on rank 0, none on the remaining ranks.
        announce: sends a version to the rollout API; None on ranks above 0.
        on_wait: called with the wait for a server when none is left.

    Raises:
        ConfigError: a server cannot take weights in this way; names the remedy.
    """
    kind = _class_of(cfg.publisher)
    for engine in engines:
        engine.require(cfg.publisher, cfg.publish_adapter_name)
    return kind(cfg, engines, announce, on_wait)


def _class_of(name: str) -> type[Publisher]:
    from example_trainer.weights.publisher import Publisher

    if plugins.target_of(plugins.PUBLISHER, name, PUBLISHERS) is None:
        module, attribute = PUBLISHERS[name]
        known: type[Publisher] = getattr(import_module(f"{__name__}.{module}"), attribute)
        return known
    own = plugins.load_plugin(plugins.PUBLISHER, name)
    if not isinstance(own, type) or not issubclass(own, Publisher):
        problem = f"{name} has to be a subclass of example_trainer.weights.publisher.Publisher"
        raise plugins.result_error(plugins.PUBLISHER, own, problem)
    return own
