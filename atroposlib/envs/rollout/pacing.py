"""How much to generate now. Pure: no clock, no socket, no task.

    groups queued + on their way + being generated  <=  max_batches_offpolicy batches

The rollout API counts queued and leased groups, so with a bound of one batch environment
and trainer take turns; with two, the next batch is generated while one is trained on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from atroposlib.envs.settings.config import EvalHandlingEnum


@dataclass(frozen=True)
class PacingSettings:
    """The settings that pace an environment; ``batch_size`` counts sequences."""

    group_size: int
    batch_size: int  # -1: no trainer has registered
    max_workers: int
    max_batches_offpolicy: int = 3  # <= 0: no bound
    min_batch_allocation: float | None = None
    eval_handling: EvalHandlingEnum = EvalHandlingEnum.STOP_TRAIN
    eval_limit_ratio: float = 0.5


@dataclass(frozen=True)
class Queue:
    """The queue as this environment sees it, in its own groups.

    ``queue_size`` includes groups whose send was accepted after the status was asked for:
    without them the same room would be filled twice.
    """

    queue_size: int
    self_queue_size: int = 0
    unallocated_fraction: float = 1.0
    max_group_size: int = 1


def derived_batch_size(limits: PacingSettings, unallocated_fraction: float) -> float:
    """Sequences of each batch that this environment may fill."""
    own = limits.min_batch_allocation or 0.0
    return limits.batch_size * min(1.0, unallocated_fraction + own)


def worker_cap(limits: PacingSettings, evaluating: bool) -> int:
    """Most rollouts at once, given whether an evaluation runs."""
    if not evaluating or limits.eval_handling is EvalHandlingEnum.NONE:
        return limits.max_workers
    if limits.eval_handling is EvalHandlingEnum.STOP_TRAIN:
        return 0
    return int(limits.max_workers * limits.eval_limit_ratio)


def ceil(value: float) -> int:
    """The next whole number; 3.0000000000000004, which is 10 * (0.1 + 0.2), is 3."""
    return math.ceil(value - 1e-9)


def groups_short_of_minimum(limits: PacingSettings, queue: Queue) -> int:
    """Groups this environment still owes to its minimum share; batches pack in units of M."""
    if not limits.min_batch_allocation or limits.batch_size < 0:
        return 0
    unit = max(queue.max_group_size, limits.group_size)
    ahead = max(1, limits.max_batches_offpolicy)
    owed = ceil(limits.min_batch_allocation * limits.batch_size * ahead / unit) * unit
    have = queue.self_queue_size * limits.group_size
    return max(0, ceil((owed - have) / limits.group_size))


def rollouts_wanted(limits: PacingSettings, queue: Queue, *, evaluating: bool = False) -> int:
    """How many rollouts should be under way now; 0 means pause.

    Rounds the bound up: rounding down would leave a batch that a group size does not
    divide one group short for ever.
    """
    cap = worker_cap(limits, evaluating)
    if limits.batch_size < 0:
        return 0
    if limits.max_batches_offpolicy <= 0:
        return cap
    share = derived_batch_size(limits, queue.unallocated_fraction)
    room = ceil(limits.max_batches_offpolicy * share / limits.group_size)
    room -= queue.queue_size
    return max(0, min(cap, max(room, groups_short_of_minimum(limits, queue))))


def should_stop(
    current_step: int,
    queue_size: int,
    group_size: int,
    batch_size: int,
    total_steps: int,
    batches_open: int = 1,
) -> bool:
    """Whether the batches delivered and those that the queue can fill make the whole run.

    Args:
        queue_size: groups, also those of batches that are delivered and not acked: these
            count as steps as well, so all but one of them are taken off again. (One more is
            made than needed where none is open: what is queued may yet grow too old.)
        batches_open: delivered and not acked; a trainer that fetches ahead has two.
    """
    if current_step >= total_steps:
        return True
    if batch_size <= 0:
        return False
    counted_once = current_step - max(0, batches_open - 1)
    return counted_once + queue_size * group_size // batch_size > total_steps


def is_due(old_step: int, new_step: int, interval: int) -> bool:
    """Whether a multiple of ``interval`` was passed; true for an interval of 1 and on jumps."""
    return interval > 0 and new_step // interval > old_step // interval


def weights_have_settled(
    step: int, current_step: int, policy_version: int, queue_size: int
) -> bool:
    """Whether the weights that come out of ``step`` are the ones the servers hold.

    A step counts from the delivery of its batch, so its weights follow later: when the
    version says so, when the batch left the queue (it is leased until trained on), or, for
    trainers that never tell, when a later batch was delivered.
    """
    return policy_version >= step or queue_size == 0 or current_step > step
