from __future__ import annotations

import pytest

from atroposlib.run_status.sources import column
from example_trainer.quickstart.recipes import recipe_for
from example_trainer.quickstart.verdict import LAST_STEPS, judge, mean, time_spent

LEARNED = [0.02, 0.1, 0.4, 0.6, 0.8, 0.9, 0.9, 0.95, 0.85, 0.9]  # last five: 0.90


def rows(exacts, **more):
    return [
        {
            "step": step,
            "version": step,
            "env/exact": exact,
            "reward_mean": exact,
            "logprob_mismatch_mean": 1e-5,
            **more,
        }
        for step, exact in enumerate(exacts, 1)
    ]


def verdict(the_rows, *, model="smollm2", server_version=10, steps=10, **more):
    return judge(
        recipe_for(model, steps),
        the_rows,
        server_version=server_version,
        seconds=213.6,
        cores=2,
        **more,
    )


def test_a_run_that_learned_is_summarised_in_one_line():
    assert verdict(rows(LEARNED)).line() == (
        "quickstart: exact 0.02 -> 0.90 in 214 s, 10 steps, weights version 10, 2 cores"
    )
    assert verdict(rows(LEARNED)).learned


def test_the_end_is_the_mean_of_the_last_five_steps():
    assert mean(rows(LEARNED)[-LAST_STEPS:], "env/exact") == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("the_rows", "fields", "words"),
    [
        (rows([0.02] * 10), {}, "exact ended at 0.02, not above 0.80"),
        (rows([0.5, *LEARNED[1:]]), {}, "exact started at 0.50, not below 0.10"),
        (
            rows(LEARNED),
            {"server_version": 9},
            "the server holds version 9, the trainer's last is 10",
        ),
        (rows(LEARNED), {"server_version": None}, "the server holds version None"),
        (rows(LEARNED, logprob_mismatch_mean=None), {}, "were never compared"),
        (rows(LEARNED), {"steps": 40}, "10 of 40 steps were done"),
        ([], {}, "the trainer finished no step"),
        ([{"step": 1, "version": 1}], {"steps": 1}, "metrics.jsonl has no env/exact"),
    ],
)
def test_the_verdict_names_the_missed_criterion(the_rows, fields, words):
    found = verdict(the_rows, **fields)
    assert not found.learned
    assert any(words in shortcoming for shortcoming in found.shortcomings)


def test_the_tiny_model_is_judged_by_its_reward():
    learned = rows(LEARNED, reward_mean=0.05)[:1] + rows(LEARNED, reward_mean=0.9)[1:]
    assert verdict(learned, model="tiny").learned


def test_an_own_environment_is_judged_by_a_reward_that_rises(tmp_path):
    recipe = recipe_for("tiny", 2, tmp_path / "mine.py")
    given = {"server_version": 2, "seconds": 9, "cores": 2}
    figures = [
        {"reward_mean": r, "version": i, "logprob_mismatch_mean": 0}
        for i, r in enumerate((0.5, 0.9), 1)
    ]
    found = judge(recipe, figures, **given)
    assert found.learned
    assert found.line().startswith("quickstart: reward 0.50 -> 0.70 in 9 s")
    (shortcoming,) = judge(
        recipe, [{**row, "reward_mean": 0.5} for row in figures], **given
    ).shortcomings
    assert shortcoming == "reward ended at 0.50, not above 0.50"


def test_every_second_of_a_run_belongs_to_one_phase():
    step = {"seconds_wait": 2.0, "seconds_prepare": 0.5, "seconds_train": 1.0}
    step |= {"seconds_publish": 0.25, "seconds_save": 0.25}
    found = time_spent([{**step, "time": 113.75}, {**step, "time": 118}], 100, 20, 21.5)
    loop = {"wait": 4, "prepare": 1, "train": 2, "publish": 0.5, "save": 0.5}
    assert found == {"start-up": 9.75, **loop, "the rest": 2.25, "last evaluation": 1.5}
    assert sum(found.values()) == 21.5
    assert time_spent([], 100, 20, 21.5) == {}


def test_a_run_without_figures_still_has_a_line():
    assert verdict([], server_version=None).line() == (
        "quickstart: exact ? -> ? in 214 s, 0 steps, weights version ?, 2 cores"
    )


def test_values_that_are_not_numbers_are_left_out_of_a_column():
    mixed = [{"x": 1.0}, {"x": None}, {"x": float("nan")}, {"x": True}, {"x": "2"}, {}]
    assert column(mixed, "x") == [1.0]
