"""Rows of the rollout API as Tinker's ``Datum``, compared with the data of tinker_cookbook."""

from __future__ import annotations

import pytest

from example_trainer.advantage import compute
from example_trainer.data.rows import to_rows
from example_trainer.exchange.rows import tinker_datum
from tests.adapters.trainers.posted import MAX_TOKENS, all_groups, claimed
from tests.trainer.loss_batches import settings

PACKAGE = "tinker_cookbook"
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    groups = claimed(tmp_path_factory.mktemp("tinker"), all_groups())
    return to_rows(groups, MAX_TOKENS).rows


def advantages_of(rows):
    """Centred within each group, as the cookbook does it."""
    cfg = settings(advantage="dr_grpo")
    return compute([row.reward for row in rows], [row.group for row in rows], cfg)


def datum_of(row, advantage):
    from tinker import Datum, ModelInput

    record = tinker_datum(row, advantage)
    return Datum(ModelInput.from_ints(record["model_input"]), record["loss_fn_inputs"])


def trajectory_of(row):
    """The row as the cookbook's rollout would have it: what was seen and done in each turn."""
    from tinker import ModelInput
    from tinker_cookbook.completers import TokensWithLogprobs
    from tinker_cookbook.rl.types import Trajectory, Transition

    trained = [False, *(label == token for label, token in zip(row.labels, row.tokens[1:]))]
    logprobs = [0.0, *row.behaviour_logprobs]
    turns, at = [], 0
    while at < len(trained):
        start = trained.index(True, at)
        at = start
        while at < len(trained) and trained[at]:
            at += 1
        action = TokensWithLogprobs(row.tokens[start:at], logprobs[start:at])
        seen = ModelInput.from_ints(row.tokens[:start])
        turns.append(Transition(seen, action, 0.0, at == len(trained)))
    return Trajectory(turns, ModelInput.empty())


def groups_of(rows):
    """The cookbook's groups, in the order of the rows."""
    from tinker_cookbook.rl.types import TrajectoryGroup

    by_group = {}
    for row in rows:
        by_group.setdefault(row.group, []).append(row)
    return [
        TrajectoryGroup(
            [trajectory_of(row) for row in members],
            [row.reward for row in members],
            [{} for _ in members],
        )
        for members in by_group.values()
    ]


def values(datum, name):
    return datum.loss_fn_inputs[name].to_numpy().tolist()


def test_data_of_the_cookbook_are_those_of_the_rows(rows):
    from tinker_cookbook.rl.data_processing import assemble_training_data, compute_advantages

    groups = groups_of(rows)
    theirs, places = assemble_training_data(groups, compute_advantages(groups))
    assert len(theirs) == len(places) == len(rows) == 18
    for row, advantage, datum in zip(rows, advantages_of(rows), theirs):
        ours = datum_of(row, advantage)
        assert ours.model_input.to_ints() == datum.model_input.to_ints() == row.tokens[:-1]
        assert values(ours, "target_tokens") == values(datum, "target_tokens")
        if row.zero_advantage:  # which the cookbook has no word for
            assert not any(values(ours, "advantages"))
            continue
        for name in ("advantages", "logprobs"):
            assert values(ours, name) == pytest.approx(values(datum, name), abs=1e-6)
        masked = [value for value, kept in zip(row.labels, values(datum, "mask")) if not kept]
        assert set(masked) <= {-100} and row.labels.count(-100) == len(masked)


def test_a_group_of_equal_scores_has_no_gradient_in_both(rows):
    from tinker_cookbook.rl.data_processing import remove_constant_reward_groups

    kept = remove_constant_reward_groups(groups_of(rows))
    assert [len(group.trajectories_G) for group in kept] == [2, 4, 4]
    equal = [value for row, value in zip(rows, advantages_of(rows)) if "equal" in row.group]
    assert equal == [0.0] * 8


def test_the_request_of_tinker_holds_the_data(rows):
    """What the SDK would send; its models are checked field by field and forbid further fields."""
    from tinker.types._pydantic_types.datum import Datum as Sent

    for row, advantage in zip(rows, advantages_of(rows)):
        record = tinker_datum(row, advantage)
        chunks = [{"type": "encoded_text", "tokens": record["model_input"]}]
        sent = Sent.model_validate({**record, "model_input": {"chunks": chunks}})
        again = Sent.model_validate_json(sent.model_dump_json())
        assert again.loss_fn_inputs["target_tokens"].data == row.tokens[1:]
        assert {again.loss_fn_inputs[name].dtype for name in ("advantages", "logprobs")} == {
            "float32"
        }
        with pytest.raises(ValueError, match="extra"):
            Sent.model_validate({**sent.model_dump(), "score": 1.0})
