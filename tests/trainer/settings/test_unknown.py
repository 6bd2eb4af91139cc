"""Options that AReaL lacks: keys of a workflow are named once, slips with the nearest name."""

from __future__ import annotations

import json

import pytest

from atroposlib.errors import ConfigError
from example_trainer.settings.args import settings_of_files
from example_trainer.settings.files import parse_override
from example_trainer.settings.unknown import sentence_of_unknown, unknown_options

WORKFLOW = ["max_turns=4", "n_trajs=2", "econfig.max_turns=8", "econfig.judge=x"]
WORKFLOW += ["tir.tools=a", "export_style=concat", "reward_fn_path=a.b", "judge_engine.path=m"]


def unknown_of(*words):
    return unknown_options(map(parse_override, words))


def test_keys_of_a_workflow_are_no_slips_of_known_names():
    assert [*unknown_of(*WORKFLOW)] == [word.partition("=")[0] for word in WORKFLOW]


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("actor.lrr=1", "actor.lr"),
        ("total_train_step=3", "total_train_steps"),
        ("experiment_nam=a", "experiment_name"),
        ("actor.reward_nrm.mean_level=group", "actor.reward_norm.mean_level"),
        ("gcofig=3", "no setting"),
    ],
)
def test_a_slip_is_an_error_with_the_nearest_name(word, near):
    with pytest.raises(ConfigError, match=near):
        unknown_of("max_turns=4", word)


def test_null_takes_out_a_key_and_all_below_it():
    assert [*unknown_of(*WORKFLOW[:4], "econfig=null", "n_trajs=null")] == ["max_turns"]
    assert [*unknown_of("econfig=null", "econfig.judge=x")] == ["econfig.judge"]


def test_all_keys_are_named_in_one_sentence():
    keys = unknown_of(*WORKFLOW)
    assert sentence_of_unknown(keys, None) == (
        "max_turns, n_trajs, econfig.* (2), tir.* (1), export_style, reward_fn_path,"
        " judge_engine.* (1): AReaL has no such option; if the workflow reads it, give"
        " env.KEY=VALUE to the environment of --env, or take it out (KEY=null)"
    )
    named = sentence_of_unknown({"econfig.max_turns": 8}, "mine.py", ["max_turns"])
    assert "mine.py no setting of the name" in named
    assert "such as env.max_turns=8 for econfig.max_turns" in named


def test_the_trainer_alone_names_them_too_and_leaves_out_the_nulls(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps({"actor": {"path": "m"}, "gconfig": {}, "max_turns": 4}))
    with pytest.raises(ConfigError, match="^max_turns: AReaL has no such option"):
        settings_of_files([path], ())
    settings = settings_of_files([path], [parse_override("max_turns=null")])
    assert settings.values["model_name"] == "m"
