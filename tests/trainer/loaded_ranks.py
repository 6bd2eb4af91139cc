"""Models that two ranks loaded in shards, against others; two parts of two_ranks.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from example_trainer.distributed import collectives
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import adapter, frozen, loading, state_dict
from example_trainer.model.critic import load_value_model
from example_trainer.model.policy import Policy
from example_trainer.settings.config import TrainingConfig
from tests.trainer.architectures import write
from tests.trainer.families import family_of
from tests.trainer.rows import BRANCHING

LONE = Ranks.single()
# Of bamba there is no small copy.
LOADED_FAMILIES = ("mixtral", "gpt2", "phi 3, longrope", "gemma 2", "bamba")


def loaded(cfg: TrainingConfig, world: Ranks) -> dict[str, Any]:
    """Models of which no rank ever had the whole: differences from the whole ones.

    And the share of the weights that this rank holds, 1 being all of them.
    """
    directory = Path(cfg.model_name).parent
    if world.is_rank0:
        for name in LOADED_FAMILIES:
            write(family_of(name), directory / name)
        whole = loading.load_policy(cfg)
        whole.model.save_pretrained(directory / "in parts", max_shard_size="300KB")
        whole.tokenizer.save_pretrained(directory / "in parts")
    world.sum_(torch.ones(1))  # written
    cases: dict[str, dict[str, Any]] = {
        "one file": {},
        "low precision": {"dtype": "bfloat16"},
        "from scratch": {"init_from_scratch": True, "seed": 3},
        "lora": {"lora": True, "seed": 3},
        "in main memory": {"cpu_offload": True},
    }
    for name in ("in parts", *LOADED_FAMILIES):
        cases[name] = {"model_name": str(directory / name), "seq_len": 200}
    found = {}
    for name, more in cases.items():
        own = cfg.model_copy(update=more)
        alone = adapted(own, LONE) if own.lora else loading.load_policy(own)
        for kind in ("policy", "critic"):
            if kind == "policy":
                policy: Any = loading.load_policy(own, world)
            elif name not in ("one file", "in parts"):
                continue
            else:
                policy, alone = (load_value_model(own, world=w) for w in (world, None))
            ours, theirs = state_dict.full_weights(policy), state_dict.full_weights(alone)
            held = sum(p.to_local().numel() for p in policy.module.parameters())
            everything = sum(p.numel() for p in alone.module.parameters())
            found[f"{name}, {kind}"] = {
                "same": not world.is_rank0
                or ours.keys() == theirs.keys()
                and all(torch.equal(ours[key], theirs[key]) for key in theirs),
                "measured alike": _measured(policy) == _measured(alone),
                "held": held / everything,
            }
    return found


def _measured(model: Any) -> tuple[Any, ...]:
    transform = getattr(model.module, "transform", None)
    return model.padded, model.share_prefixes, model.rope_switch, transform


def held_low(cfg: TrainingConfig, world: Ranks) -> dict[str, Any]:
    """Frozen weights in bfloat16 against the same ones in float32."""
    low = cfg.model_copy(update={"dtype": "bfloat16"})
    mixtral = str(Path(cfg.model_name).parent / "mixtral")
    lora = low.model_copy(update={"lora": True, "lora_target_modules": ["q_proj"]})
    found: dict[str, Any] = {}
    for name, load in (
        ("reference", lambda: loading.load_reference(low, low.model_name, world)),
        ("mixtral", lambda: loading.load_reference(low, mixtral, world)),
        ("lora", lambda: _with_adapter(lora, world)),
    ):
        pair = [load(), _in_float32(load)]
        logprobs = [policy.trained_logprobs(BRANCHING) for policy in pair]
        parameters = [list(policy.module.parameters()) for policy in pair]
        found[name] = {
            "dtypes": [
                sorted({str(p.dtype) for p in every if not p.requires_grad})
                for every in parameters
            ],
            "same logprobs": logprobs[0] == logprobs[1],
        }
        if name == "lora":
            ours, theirs = (_local_gradients(policy) for policy in pair)
            found[name]["trained"] = sorted({str(p.dtype) for p in pair[0].parameters()})
            found[name]["same gradients"] = all(map(torch.equal, ours, theirs))
    policy = loading.load_policy(low, world)
    reference = loading.load_reference(low, low.model_name, world)
    pair = [one.trained_logprobs(BRANCHING) for one in (policy, reference)]
    found["kl to itself"] = mean_distance(*pair)
    return found


def _in_float32(load: Callable[[], Policy]) -> Policy:
    """What is loaded when frozen weights stay in the precision of trained ones."""
    hold_in = frozen.hold_in
    frozen.hold_in = lambda *args, **options: None
    try:
        return load()
    finally:
        frozen.hold_in = hold_in


def _with_adapter(cfg: TrainingConfig, world: Ranks) -> Policy:
    """A policy whose adapter changes its scores."""
    policy = loading.load_policy(cfg, world)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05)
    return policy


def _local_gradients(policy: Policy) -> list[torch.Tensor]:
    for plan in policy.plan_share(BRANCHING):
        policy.score(plan).logprobs.sum().backward()
    return [collectives.local_shard(p.grad) for p in policy.parameters() if p.grad is not None]


def adapted(cfg: TrainingConfig, world: Ranks) -> Policy:
    if world is not LONE:
        return loading.load_policy(cfg, world)
    policy = loading.load_policy(cfg)
    adapter.wrap(policy.model, cfg)
    return policy


REAL_SCALE = 8.0  # of the weights of a random model, for logits as large as a trained one has


def with_real_logits(policy: Policy) -> Policy:
    """Weights so large that bfloat16 rounds as much as that of a trained model."""
    with torch.no_grad():
        for parameter in policy.module.parameters():
            if parameter.dim() > 1:
                parameter.mul_(REAL_SCALE)
    return policy


def mean_distance(a_R_T: Sequence[Sequence[float]], b_R_T: Sequence[Sequence[float]]) -> float:
    pairs = [pair for a, b in zip(a_R_T, b_R_T) for pair in zip(a, b)]
    return sum(abs(a - b) for a, b in pairs) / len(pairs)
