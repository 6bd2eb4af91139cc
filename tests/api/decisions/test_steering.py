"""Steering of environments: what an operator sets, and what follows from it. Pure."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from atroposlib import wire
from atroposlib.api.common.run_record import EnvEntry, EnvSteering, RunRecord
from atroposlib.api.decisions import steering
from atroposlib.envs.rollout.pacing import (
    Queue,
    rollouts_wanted,
    should_stop,
    steered_cap,
)
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.errors import UnknownEnv
from atroposlib.wire import EnvStatus, SteerRequest

MATH = EnvEntry(
    env_id=0,
    desired_name="math",
    wandb_name="math_0",
    max_token_length=64,
    weight=2.0,
    group_size=4,
    min_batch_allocation=0.5,
)
CODE = EnvEntry(
    env_id=1,
    desired_name="code",
    wandb_name="code_0",
    max_token_length=64,
    weight=1.0,
    group_size=4,
)
RUN = RunRecord(envs=(MATH, CODE))


def steered(run=RUN, env="math", **changes):
    return steering.steer(run, SteerRequest(env=env, **changes))


def test_fields_that_are_absent_stay_and_a_null_gives_the_own_value_back():
    run = steered(steered(weight=3.0), state="paused")
    assert run.steering == {"math": EnvSteering(state="paused", weight=3.0)}
    assert steered(run, weight=None).steering == {"math": EnvSteering(state="paused")}
    assert steered(steered(run, weight=None), state="running").steering == {}


def test_a_process_is_known_by_its_numbered_name_and_an_unknown_name_gets_the_nearest():
    assert steered(env="math_0", state="paused").steering.keys() == {"math"}
    with pytest.raises(UnknownEnv, match=r"'mth'.*math"):
        steered(env="mth", state="paused")


@pytest.mark.parametrize(
    "wrong", [{"weight": 0}, {"weight": float("inf")}, {"max_rollouts": 0}, {"state": "off"}]
)
def test_values_that_cannot_be_are_refused(wrong):
    with pytest.raises(ValidationError):
        SteerRequest(env="math", **wrong)


def test_an_environment_that_starts_no_rollout_has_no_share_and_no_minimum():
    run = steered(state="draining")
    math, code = steering.steered_entries(run, RUN.envs)
    assert (math.weight, math.min_batch_allocation, code) == (0.0, None, CODE)
    # its queued groups are still chosen by its weight
    assert steering.weights_in_force(run) == {0: 2.0, 1: 1.0}
    assert steering.held_back(run) == frozenset()
    assert steering.held_back(steered(state="paused")) == {0}


def test_an_unsteered_run_gives_the_same_objects():
    assert steering.steered_entries(RUN, RUN.envs) is RUN.envs
    assert steering.pauses(RUN, RUN.envs) is None and steering.held_back(RUN) == frozenset()


def test_the_reason_names_the_environments_as_the_views_do():
    run = steered(steered(state="paused"), env="code", state="draining")
    expected = "math_0 is paused by an operator; code_0 is being drained by an operator"
    assert steering.pauses(run, (MATH, CODE)) == expected


def status(**more):
    return EnvStatus(
        current_step=3,
        queue_size=0,
        unallocated_fraction=1.0,
        self_queue_size=0,
        max_group_size=4,
        env_weight=1.0,
        **more,
    )


@pytest.mark.parametrize("minimum", [None, 0.5, 1.0])
@pytest.mark.parametrize("ahead", [1, 3, 8])
def test_an_environment_that_knows_no_steering_starts_no_rollout_and_does_not_end(
    minimum, ahead
):
    config = BaseEnvConfig(
        batch_size=32,
        group_size=4,
        total_steps=500,
        max_batches_offpolicy=ahead,
        min_batch_allocation=minimum,
    )
    answer = steering.follow(status(), EnvSteering(state="paused"), 8 * (minimum or 0))
    queue = Queue(
        queue_size=answer.queue_size,
        self_queue_size=answer.self_queue_size,
        unallocated_fraction=answer.unallocated_fraction,
        max_group_size=answer.max_group_size,
    )
    assert rollouts_wanted(config, queue, 100) == 0 and not should_stop(config, answer)
    assert wire.EnvStatus.model_validate(answer.model_dump()) == answer


def test_a_present_environment_reads_the_limits():
    assert steered_cap(8, status(steered="paused")) == 0
    assert steered_cap(8, status(steered="draining")) == 0
    assert steered_cap(8, status(max_rollouts=3)) == 3
    assert steered_cap(8, status(max_rollouts=30)) == steered_cap(8, status()) == 8
