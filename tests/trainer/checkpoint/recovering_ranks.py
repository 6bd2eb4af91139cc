"""Program of two ranks for test_recovery_ranks.

``python -m tests.trainer.checkpoint.recovering_ranks RANK DIR API``

The test is rank 0 and starts rank 1; each writes what it found to ``DIR/RANK.json``. Rank 1
has another ``save_path``: that of rank 0 counts.
"""

from __future__ import annotations

import json
import random
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch

from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError
from example_trainer.checkpoint import writer
from example_trainer.checkpoint.exports import ModelExporter
from example_trainer.distributed import collectives, ranks
from example_trainer.distributed.collectives import gather_objects, run_on_rank0
from example_trainer.distributed.ranks import Ranks, end_process
from example_trainer.model import loading, state_dict
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.run.evaluator import Evaluator
from example_trainer.settings.config import TrainingConfig
from example_trainer.state import Stopped, StoppedBetweenSteps
from example_trainer.update.optimizer import (
    build_optimizer,
    clipped_step,
    optimizer_state,
)
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
        world = stack.enter_context(ranks.join_ranks(cfg, timeout_s=600))
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
    recovery.finish()
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


def apart(cfg: TrainingConfig, world: Ranks, client: RolloutClient | None) -> dict[str, Any]:
    """Save and resume with a rank 1 that does not see the disk of rank 0."""
    gather_flags = collectives.gather_flags
    collectives.gather_flags = lambda world, flag: [True, False]
    try:
        own = cfg.model_copy(update={"save_path": f"{cfg.save_path}_apart"})
        return _saved_and_resumed(own, world, client, world)
    finally:
        collectives.gather_flags = gather_flags


def grown(cfg: TrainingConfig, world: Ranks, client: RolloutClient | None) -> dict[str, Any]:
    """Two ranks resume the checkpoint of one."""
    own = cfg.model_copy(update={"save_path": f"{cfg.save_path}_of_one"})
    return _saved_and_resumed(own, Ranks.single(), client, world)


def matrices(
    cfg: TrainingConfig, world: Ranks, client: RolloutClient | None
) -> dict[str, Any]:
    """Two ranks that share matrices: norms and embeddings are equal, and written once."""
    pair = ranks.in_a_grid(world, 2, 600)
    own = cfg.model_copy(update={"save_path": f"{cfg.save_path}_of_pair"})
    return _saved_and_resumed(own, pair, client, pair)


def stopped(cfg: TrainingConfig, world: Ranks, client: RolloutClient | None) -> int:
    """Two ranks that a signal stops between two steps: the step they go on from."""
    own = cfg.model_copy(update={"save_path": f"{cfg.save_path}_stopped"})
    policy, optimizer = begun(own, world)
    recovery = recovery_of(own, world)
    state = recovery.resume(client, policy, optimizer)
    with suppress(Stopped), recovery.saving_at_stop(client, policy, optimizer):
        recovery.due(TrainerState(state.run_id, 1, 1, None), epoch_ended=False)
        raise StoppedBetweenSteps("SIGTERM")
    return recovery_of(own, world).resume(client, *begun(own, world)).step


def _saved_and_resumed(
    cfg: TrainingConfig, saving: Ranks, client: RolloutClient | None, world: Ranks
) -> dict[str, Any]:
    """Take a step and save on the ``saving`` ranks; whether all ranks resume the same bits."""
    before: dict[str, torch.Tensor] = {}
    if saving is world or world.is_rank0:
        policy, optimizer = begun(cfg, saving)
        recovery = recovery_of(cfg, saving)
        state = recovery.resume(client, policy, optimizer)
        for parameter in policy.parameters():
            parameter.grad = torch.ones_like(parameter)
        clipped_step(optimizer, policy, cfg, 0, cfg.training_steps)
        state = TrainerState(state.run_id, 1, 1, None)
        recovery.save(client, policy, optimizer, state)
        recovery.finish()
        before = whole_state(policy, optimizer)
    world.sum_(torch.ones(1))  # written
    policy, optimizer = begun(cfg, world)
    state = recovery_of(cfg, world).resume(client, policy, optimizer)
    after = whole_state(policy, optimizer)
    recover = Path(cfg.save_path) / "recover" / "step_1"
    return {
        "step": state.step,
        "names": sorted(after) if world.is_rank0 else [],
        "same": not world.is_rank0
        or before.keys() == after.keys()
        and all(torch.equal(before[name], after[name]) for name in after),
        "files": sorted(path.name for path in recover.glob("*.safetensors")),
    }


def whole_state(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Copies of all weights and moments; collective."""
    held = {**state_dict.trained_shards(policy), **optimizer_state(optimizer, policy)[0]}
    return {name: collectives.full_tensor(value).clone() for name, value in held.items()}


def full_disk(
    cfg: TrainingConfig, world: Ranks, client: RolloutClient | None
) -> dict[str, Any]:
    """The disk refuses what rank 1 writes of the second of two checkpoints."""
    own = cfg.model_copy(update={"save_path": f"{cfg.save_path}_full"})
    policy, optimizer = begun(own, world)
    recovery = recovery_of(own, world)
    run_id = recovery.resume(client, policy, optimizer).run_id
    recovery.save(client, policy, optimizer, TrainerState(run_id, 1, 1, None))
    recovery.finish()
    write_shards = writer.write_shards

    def refused(*args: Any) -> Any:
        raise OSError(28, "No space left on device")

    if world.rank == 1:
        writer.write_shards = refused
    error = ""
    try:
        recovery.save(client, policy, optimizer, TrainerState(run_id, 2, 2, None))
        recovery.finish()
    except AtroposError as raised:
        error = f"{type(raised).__name__}: {raised}"
    finally:
        writer.write_shards = write_shards
    state = recovery_of(own, world).resume(client, *begun(own, world))
    return {"error": error, "step": state.step}


def begun(cfg: TrainingConfig, world: Ranks) -> tuple[Policy, torch.optim.Optimizer]:
    # One rank alone loads as in a process without others: a mesh of it would be a group that
    # the other rank does not make.
    policy = loading.load_policy(cfg) if world.alone else loading.load_policy(cfg, world)
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


PARTS = (lives, apart, grown, matrices, stopped, full_disk, failures, values)

if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    end_process(0)  # gloo may abort a process that finalizes Python
