"""Program of two ranks for test_recovery_ranks.

``python -m tests.trainer.checkpoint.recovering_ranks RANK DIR API``

The test is rank 0 and starts rank 1; each writes what it found to ``DIR/RANK.json``. Rank 1
has another ``save_path``, as on a host that sees no common disk.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError
from example_trainer.checkpoint.exports import ModelExporter
from example_trainer.distributed import ranks
from example_trainer.distributed.collectives import gather_objects, run_on_rank0
from example_trainer.distributed.ranks import Ranks, end_process
from example_trainer.model import loading
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.run.evaluator import Evaluator
from example_trainer.settings.config import TrainingConfig
from example_trainer.state import Stopped
from example_trainer.update.optimizer import build_optimizer, clipped_step
from tests.trainer.checkpoint.lives import recovery_of
from tests.trainer.rows import row

ROWS = [row([5, 6, 7], list(range(8, 9 + n)), group=f"{n}") for n in (1, 3, 5, 8)]
EVALUATION = "import sys; open(sys.argv[1] + '/metrics.json', 'w').write('{\"a\": 0.5}')"


def settings(rank: int, directory: Path, **more: Any) -> TrainingConfig:
    values: dict[str, Any] = {
        **{"model_name": str(directory / "model"), "device": "cpu", "optimizer": "adamw"},
        **{"lr": 1e-2, "seq_len": 64, "batch_size": 4, "gradient_accumulation_steps": 2},
        **{"save_path": str(directory / f"disk_of_{rank}"), "training_steps": 9},
        **{"eval_command": [sys.executable, "-c", EVALUATION, "{out}"]},
        **{"eval_every_steps": 1, "checkpoint_interval": 1, "recover_every_steps": 1},
    }
    return TrainingConfig(**{**values, **more})


def main(rank: int, directory: Path, api: str) -> None:
    torch.set_num_threads(1)
    place = {
        "trainer_rank": rank,
        "world_size": 2,
        "init_method": f"file://{directory}/meeting",
    }
    cfg = settings(rank, directory, **place)
    with ExitStack() as stack:
        world = stack.enter_context(ranks.start(cfg, timeout_s=600))
        client = stack.enter_context(RolloutClient(api)) if world.is_rank0 else None
        found = {part.__name__: part(cfg, world, client) for part in PARTS}
    (directory / f"{rank}.json").write_text(json.dumps(found))


def lives(cfg: TrainingConfig, world: Ranks, client: RolloutClient | None) -> dict[str, Any]:
    """Start, train, save; then start again from the saved state."""
    torch.manual_seed(world.rank)
    random.seed(world.rank)
    policy, optimizer = begun(cfg, world)
    recovery = recovery_of(cfg, world)
    found: dict[str, Any] = {"begins": recovery.begins(client)}
    state = recovery.resume(client, policy, optimizer)
    found["first"] = state.step
    for _ in range(2):
        for plan in policy.plan(ROWS, divisor=2)[world.rank :: 2]:
            torch.autograd.backward(-policy.score(plan).logprobs.sum() / 10)
        clipped_step(optimizer, policy, cfg, state.step, cfg.training_steps)
    state = TrainerState(state.run_id, 2, 2, None)
    found["due"] = recovery.due(state, epoch_ended=False)
    recovery.save(client, policy, optimizer, state)
    found["logprobs"] = policy.trained_logprobs(ROWS)
    found["drawn"] = [torch.rand(3).tolist(), random.random()]

    policy, optimizer = begun(cfg, world)
    state = recovery_of(cfg, world).resume(client, policy, optimizer)
    found["second"] = state.step
    found["same logprobs"] = policy.trained_logprobs(ROWS) == found["logprobs"]
    found["drawn again"] = [torch.rand(3).tolist(), random.random()]
    found["saved"] = (
        ModelExporter(cfg, world, adapter=cfg.trains_adapter).maybe(policy, state, False)
        is not None
    )
    found["evaluated"] = Evaluator(cfg, world).maybe(state, False, [])
    return found


def begun(cfg: TrainingConfig, world: Ranks) -> tuple[Policy, torch.optim.Optimizer]:
    policy = loading.load(cfg, world)
    return policy, build_optimizer(policy, cfg)


def failures(cfg: TrainingConfig, world: Ranks, client: RolloutClient | None) -> list[str]:
    """Check that a failure on rank 0 ends every rank."""
    nowhere = {"save_path": cfg.save_path + "_absent", "recover_mode": "resume"}
    found = []
    try:
        recovery_of(cfg.model_copy(update=nowhere), world).begins(client)
    except AtroposError as error:
        found.append(f"{type(error).__name__}: {error}")

    def stop() -> None:
        raise Stopped("SIGTERM")

    try:
        run_on_rank0(world, stop)
    except Stopped as stopped:
        found.append(str(stopped))
    return found


def values(cfg: TrainingConfig, world: Ranks, client: RolloutClient | None) -> list[Any]:
    return gather_objects(world, {"rank": world.rank, "text": "x" * (1 + 9 * world.rank)})


PARTS = (lives, failures, values)

if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    end_process(0)  # gloo may abort a process that finalizes Python
