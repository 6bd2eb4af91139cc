"""Rows and groups built from sampled sequences: every sample once, groups of equal size."""

from __future__ import annotations

import pytest

from atroposlib.envs.function_env.recorder import Recorder, Rollout, groups_of
from atroposlib.envs.function_env.rewards import Reward
from atroposlib.envs.rollout.filters import to_wire, with_sampled
from atroposlib.generation.sessions.sequences import SequenceNode
from atroposlib.wire.columns import from_group
from example_trainer.data.rows import to_rows


def node(*turns):
    """A sequence of (prompt, sampled) pieces, each a list of ids."""
    tokens, labels = [], []
    for prompt, sampled in turns:
        tokens += prompt + sampled
        labels += [-100] * len(prompt) + sampled
    return SequenceNode(
        full_text="",
        tokens=tokens,
        masked_tokens=labels,
        logprobs=[1.0 if label == -100 else -label / 100 for label in labels],
        versions=[-1 if label == -100 else 4 for label in labels],
        metadata={"finish_reason": "stop"},
    )


def recorded(*calls, temperature=1.0):
    """The rows of calls that ended in this order, each (sequence, sampled tokens)."""
    recorder = Recorder()
    for sequence, sampled in calls:
        spans = [{"start": len(sequence.tokens) - 1, "end": 0, "temperature": temperature}]
        sequence.spans = sequence.spans or spans
        recorder.add([{"role": "user", "content": "hi"}], sequence, sampled)
    return recorder.rows()


def trained(row):
    return [label for label in row["masks"] if label != -100]


def test_a_conversation_that_grows_is_one_row_of_all_its_samples():
    first, second = node(([1], [2, 3])), node(([1], [2, 3]), ([4], [5]))
    (row,) = recorded((first, 2), (second, 1))
    assert row["tokens"] == [1, 2, 3, 4, 5]
    assert row["masks"] == [-100, 2, 3, -100, 5]
    assert row["inference_logprobs"] == [1.0, -0.02, -0.03, 1.0, -0.05]
    assert row["versions"] == [-1, 4, 4, -1, 4]
    assert row["messages"] == [{"role": "user", "content": "hi"}]
    assert row["finish_reasons"] == "stop"


def test_every_turn_of_a_row_keeps_its_sampling():
    first, second = node(([1], [2, 3])), node(([1], [2, 3]), ([4], [5]))
    first.spans = [{"start": 1, "end": 3, "temperature": 0.5, "top_p": 0.9}]
    second.spans = [*first.spans, {"start": 4, "end": 5, "temperature": 1.0}]
    (row,) = recorded((first, 2), (second, 1))
    unsealed = [{k: v for k, v in call.items() if k != "seal"} for call in row["sampling"]]
    assert unsealed == [{**call, "finish_reason": "stop"} for call in second.spans]


def test_a_turn_before_a_fork_is_trained_in_one_branch_only():
    first = node(([1], [2]))
    left, right = node(([1], [2]), ([3], [4])), node(([1], [2]), ([5], [6]))
    rows = recorded((first, 1), (left, 1), (right, 1))
    assert [trained(row) for row in rows] == [[2, 4], [6]]
    assert rows[1]["masks"] == [-100, -100, -100, 6]
    assert rows[1]["inference_logprobs"] == [1.0, 1.0, 1.0, -0.06]
    assert rows[1]["versions"] == [-1, -1, -1, 4]


def test_sampled_tokens_are_found_by_the_mask_without_token_counts_of_the_server():
    first, second = node(([1], [2, 3])), node(([1], [2, 3]), ([4], [5]))
    (row,) = recorded((first, None), (second, None))
    assert row["masks"] == [-100, 2, 3, -100, 5]


def test_equal_siblings_are_two_samples_and_both_are_trained():
    rows = recorded((node(([1], [2])), 1), (node(([1], [2])), 1))
    assert [trained(row) for row in rows] == [[2], [2]]


def test_a_rewritten_history_gives_a_row_for_each_history():
    rows = recorded((node(([1], [2, 3])), 2), (node(([1, 3, 4], [5])), 1))
    assert [trained(row) for row in rows] == [[2, 3], [5]]


def rollout(score, *sequences, **metrics):
    return Rollout(recorded(*((s, 1) for s in sequences)), Reward(score, metrics))


def forked_groups():
    return groups_of(
        [
            rollout(1.0, node(([1, 9], [2])), node(([1, 8], [3])), exact=1.0),
            rollout(0.0, node(([1, 9], [4])), exact=0.0),
        ],
        "3+4@0",
    )


def test_a_forked_rollout_gives_more_groups_of_the_same_size_and_scores():
    first, second = forked_groups()
    assert first["scores"] == second["scores"] == [1.0, 0.0]
    assert (first["group_id"], second["group_id"]) == ("3+4@0", "3+4@0#2")
    assert first["masks"] == [[-100, -100, 2], [-100, -100, 4]]
    assert second["masks"] == [[-100, -100, 3], [-100, -100]]
    assert second["overrides"] == [{}, {"set_advantage_to_zero": True}]
    assert first["metadata"]["metrics"] == {"exact": 0.5, "reward": 0.5}
    assert first["metadata"]["named_rewards"] == second["metadata"]["named_rewards"]
    assert first["metadata"]["named_rewards"] == [{"exact": 1.0}, {"exact": 0.0}]
    assert (
        "metrics" not in second["metadata"]
    )  # or each rollout would count twice in the means
    for group in (first, second):
        from_group(to_wire(group))


def test_the_trainer_counts_each_rollout_once_and_trains_each_sample_once():
    batch = to_rows([to_wire(group) for group in forked_groups()], max_tokens=9)
    assert [row.reward for row in batch.rows] == [1.0, 0.0, 1.0, 0.0]
    assert len({row.group for row in batch.rows}) == 2
    kept = [row for row in batch.rows if row.in_loss and row.trained]
    assert [[row.labels[j] for j in row.trained] for row in kept] == [[2], [4], [3]]
    assert batch.env_metrics == {"env/exact": 0.5, "env/reward": 0.5}


@pytest.mark.parametrize("temperatures", [(1.0, 1.0), (1.0, 0.5)])
def test_temperatures_are_stored_in_the_group_or_the_row(temperatures):
    rollouts = [
        Rollout(recorded((node(([1], [2 + i])), 1), temperature=temperature), Reward(i))
        for i, temperature in enumerate(temperatures)
    ]
    (group,) = groups_of(rollouts, "id")
    group = with_sampled(group, [])
    assert ("generation_params" in group) is (len({*temperatures}) == 1)
    batch = to_rows([to_wire(group)], max_tokens=9)
    assert tuple(row.trained_temperatures[0] for row in batch.rows) == temperatures


def test_rows_with_images_and_without_are_one_group_and_a_filler_stays_whole():
    seen = node(([1], [2, 3]), ([4], [5]))
    seen.images = ["data:image/png;base64,AAAA"]
    rollouts = [
        Rollout(recorded((seen, 1)), Reward(1.0)),
        Rollout(recorded((node(([1], [2])), 1), (node(([7], [8])), 1)), Reward(0.0)),
    ]
    first, second = groups_of(rollouts, "g")
    assert first["images"] == second["images"] == [seen.images, []]
    assert second["tokens"] == [[1, 2, 3, 4, 5], [7, 8]]
    assert second["masks"][0] == [-100] * 5
    assert from_group(to_wire(second))
