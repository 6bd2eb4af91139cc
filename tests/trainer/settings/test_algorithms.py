"""Settings per environment: read from files, over the run's, refused where they cannot be used."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from atroposlib.settings.fields import validate_as
from example_trainer.settings.algorithms import (
    BatchPart,
    algorithms_of,
    mixing_of,
    parts_of,
    shares_of,
)
from example_trainer.settings.args import parse_args, settings_of_files
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.loss import ObjectiveSettings
from example_trainer.settings.plugins import named_plugins


def read(tmp_path, text):
    (tmp_path / "run.yaml").write_text(f"model_name: m\n{text}")
    return validate_as(TrainingConfig, settings_of_files([tmp_path / "run.yaml"], []))


def test_an_environment_has_its_settings_over_those_of_the_run(tmp_path):
    cfg = read(
        tmp_path,
        "loss: grpo\nclip_eps: 0.1\nkl_coef: 0.5\nadvantage: rloo\n"
        "algorithms:\n  gsm8k: {loss: gspo, weight: 2}\n  a.b: {kl_coef: 0, temperature: 0.7}\n",
    )
    own = algorithms_of(cfg)
    gsm8k, dotted = own["gsm8k"], own["a.b"]
    assert (gsm8k.loss, gsm8k.kl_coef, gsm8k.advantage, gsm8k.weight) == (
        "gspo",
        0.5,
        "rloo",
        2,
    )
    # The bounds of grpo are not those of gspo, which has its own.
    assert "clip_eps" not in gsm8k.model_fields_set and dotted.clip_eps == 0.1
    assert (dotted.loss, dotted.kl_coef, dotted.temperature) == ("grpo", 0.0, 0.7)
    assert cfg.model_dump()["algorithms"]["gsm8k"] == {"loss": "gspo", "weight": 2.0}
    assert TrainingConfig(**cfg.model_dump(exclude_unset=True)) == cfg


def test_overrides_and_flags_name_settings_of_environments():
    words = [
        "--model-name",
        "m",
        "algorithms.gsm8k.loss=cispo",
        "mixture.algorithms.b.weight=3",
    ]
    cfg = parse_args(words)
    assert cfg.algorithms["gsm8k"].loss == "cispo" and cfg.algorithms["b"].weight == 3
    cfg = parse_args(["--model-name", "m", "--algorithms", "{a: {loss: sapo}}"])
    assert cfg.algorithms["a"].loss == "sapo"


WRONG = {
    "gsm8k: {los: grpo}": "run.yaml:3: algorithms.gsm8k.los is no setting; did you mean"
    " algorithms.gsm8k.loss?",
    "gsm8k: {loss: gpro}": "run.yaml:3: algorithms.gsm8k.loss: loss 'gpro' is unknown",
    "gsm8k: {weight: 0}": "run.yaml:3: algorithms.gsm8k.weight should be greater than 0, not 0",
    "gsm8k: {weight: .inf}": "run.yaml:3: algorithms.gsm8k.weight should be a finite number",
    "gsm8k: {weight: 1.0e+300}": "run.yaml:3: algorithms.gsm8k.weight should be at most 1000000",
    "gsm8k: grpo": "run.yaml:3: algorithms.gsm8k should be a mapping",
    "gsm8k: {critic: true}": "run.yaml:3: algorithms.gsm8k.critic: algorithms.gsm8k: critic is set"
    " for the whole run",
    "gsm8k: {loss: sapo, dual_clip: 3}": "run.yaml:3: algorithms.gsm8k.dual_clip: algorithms.gsm8k:"
    " dual_clip has no meaning in loss sapo",
    "gsm8k: {kl_coef: 1, kl_estimator: k1}": "run.yaml:3: algorithms.gsm8k.kl_estimator:"
    " algorithms.gsm8k: k1 has no gradient",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_cannot_be_used_is_refused_with_file_line_and_environment(tmp_path, text):
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, f"algorithms:\n  {text}\n")
    assert WRONG[text] in str(refused.value)


def test_an_environment_without_the_critic_of_the_run_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match="algorithms.tools: a critic only serves advantage gae"
    ):
        read(
            tmp_path, "critic: true\nadvantage: gae\nalgorithms:\n  tools: {advantage: rloo}\n"
        )


def test_a_contradiction_of_the_run_is_told_once(tmp_path):
    with pytest.raises(ConfigError) as refused:
        read(tmp_path, "overlong_tokens: 3\nalgorithms:\n  tools: {advantage: rloo}\n")
    assert str(refused.value).count("max_new_tokens; set that as well") == 1


def test_mixing_without_algorithms_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="run.yaml:2: mixing: mixing shares the loss"):
        read(tmp_path, "mixing: tokens\n")


def test_parts_and_shares_of_a_batch():
    cfg = TrainingConfig(model_name="m", algorithms={"a": {"weight": 2}, "b": {}})
    parts = parts_of(cfg, ["b", None, "a", "c", "b"])
    assert [(p.name, p.places, p.weight) for p in parts] == [
        ("a", [2], 2.0),
        ("b", [0, 4], 1.0),
        ("rest", [1, 3], 1.0),
    ]
    lengths = [1, 2, 3, 4, 5]  # trained tokens: 3 of a, 6 of b, 6 of the rest
    assert shares_of(parts, lengths, "tokens") == [2 * 3 / 15, 6 / 15, 6 / 15]
    assert shares_of(parts, lengths, "sequences") == [2 / 5, 2 / 5, 2 / 5]
    assert shares_of(parts, lengths, "environments") == [2, 1, 1]


def test_without_algorithms_and_in_an_empty_batch_there_is_one_part():
    plain = ObjectiveSettings()
    assert parts_of(plain, ["a", None]) == [BatchPart(None, plain, [0, 1])]
    cfg = TrainingConfig(model_name="m", algorithms={"a": {"weight": 2}})
    assert [(p.name, p.places) for p in parts_of(cfg, [])] == [(None, [])]
    assert shares_of(parts_of(cfg, []), [], "tokens") == [1.0]


@pytest.mark.parametrize(
    ("more", "unit"),
    [
        ({}, "tokens"),
        ({"loss_aggregation": "sequence"}, "sequences"),
        ({"loss_aggregation": "constant"}, "sequences"),
        ({"mixing": "environments", "algorithms": {"a": {}}}, "environments"),
    ],
)
def test_the_default_unit_of_shares_is_that_of_the_aggregation(more, unit):
    assert mixing_of(TrainingConfig(model_name="m", **more)) == unit


def test_plugins_of_environments_are_checked_and_recorded_with_the_run():
    cfg = TrainingConfig(
        model_name="m",
        algorithms={"a": {"loss": "mine.py:loss"}, "b": {"advantage": "mine.py:half"}},
    )
    assert [name for _, name in named_plugins(cfg)] == ["mine.py:loss", "mine.py:half"]
