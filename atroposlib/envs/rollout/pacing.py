"""Pacing: how many rollouts to run now. Pure: no clock, no socket, no task.

    groups queued + being sent + being generated  <=  max_batches_offpolicy batches

The rollout API counts queued and leased groups. With a bound of 1 batch, environment and
trainer alternate. With two, the next batch is generated during a training step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from atroposlib.envs.settings.config import BaseEnvConfig, EvalHandlingEnum
from atroposlib.wire import EnvStatus


@dataclass(frozen=True)
class Queue:
    """State of the queue, in groups of this environment's size.

    ``queue_size`` includes groups accepted after the status request: otherwise the same room
    would be filled twice.
    """

    queue_size: int
    self_queue_size: int = 0
    unallocated_fraction: float = 1.0
    max_group_size: int = 1


def derived_batch_size(config: BaseEnvConfig, unallocated_fraction: float) -> float:
    """Sequences of each batch that this environment may fill."""
    own = config.min_batch_allocation or 0.0
    return config.batch_size * min(1.0, unallocated_fraction + own)


def worker_cap(config: BaseEnvConfig, max_workers: int, *, evaluating: bool) -> int:
    """Maximum number of concurrent rollouts, with or without a running evaluation."""
    if not evaluating or config.eval_handling is EvalHandlingEnum.NONE:
        return max_workers
    if config.eval_handling is EvalHandlingEnum.STOP_TRAIN:
        return 0
    return int(max_workers * config.eval_limit_ratio)


def steered_cap(cap: int, status: EnvStatus) -> int:
    """Maximum number of concurrent rollouts that an operator allows."""
    if status.steered in ("paused", "draining"):
        return 0
    return cap if status.max_rollouts is None else min(cap, status.max_rollouts)


def ceil(value: float) -> int:
    """Round up, tolerating float error: 10 * (0.1 + 0.2) = 3.0000000000000004 gives 3."""
    return math.ceil(value - 1e-9)


def groups_short_of_minimum(config: BaseEnvConfig, queue: Queue) -> int:
    """Groups missing from the minimum share.

    Batches are packed in units of the largest group size."""
    if not config.min_batch_allocation or config.batch_size < 0:
        return 0
    unit = max(queue.max_group_size, config.group_size)
    ahead = max(1, config.max_batches_offpolicy)
    owed = ceil(config.min_batch_allocation * config.batch_size * ahead / unit) * unit
    have = queue.self_queue_size * config.group_size
    return max(0, ceil((owed - have) / config.group_size))


def rollouts_wanted(config: BaseEnvConfig, queue: Queue, cap: int) -> int:
    """Number of rollouts, at most ``cap``, that should be running now; 0 means pause.

    The bound is rounded up. Rounded down, a batch that is no multiple of the group size would
    never be filled: a group would always be missing.
    """
    if config.batch_size < 0:
        return 0
    if config.max_batches_offpolicy <= 0:
        return cap
    share = derived_batch_size(config, queue.unallocated_fraction)
    room = ceil(config.max_batches_offpolicy * share / config.group_size)
    room -= queue.queue_size
    return max(0, min(cap, max(room, groups_short_of_minimum(config, queue))))


def should_stop(config: BaseEnvConfig, status: EnvStatus) -> bool:
    """Whether the delivered batches and the batches in the queue complete the run.

    The status alone decides: if groups accepted meanwhile were added, as pacing does, a group
    that the status counts already would count twice and end the run a group too early.

    Its queue includes the groups of batches that are delivered and not acked. These batches
    count as steps too, so all of these batches except the last are subtracted. (If none is
    open, the run makes an extra batch: queued groups may become too old.)
    """
    if status.current_step >= config.total_steps:
        return True
    if config.batch_size <= 0:
        return False
    counted_once = status.current_step - max(0, (status.batches_open or 1) - 1)
    queued_batches = status.queue_size * config.group_size // config.batch_size
    return counted_once + queued_batches > config.total_steps


def is_due(old_step: int, new_step: int, interval: int) -> bool:
    """Whether ``interval`` > 0 has a multiple in (old_step, new_step]."""
    return interval > 0 and new_step // interval > old_step // interval


def groups_of_batches(status: EnvStatus, batch_size: int) -> int:
    """Groups of this environment that may be in a batch: 0 if all that is held makes none.

    The remainder of the last groups stays queued after the last batch of a trainer.
    """
    too_few = status.queue_size * status.max_group_size < batch_size
    return 0 if too_few else status.self_queue_size


def weights_have_settled(
    step: int, current_step: int, policy_version: int, queue_size: int
) -> bool:
    """Whether the servers hold the weights produced by ``step``.

    A step begins with the delivery of its batch, so its weights appear later. They are
    present if the policy version has reached the step, if the queue is empty (a batch stays
    leased until it is trained on), or, for trainers that report neither, if a later batch
    was delivered.
    """
    return policy_version >= step or queue_size == 0 or current_step > step
