"""Steering of a live run by an operator: weights, pauses and limits of environments. Pure.

    POST /steer --> run document --> weights and held groups of the next batch
                              '--> reply to the next /status-env, and to /admission

It belongs to the run: a restart of the API or of an environment keeps it, /reset_data ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import msgspec

from atroposlib.api.common.run_record import EnvEntry, EnvSteering, RunRecord
from atroposlib.errors import UnknownEnv
from atroposlib.settings.sentences import did_you_mean
from atroposlib.wire import EnvStatus, SteerRequest

UNSTEERED = EnvSteering()
# Batches that an environment of an earlier version holds ahead, at most: with so many of its
# minimum queued it owes nothing.
MOST_BATCHES_AHEAD = 16


def steer(run: RunRecord, asked: SteerRequest) -> RunRecord:
    """Apply the fields that ``asked`` sets.

    Raises:
        UnknownEnv: no environment of this run has the name.
    """
    name = registered_name(run, asked.env)
    changes = asked.model_dump(exclude={"env"}, exclude_unset=True)
    changed = msgspec.structs.replace(run.steering.get(name, UNSTEERED), **changes)
    rest = {env: steering for env, steering in run.steering.items() if env != name}
    kept = rest if changed == UNSTEERED else {**rest, name: changed}
    return run if kept == run.steering else msgspec.structs.replace(run, steering=kept)


def registered_name(run: RunRecord, word: str) -> str:
    """The name that environments registered, from that name or the numbered name of a process.

    Raises:
        UnknownEnv: no environment of this run has the name.
    """
    names = {env.desired_name for env in run.envs}
    numbered = {env.wandb_name: env.desired_name for env in run.envs}
    if word in names or word in numbered:
        return word if word in names else numbered[word]
    known = ", ".join(sorted(names)) or "none yet"
    hint = did_you_mean(word, names)
    raise UnknownEnv(f"this run has no environment {word[:100]!r}{hint} (there are: {known})")


def steering_of(run: RunRecord, env: EnvEntry) -> EnvSteering:
    return run.steering.get(env.desired_name, UNSTEERED)


def steered_entries(run: RunRecord, envs: Sequence[EnvEntry]) -> Sequence[EnvEntry]:
    """``envs`` with the weights in force; without a share while they start no rollout."""
    if not run.steering:
        return envs
    entries = []
    for env in envs:
        steering = steering_of(run, env)
        if steering.weight is not None:
            env = msgspec.structs.replace(env, weight=steering.weight)
        if steering.state != "running":  # no batch waits for its minimum
            env = msgspec.structs.replace(env, weight=0.0, min_batch_allocation=None)
        entries.append(env)
    return tuple(entries)


def weights_in_force(run: RunRecord) -> dict[int | None, float]:
    """The weights of all environments in the choice of a batch."""
    weights: dict[int | None, float] = {}
    for env in run.envs:
        weight = steering_of(run, env).weight
        weights[env.env_id] = env.weight if weight is None else weight
    return weights


def held_back(run: RunRecord) -> frozenset[int | None]:
    """Environments whose queued groups wait."""
    if not run.steering:
        return frozenset()
    return frozenset(env.env_id for env in run.envs if steering_of(run, env).state == "paused")


def pauses(run: RunRecord, envs: Iterable[EnvEntry]) -> str | None:
    """The environments among ``envs`` that start no rollout, for the reason of a missing batch."""
    states: dict[str, list[str]] = {}
    for env in envs:
        if (state := steering_of(run, env).state) != "running":
            word = "paused" if state == "paused" else "being drained"
            names = states.setdefault(word, [])
            names.append(env.wandb_name)
    parts = []
    for word, names in states.items():
        verb = "is" if len(names) == 1 else "are"
        parts.append(f"{', '.join(names)} {verb} {word} by an operator")
    return "; ".join(parts) or None


def follow(status: EnvStatus, steering: EnvSteering, owed_groups: float = 0.0) -> EnvStatus:
    """The reply to /status-env of an environment that is steered.

    Environments of earlier versions and of the original do not read ``steered``: without an
    unallocated share, and with its minimum queued, none of them starts a rollout.

    Args:
        owed_groups: its minimum in a batch, in groups.
    """
    changes: dict[str, object] = {}
    if steering.max_rollouts is not None:
        changes["max_rollouts"] = steering.max_rollouts
    if steering.state != "running":
        queued = ceil(MOST_BATCHES_AHEAD * owed_groups)
        changes["steered"] = steering.state
        changes["unallocated_fraction"] = 0.0
        changes["queue_size"] = max(status.queue_size, queued)
        changes["self_queue_size"] = max(status.self_queue_size, queued)
    return status.model_copy(update=changes) if changes else status


def described(steering: Mapping[str, EnvSteering]) -> dict[str, dict[str, object]]:
    """The steering of all environments as JSON values."""
    return {name: msgspec.to_builtins(steered) for name, steered in steering.items()}
