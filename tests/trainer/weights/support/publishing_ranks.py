"""Program of two trainer ranks for test_fleet_ranks; rank 0 is the test itself.

``python -m tests.trainer.weights.support.publishing_ranks RANK DIR``
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from atroposlib.errors import AtroposError
from example_trainer.distributed import ranks
from example_trainer.distributed.ranks import end_process
from example_trainer.model import loading
from example_trainer.settings.config import TrainingConfig
from example_trainer.weights import make_publisher, verify
from example_trainer.weights.agreement import Agreement
from tests.trainer.weights.support.fleets import SEQUENCES, state

ORDER = ("disk", "distributed", "shared_memory")


def main(rank: int, directory: Path, engines: Sequence[Any] = ()) -> list[str]:
    """Publish by each publisher and check the servers; return the final error."""
    torch.set_num_threads(1)
    problems = []
    settings = {
        "device": "cpu",
        "optimizer": "adamw",
        "seq_len": 64,
        "publish_timeout_s": 20,
        "save_path": str(directory / "saved"),
        "trainer_rank": rank,
        "world_size": 2,
        "init_method": f"file://{directory}/meeting",
    }
    first = TrainingConfig(model_name=str(directory / "0"), **settings)
    with ranks.join_ranks(first, timeout_s=600) as world:
        for version, name in enumerate(ORDER):
            more = {"model_name": str(directory / f"{version}"), "weight_publisher": name}
            cfg = TrainingConfig(**{**settings, **more})
            policy = loading.load_policy(cfg, world)
            publisher = make_publisher(cfg, engines, None)
            publisher.publish(policy, state(version))
            verify.check_servers(policy, engines, SEQUENCES, version, Agreement.of("float32"))
            publisher.close()
        for engine in engines:
            engine.gone = True
        for action in (
            lambda: publisher.publish(policy, state(9)),
            lambda: verify.check_engines(policy, engines, Agreement.of("float32")),
        ):
            try:
                action()
            except (AtroposError, RuntimeError) as error:
                problems.append(f"{type(error).__name__}: {error}")
    return problems


if __name__ == "__main__":
    print("\n".join(main(int(sys.argv[1]), Path(sys.argv[2]))))
    end_process(0)  # gloo may abort a process that finalizes Python
