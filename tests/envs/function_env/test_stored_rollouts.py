"""Stored rollouts: the groups of a rollout that is read back are those of the rollout."""

from __future__ import annotations

from atroposlib.envs.function_env.recorder import Rollout, Seat, groups_of
from atroposlib.envs.function_env.rewards import Reward
from atroposlib.envs.function_env.stored_rollouts import RolloutForm
from atroposlib.envs.journal.stored_samples import oldest_sampled_version
from atroposlib.envs.rollout.groups import from_node
from atroposlib.wire.routing import experts_entry
from tests.envs.journal.test_stored_samples import NODE

FORM = RolloutForm()


def rollout(score=1.0):
    import numpy as np

    routed = NODE.model_copy(
        update={"routed_experts": experts_entry(np.zeros((2, 1, 2), "<i2"))}
    )
    row = from_node(routed, 0.0, messages=[{"role": "user", "content": "2+2"}])
    second = from_node(NODE.model_copy(update={"versions": [-1, 2, 2]}), 0.0)
    return Rollout(
        [row],
        Reward(score, {"exact": 1, "steps": 3.5}),
        {"timings": {"generate": 0.5}, "turns": 2, "tool_calls": 0},
        is_cut_off=True,
        seats={"critic": Seat([second], 0.25), "silent": Seat([], None)},
    )


def test_the_groups_of_a_stored_rollout_are_those_of_the_rollout():
    stored = FORM.unpack_sample(FORM.pack_sample(rollout(), []))
    assert stored == rollout()
    assert groups_of([stored], "item") == groups_of([rollout()], "item")


def test_a_rollout_without_a_score_is_not_finished():
    assert FORM.pack_sample(rollout(None), []) is None
    assert FORM.pack_sample(rollout(float("inf")), []) is None


def test_the_oldest_version_is_that_of_any_endpoint():
    assert oldest_sampled_version(FORM.versions(rollout())) == 2
