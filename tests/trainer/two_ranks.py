"""Program of two ranks for the fixture ``ranks``.

``python -m tests.trainer.two_ranks RANK DIR``

The test is rank 0 and starts rank 1; each writes what it found to ``DIR/RANK.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from atroposlib.wire.routing import experts_entry
from example_trainer.advantage.prepare import Prepared
from example_trainer.distributed import collectives, ranks
from example_trainer.distributed.ranks import RankLost, Ranks, end_process
from example_trainer.model import adapter, loading, state_dict
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.settings.algorithms import Algorithm
from example_trainer.settings.config import TrainingConfig
from example_trainer.state import StopSignal
from example_trainer.update.optimizer import (
    build_optimizer,
    clipped_step,
    load_optimizer_state,
    optimizer_state,
)
from example_trainer.update.step import learn
from tests.trainer.architectures import write
from tests.trainer.distributed.pictured_ranks import pictured
from tests.trainer.families import family_of
from tests.trainer.loaded_ranks import (
    LONE,
    adapted,
    held_low,
    loaded,
    mean_distance,
    with_real_logits,
)
from tests.trainer.rows import row
from tests.trainer.run.noted_ranks import noted

ROWS = [row([5, 6, 7], list(range(8, 9 + n)), group=f"{n // 4}") for n in (1, 3, 5, 8, 9)]
OPTIMIZERS = ("adamw", "adafactor", "sgd")
ONE_MICROBATCH = {"max_tokens_per_microbatch": 1000}


def main(rank: int, directory: Path) -> None:
    torch.set_num_threads(1)
    cfg = TrainingConfig(
        model_name=str(directory / "model"),
        device="cpu",
        optimizer="adamw",
        lr=1e-2,
        seq_len=64,
        max_tokens_per_microbatch=24,
        trainer_rank=rank,
        world_size=2,
        init_method=f"file://{directory}/meeting",
        lora_r=4,
        seed=rank,  # weights of rank 0 count all the same
    )
    found: dict[str, Any] = {}
    try:
        with ranks.join_ranks(cfg, timeout_s=600) as world:
            for part in PARTS:
                found[part.__name__] = part(cfg, world)
            if rank == 1:
                raise ValueError("rank 1 gives up")
            world.sum_(torch.ones(1))
    except (RankLost, ValueError) as error:
        found["end"] = f"{type(error).__name__}: {error}"
    (directory / f"{rank}.json").write_text(json.dumps(found))


def values(cfg: TrainingConfig, world: Ranks) -> dict[str, Any]:
    shared = world.share({"a": [1, 2.5], "b": None} if world.is_rank0 else None)
    total = world.sum_(torch.tensor([1.0, world.rank]))
    return {"shared": shared, "sum": total.tolist()}


def replayed(cfg: TrainingConfig, world: Ranks) -> list[float]:
    """Distance of logprobs under other experts from those of a whole model, and from its own."""
    own = cfg.model_copy(update={"model_name": str(Path(cfg.model_name).parent / "mixtral")})
    own.router_replay = True
    experts_R = [np.add.outer(np.array(one.tokens), np.arange(2)) % 4 for one in ROWS]
    rows = [
        replace(one, routed_experts=experts_entry(np.stack([first, (first + 1) % 4], -1)))
        for one, first in zip(ROWS, experts_R)
    ]
    ours, alone = (
        loading.load_policy(own, world).trained_logprobs(rows),
        loading.load_policy(own),
    )
    found = [np.concatenate(one) for one in (ours, *map(alone.trained_logprobs, (rows, ROWS)))]
    return [float(np.abs(found[0] - other).max()) for other in found[1:]]


def gradients(cfg: TrainingConfig, world: Ranks) -> dict[str, float]:
    """Largest distance between gradients of two ranks and of one, by setting."""
    found = {}
    for name, more in (
        ("plain", {}),
        ("one pass for two ranks", ONE_MICROBATCH),
        ("recomputed", {"gradient_checkpointing": True}),
        ("some layers", {"train_layer_indices": [1]}),
        ("in main memory", {"cpu_offload": True}),
    ):
        own = cfg.model_copy(update=more)
        # One rank, one pass: another order of every sum.
        alone = loading.load_policy(own.model_copy(update=ONE_MICROBATCH))
        expected = {n: p.grad for n, p in _scored(alone, LONE).items()}
        assert all(gradient.abs().max() > 1e-3 for gradient in expected.values())
        policy = _sharded(own, world)
        got = _scored(policy, world)
        found[name] = _distance(_whole_gradients(got), expected)
    return found


def mixed(cfg: TrainingConfig, world: Ranks) -> dict[str, Any]:
    """A step on two environments with their own losses: distances of two ranks from one."""
    own = cfg.model_copy(
        update={
            "lr": 1.0,  # steps of plain SGD are gradients
            "max_grad_norm": 1e9,
            "loss": "m2po",  # its mask is over the rows of all ranks, in each epoch
            "m2_threshold": 1e-9,
            "ppo_epochs": 2,
            "algorithms": {
                "a": Algorithm(loss="gspo", loss_aggregation="sequence", weight=0.5),
                "b": Algorithm(loss="cross_entropy"),
            },
        }
    )
    # Few rows: in some passes of a rank an environment has none, and all add its metrics.
    rows = [
        replace(one, environment=name) for one, name in zip(ROWS, ["a", "b", "b", None, "a"])
    ]
    prepared = Prepared(rows, [[i - 1.5] * len(one.trained) for i, one in enumerate(rows)])
    state, found = TrainerState("run", 1, 1, None), []
    for policy in (loading.load_policy(own), _sharded(own, world)):
        optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
        metrics = learn(own, policy, optimizer, prepared, state, StopSignal())
        found.append((metrics, state_dict.full_weights(policy)))
    (alone, expected), (metrics, got) = found
    names = [name for name in alone if "/" in name] + ["loss", "grad_norm"]
    return {
        "weights": _distance(got, expected) if world.is_rank0 else 0.0,
        "metrics": max(abs(metrics[name] - alone[name]) for name in names),
        "names": sorted(names),
    }


def low_precision(cfg: TrainingConfig, world: Ranks) -> dict[str, Any]:
    """Distances of bfloat16: of gradients from float32, and of logprobs from those of one rank."""
    exact = {n: p.grad for n, p in _scored(loading.load_policy(cfg), LONE).items()}
    policy = _sharded(cfg.model_copy(update={"dtype": "bfloat16"}), world)
    got = _whole_gradients(_scored(policy, world))
    worst = max(((got[n] - g).norm() / g.norm()).item() for n, g in exact.items())
    found = {"distance": worst, "float32": all(g.dtype is torch.float32 for g in got.values())}
    low = cfg.model_copy(update={"dtype": "bfloat16"})
    rounded = [
        with_real_logits(one).trained_logprobs(ROWS)
        for one in (policy, loading.load_policy(low))
    ]
    exactly = with_real_logits(loading.load_policy(cfg)).trained_logprobs(ROWS)
    return {
        **found,
        "of one rank": mean_distance(*rounded),
        "of float32": mean_distance(rounded[0], exactly),
    }


def _whole_gradients(parameters: dict[str, Any]) -> dict[str, Tensor]:
    return {
        name: collectives.full_tensor(parameter.grad) for name, parameter in parameters.items()
    }


def _scored(policy: Policy, world: Ranks) -> dict[str, Any]:
    """The trained parameters after a backward pass over this rank's share of the rows."""
    tokens = sum(len(one.trained) for one in ROWS)
    for plan in policy.plan(ROWS, divisor=world.size)[world.rank :: world.size]:
        scores = policy.score(plan, entropy_grad=True)
        loss = (scores.logprobs + scores.entropy**2).masked_fill(~scores.mask, 0.0)
        (loss.sum() / tokens).backward()
    return {n: p for n, p in policy.module.named_parameters() if p.requires_grad}


def weights(cfg: TrainingConfig, world: Ranks) -> dict[str, Any]:
    """Gather weights from two ranks into one, and scatter them back."""
    policy = _sharded(cfg, world)
    optimizer = build_optimizer(policy, cfg)
    _scored(policy, world)
    norm, stepped = clipped_step(optimizer, policy, cfg, 0, cfg.training_steps)
    before = policy.trained_logprobs(ROWS)
    whole = state_dict.full_weights(policy)
    again = _sharded(cfg, world)
    state_dict.load_full_weights(again, whole)
    found: dict[str, Any] = {
        "names": sorted(whole),
        "same on two": again.trained_logprobs(ROWS) == before,
        "norm": norm,
        "stepped": stepped,
        "refused": _refused(lambda: state_dict.load_full_weights(policy, {"other": Tensor()})),
    }
    if world.is_rank0:
        lone = loading.load_policy(cfg)
        state_dict.load_full_weights(lone, whole)
        alone = lone.trained_logprobs(ROWS)
        found["on one"] = max(
            abs(a - b) for ours, theirs in zip(alone, before) for a, b in zip(ours, theirs)
        )
        embedding, head = whole["model.embed_tokens.weight"], whole["lm_head.weight"]
        found["tied"] = embedding is head
        found["float32"] = {str(t.dtype) for t in whole.values()} == {"torch.float32"}
        found["shard"] = list(policy.parameters()[0].to_local().shape)
    return found


def matrices(cfg: TrainingConfig, world: Ranks) -> dict[str, Any]:
    """Tensor parallelism on two ranks, two steps against those of one rank."""
    pair = ranks.in_a_grid(world, 2, 60)
    families = Path(cfg.model_name).parent
    if world.is_rank0:
        write(family_of("qwen3"), families / "qwen3")
    world.sum_(torch.ones(1))  # written
    found: dict[str, Any] = {"rows": [pair.rank, pair.size]}
    for name in ("model", "qwen3"):
        # Adam makes a step of any rounding of a gradient of zero.
        own = cfg.model_copy(
            update={"model_name": str(families / name), "optimizer": "sgd", "seq_len": 200}
        )
        both, alone = (loading.load_policy(own, w) for w in (pair, None))
        steps = [(both, build_optimizer(both, own)), (alone, build_optimizer(alone, own))]
        logprobs = [policy.trained_logprobs(ROWS) for policy, _ in steps]
        norms = [_descended(*step, own) for step in steps]
        ours, theirs = (state_dict.full_weights(policy) for policy, _ in steps)
        found[name] = {
            "norms": norms,
            "logprobs": max(abs(a - b) for x, y in zip(*logprobs) for a, b in zip(x, y)),
            "weights": _distance(ours, theirs) if world.is_rank0 else 0.0,
            "query": list(both.model.model.layers[0].self_attn.q_proj.weight.to_local().shape),
        }
    own = cfg.model_copy(update={"optimizer": "adamw"})
    policy = loading.load_policy(own, pair)
    first = policy, build_optimizer(policy, own)
    _step(*first, own, 0)
    kept = _taken(*first)
    _step(*first, own, 1)
    resumed = _resumed(own, pair, kept)
    _step(*resumed, own, 1)
    found["resumed"] = _same(_taken(*first), _taken(*resumed))
    refused = {"gpt2": {}, "mixtral": {}, "model": {"lora": True}}
    for name, more in refused.items():
        own = cfg.model_copy(update={"model_name": str(families / name), **more})
        found[f"{name} refused"] = _refused(lambda: loading.load_policy(own, pair))
    return found


def _descended(
    policy: Policy, optimizer: torch.optim.Optimizer, cfg: TrainingConfig
) -> list[float]:
    """Norms of the gradients of two steps."""
    norms = []
    for index in range(2):
        _scored(policy, policy.world)
        norms.append(clipped_step(optimizer, policy, cfg, index, cfg.training_steps)[0])
    return norms


def optimizers(cfg: TrainingConfig, world: Ranks) -> dict[str, Any]:
    """Two ranks for step 0, one for step 1, two for step 2, against one for all of them."""
    found = {}
    for name in OPTIMIZERS:
        own = cfg.model_copy(update={"optimizer": name})
        policy = _sharded(own, world)
        optimizer = build_optimizer(policy, own)
        _step(policy, optimizer, own, 0)
        kept = _taken(policy, optimizer)
        # Uninterrupted, and begun anew from what was kept: the same bits.
        _step(policy, optimizer, own, 1)
        onward = _taken(policy, optimizer)
        _step(*(resumed := _resumed(own, world, kept)), own, 1)
        found[name] = {"two go on": _same(onward, _taken(*resumed))}
        # One rank takes over from two, then two from one.
        passed: Any = ({}, {}, {})
        if world.is_rank0:
            lone = _resumed(own, LONE, kept)
            found[name]["taken over"] = _same(kept, _taken(*lone))
            _step(*lone, own, 1)
            passed = _taken(*lone)
        back = _resumed(own, world, passed)
        found[name]["handed back"] = _same(passed, _taken(*back))
        _step(*back, own, 2)
        last = _taken(*back)
        if world.is_rank0:
            one = loading.load_policy(own)
            always = build_optimizer(one, own)
            for index in range(3):
                _step(one, always, own, index)
            expected, _, _ = _taken(one, always)
            found[name]["distance"] = _distance(expected, last[0])
            found[name]["entries"] = sorted({key.split("/")[1] for key in kept[1]})
    wrong = cfg.model_copy(update={"optimizer": "adamw"})
    other = _sharded(wrong, world)
    built = build_optimizer(other, wrong)
    found["refused"] = _refused(lambda: load_optimizer_state(built, other, {}, kept[2]))
    return found


def _step(
    policy: Policy, optimizer: torch.optim.Optimizer, cfg: TrainingConfig, index: int
) -> None:
    """Take a step with gradients that depend only on its index."""
    generator = torch.Generator().manual_seed(index)
    for parameter in policy.parameters():
        whole = torch.randn(parameter.shape, generator=generator)
        parameter.grad = torch.zeros_like(parameter)
        collectives.set_full_tensor(parameter.grad, whole)
    assert clipped_step(optimizer, policy, cfg, index, cfg.training_steps)[1]


def _taken(policy: Policy, optimizer: torch.optim.Optimizer) -> Any:
    held, numbers = optimizer_state(optimizer, policy)
    whole = {name: collectives.full_tensor(value).clone() for name, value in held.items()}
    tensors = whole if policy.world.is_rank0 else {}
    return state_dict.full_weights(policy), tensors, json.loads(json.dumps(numbers))


def _resumed(cfg: TrainingConfig, world: Ranks, kept: Any) -> Any:
    policy = loading.load_policy(cfg) if world is LONE else _sharded(cfg, world)
    optimizer = build_optimizer(policy, cfg)
    state_dict.load_full_weights(policy, kept[0])
    load_optimizer_state(optimizer, policy, kept[1], kept[2])
    return policy, optimizer


def _same(ours: Any, theirs: Any) -> bool:
    """Whether weights, tensors and numbers are the same bits; on rank 0, which has them."""
    return ours[2] == theirs[2] and all(
        a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)
        for a, b in zip(ours[:2], theirs[:2])
    )


def not_finite(cfg: TrainingConfig, world: Ranks) -> dict[str, Any]:
    """A NaN in the loss of rank 1 only."""
    policy = _sharded(cfg, world)
    optimizer = build_optimizer(policy, cfg)
    before = state_dict.full_weights(policy)
    for plan in policy.plan(ROWS, divisor=2)[world.rank :: 2]:
        loss = policy.score(plan).logprobs.sum()
        (loss * float("nan") if world.rank else loss).backward()
    norm, stepped = clipped_step(optimizer, policy, cfg, 0, cfg.training_steps)
    after = state_dict.full_weights(policy)
    unchanged = all(torch.equal(before[name], after[name]) for name in before)
    return {"stepped": stepped, "nan": norm != norm, "unchanged": unchanged}


def adapter_run(cfg: TrainingConfig, world: Ranks) -> dict[str, Any]:
    """Two LoRA steps on two ranks, and on one."""
    more = {"lora": True, "lora_target_modules": ["q_proj", "down_proj"], "lr": 1.0}
    own = cfg.model_copy(update=more)
    policy = adapted(own, world)
    _descend(policy, own, world)
    merged = state_dict.full_weights(policy)
    of_adapter = state_dict.adapter_weights(policy)
    if of_adapter:  # on the first rank
        adapter.write_adapter(policy, of_adapter, Path(own.model_name).parent / "adapter")
    apart = state_dict.trained_weights(policy)
    again = adapted(own, world)
    state_dict.load_full_weights(again, apart)
    found: dict[str, Any] = {
        "trained": len(apart),
        "names": sorted(merged),
        "refused": _refused(lambda: state_dict.load_full_weights(policy, merged)),
        "same again": again.trained_logprobs(ROWS) == policy.trained_logprobs(ROWS),
    }
    if world.is_rank0:
        lone = adapted(own.model_copy(update=ONE_MICROBATCH), LONE)
        before = state_dict.full_weights(lone)
        _descend(lone, own, LONE)
        expected = state_dict.full_weights(lone)
        found["moved"] = _distance(before, merged)
        found["distance"] = _distance(expected, merged)
    return found


def _descend(policy: Policy, cfg: TrainingConfig, world: Ranks) -> None:
    """Two steps, because B starts at zero and only the second moves A."""
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    for index in range(2):
        _scored(policy, world)
        clipped_step(optimizer, policy, cfg, index, cfg.training_steps)


def _sharded(cfg: TrainingConfig, world: Ranks) -> Policy:
    return loading.load_policy(cfg, world)


def _distance(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


def _refused(action: Callable[[], None]) -> str:
    try:
        action()
    except ConfigError as error:
        return str(error)
    return ""


PARTS = (
    values,
    loaded,
    held_low,
    replayed,
    gradients,
    pictured,
    mixed,
    low_precision,
    matrices,
    weights,
    optimizers,
    not_finite,
    adapter_run,
    noted,
)

if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    end_process(0)  # gloo may abort a process that finalizes Python
