"""Rows without an optional field that a loss reads: refused with the environment's name, or counted."""

from __future__ import annotations

import logging

import pytest

from atroposlib.errors import AtroposError, ConfigError
from example_trainer import losses
from tests.trainer.update.test_teacher_signals import learner_of, model, taught_group

FIXTURES = (model,)
FIELDS = {
    "inference_logprobs": ("inference_logprobs",),
    "distill_token_ids": ("distill_token_ids", "distill_logprobs"),
    "ref_logprobs": ("ref_logprobs",),
}
# What reads which field: losses by name, and terms that are added to a loss.
SAMPLED = {
    name: {"inference_logprobs"} for name in losses.FORMULAS if losses.needs_sampler(name)
}
TAUGHT = {name: {"distill_token_ids"} for name in sorted(losses.OF_A_TEACHER)}
CASES = {
    **{
        name: ({"loss": name}, SAMPLED.get(name, set()) | TAUGHT.get(name, set()))
        for name in losses.FORMULAS
    },
    **{
        f"added {name}": (
            {"loss": "cross_entropy", "distill_coef": 0.5, "distill_loss": name},
            {"distill_token_ids"},
        )
        for name in sorted(losses.OF_A_TEACHER - losses.OF_SAMPLED)
    },
    "added reverse_kl": (
        {"loss": "reinforce", "distill_coef": 0.5, "distill_loss": "reverse_kl"},
        {"inference_logprobs", "distill_token_ids"},
    ),
    "kl to a reference": ({"loss": "reinforce", "kl_coef": 0.1}, {"inference_logprobs"}),
}  # fmt: skip


def group_of(policy, name="a", lacks=()):
    """A group with every optional field but those that it lacks."""
    group = taught_group(policy, 2, name, shift=-0.5)
    group.ref_logprobs = [list(row) for row in group.inference_logprobs]
    for field in lacks:
        setattr(group, field, None)
    return group


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("case", CASES)
def test_a_loss_refuses_rows_without_a_field_or_does_not_read_it(model, case, field):
    """Nothing passes in silence: without the field the step is an error, or the very same step.

    A reference model stands in for ``ref_logprobs``: another KL, and no error.
    """
    settings, read = CASES[case]
    whole, lacking = learner_of(model, **settings), learner_of(model, **settings)
    step = whole.step([group_of(whole.policy)])
    bare = group_of(lacking.policy, lacks=FIELDS[field])
    if field in read:
        with pytest.raises(AtroposError, match=f"(?s)(?=.*environment a)(?=.*{field})"):
            lacking.step([bare])
        return
    told = lacking.step([bare])
    if not (settings.get("kl_coef") and field == "ref_logprobs"):
        assert (told["loss"], told["grad_norm"]) == (step["loss"], step["grad_norm"])


def test_every_loss_is_in_the_table():
    assert {settings["loss"] for settings, _ in CASES.values()} == {*losses.FORMULAS}


@pytest.mark.parametrize("loss", sorted(losses.OF_A_TEACHER))
@pytest.mark.parametrize("own", [True, False])
def test_the_environment_of_a_mixture_without_a_teacher_is_named(model, loss, own):
    """With an entry in algorithms, and without, as a taught environment of the same batch."""
    algorithms = {"algorithms": {name: {"loss": loss} for name in ("a", "b")}} if own else {}
    learner = learner_of(model, loss=loss, **algorithms)
    groups = [
        group_of(learner.policy),
        group_of(learner.policy, "b", FIELDS["distill_token_ids"]),
    ]
    with pytest.raises(
        ConfigError, match=rf"environment b: loss {loss} .*algorithms\.b\.loss"
    ):
        learner.step(groups)


@pytest.mark.parametrize("loss", sorted(losses.OF_A_TEACHER))
def test_rows_that_lack_a_teacher_among_others_are_counted_and_named_once(model, loss, caplog):
    learner = learner_of(model, loss=loss)
    some = f"some-{loss}"  # a warning comes once in a process
    bare = FIELDS["distill_token_ids"]
    with caplog.at_level(logging.WARNING):
        told = learner.step(
            [group_of(learner.policy, some), group_of(learner.policy, some, bare)]
        )
        again = learner.step([group_of(learner.policy, some, bare)])  # the teacher is away
    assert told["rows_without_teacher"] == 3 and told["distill_share"] == 0.5
    assert again["rows_without_teacher"] == 3 and again["distill_share"] == 0
    assert again["grad_norm"] == 0
    (warning,) = [line for line in caplog.messages if f"environment {some}" in line]
    assert "rows_without_teacher" in warning and loss in warning


@pytest.mark.parametrize("loss", sorted(losses.OF_A_TEACHER))
def test_beside_a_reward_an_environment_may_have_no_teacher_if_some_other_has(
    model, loss, caplog
):
    added = {"loss": "reinforce", "distill_coef": 0.5, "distill_loss": loss}
    learner = learner_of(model, **added)
    groups = [
        group_of(learner.policy),
        group_of(learner.policy, f"b-{loss}", FIELDS["distill_token_ids"]),
    ]
    told = learner.step(groups)
    assert told["rows_without_teacher"] == 3
    assert [line for line in caplog.messages if f"environment b-{loss}" in line]
    with pytest.raises(ConfigError, match=r"set distill_coef to 0 \(algorithms\.b-"):
        learner_of(model, **added).step(groups[1:])


def test_rows_with_other_tokens_than_the_sampled_lack_what_reverse_kl_reads(model):
    learner = learner_of(model, loss="reverse_kl")
    group = group_of(learner.policy)
    own = [set(tokens) for tokens in group.tokens]
    group.distill_token_ids = [
        [[(i + 1) % 40 for i in ids if i not in seen] for ids in row]
        for row, seen in zip(group.distill_token_ids, own)
    ]
    group.distill_logprobs = [
        [[-1.0] * len(ids) for ids in row] for row in group.distill_token_ids
    ]
    with pytest.raises(ConfigError, match="logprobs of the sampled tokens"):
        learner.step([group])
