"""What a whole file of AReaL trains, and with which defaults."""

from __future__ import annotations

import json

import pytest

from atroposlib.errors import ConfigError
from example_trainer.settings.areal.names import NAMES, Combined, Renamed
from example_trainer.settings.args import settings_of_files
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.files import FIELDS, parse_override, translate
from tests.trainer.settings.areal.test_names_reference import REFERENCE

ACTOR = {"path": "m"}
RUN = {"experiment_name": "e", "trial_name": "t"}


def settings_of(tmp_path, *words, **sections):
    """Settings and notes of a file with these sections, and of overrides."""
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(RUN | sections))  # every JSON document is a YAML document
    settings = settings_of_files([path], map(parse_override, words))
    TrainingConfig(**settings.values)
    return settings.values, "\n".join(settings.notes)


def test_a_file_that_leaves_everything_out_has_the_defaults_of_the_reference(tmp_path):
    values, notes = settings_of(tmp_path, actor=ACTOR)
    reference = translate(REFERENCE).values
    of_the_model = {"dtype", "gradient_checkpointing", "model_name", "reference_model"}
    of_the_run = {"save_path", "log_dir", "run_name", "seed", "recover_mode", "max_new_tokens"}
    of_the_batch = {"batch_size", "gradient_accumulation_steps"}
    # Its norms are shown with the defaults of their options; the whole norms default to null.
    of_norms = {"advantage", "advantage_norm", "advantage_eps"}
    of_kl = {"kl_coef", "kl_in", "kl_estimator"}  # without a reference model there is none
    apart = of_the_model | of_the_run | of_the_batch | of_norms | of_kl
    defaults = {name: field.default for name, field in FIELDS.items()}
    for name, value in reference.items():
        if name not in apart:
            assert values.get(name, defaults[name]) == value, name
    assert values["advantage"] == "raw"
    assert "actor.ppo_n_minibatches=4" in notes and "actor.kl_ctl: no KL" in notes


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"actor": ACTOR}, {"advantage": "raw", "loss": "grpo", "max_staleness": 0}),
        ({"actor": ACTOR}, {"loss": "grpo", "ratio_to": "sampler"}),
        ({"actor": ACTOR, "critic": {"path": "c"}}, {"advantage": "gae", "critic": True}),
        ({"actor": ACTOR, "ref": {"path": "r"}}, {"kl_coef": 0.1, "kl_in": "reward"}),
        ({"actor": ACTOR | {"kl_ctl": 0.0}, "ref": {"path": "r"}}, {"kl_coef": 0.0}),
        (
            {"actor": ACTOR | {"reward_norm": {"mean_level": "group", "std_level": "group"}}},
            {"advantage": "grpo"},
        ),
        ({"actor": ACTOR | {"use_decoupled_loss": True}}, {"loss": "decoupled"}),
        ({"actor": ACTOR | {"recompute_logprob": True}}, {"loss": "ppo"}),
        ({"actor": ACTOR | {"use_sapo_loss": True}}, {"loss": "sapo"}),
        ({"actor": ACTOR | {"ppo_n_minibatches": 1, "reward_clip": 5}}, {"minibatches": 1}),
        ({"actor": ACTOR | {"optimizer": {"lr": 1e-6}}}, {"lr": 1e-6, "adam_beta2": 0.95}),
        (
            {"actor": ACTOR, "rollout": {"max_head_offpolicyness": 4}},
            {"max_staleness": 4},
        ),
        ({"actor": ACTOR, "train_dataset": {"type": "rl"}}, {"loss": "grpo"}),
    ],
)
def test_given_options_replace_defaults_and_the_others_keep_them(sections, expected, tmp_path):
    values, _ = settings_of(tmp_path, **sections)
    assert {name: values[name] for name in expected} == expected


@pytest.mark.parametrize("section", ["actor", "model"])
@pytest.mark.parametrize("more", [{}, {"use_decoupled_loss": True, "kl_ctl": 0.1}])
def test_the_type_sft_imitates_wherever_the_model_stands(section, more, tmp_path):
    data = {"type": "sft", "path": "d"}
    values, notes = settings_of(tmp_path, **{section: ACTOR | more}, train_dataset=data)
    assert (values["loss"], values["model_name"]) == ("cross_entropy", "m")
    assert "advantage" not in values and "reward_clip" not in notes


@pytest.mark.parametrize("section", ["actor", "model"])
@pytest.mark.parametrize(
    ("kind", "named"), [("rw", "train rm"), ("dpo", "train dpo"), ("rlhf", "write rl")]
)
def test_other_types_name_what_to_do(kind, named, section, tmp_path):
    with pytest.raises(ConfigError, match=named):
        settings_of(tmp_path, **{section: ACTOR}, train_dataset={"type": kind})
    with pytest.raises(ConfigError, match=named):
        settings_of(tmp_path, f"train_dataset.type={kind}", **{section: ACTOR})


def test_options_of_the_command_line_and_of_a_later_file_replace_defaults(tmp_path):
    later = tmp_path / "later.yaml"
    later.write_text("{actor: {ppo_n_minibatches: 2}, experiment_name: other}")
    values, _ = settings_of(tmp_path, "reward_clip=null", "lr=0.5", actor=ACTOR)
    assert (values.get("reward_clip"), values["lr"]) == (None, 0.5)
    first = tmp_path / "first.yaml"
    first.write_text("{actor: {path: m, kl_ctl: 0.5}, ref: {path: r}, experiment_name: e}")
    values = settings_of_files([first, later], ()).values
    assert (values["minibatches"], values["kl_coef"], values["reward_clip"]) == (2, 0.5, 20.0)


def test_single_options_of_areal_bring_no_defaults():
    options = [parse_override("actor.optimizer.lr=1e-3"), parse_override("model_name=m")]
    assert settings_of_files((), options).values == {"lr": 1e-3, "model_name": "m"}


# Values of which one differs from every default.
CANDIDATES = [True, False, None, 3, 0.37, 2.5, "x", "group", "sequence", "sft", "auto", "disk"]
CANDIDATES += ["sgd", "sequence_mask", "clamp", "linear", "ratio", "mean"]
NORM = {"mean_level": "group", "std_level": "group"}
# What each needs with it to have an effect, by the beginning of its name.
BESIDE = {
    "actor.reward_norm.": {f"actor.reward_norm.{name}": value for name, value in NORM.items()},
    "actor.adv_norm.": {f"actor.adv_norm.{name}": value for name, value in NORM.items()},
    "actor.kl_": {"actor.kl_ctl": 0.1},
    "actor.overlong_": {"actor.overlong_reward_penalty": True, "actor.overlong_tokens": 8},
    "actor.rejection_sampling.agg": {"actor.rejection_sampling.level": "sequence"},
    "actor.rejection_sampling.": {"actor.rejection_sampling.level": "token"},
    "rollout.consumer_batch_size": {"gconfig.n_samples": 2},
    "train_dataset.batch_size": {"gconfig.n_samples": 2},
    "gconfig.n_samples": {"train_dataset.batch_size": 2},
    "actor.behav": {"actor.behav_imp_weight_cap": 3.0},
    "actor.recompute_logprob": {"actor.use_decoupled_loss": False},
}


def outcome(options):
    """Settings and notes, or the error."""
    try:
        settings = translate(
            [parse_override(f"{k}={json.dumps(v)}") for k, v in options.items()]
        )
        return settings.values, settings.notes
    except (ConfigError, TypeError, ValueError) as error:
        return str(error)


@pytest.mark.parametrize(
    "key", [key for key, one in NAMES.items() if isinstance(one, Renamed | Combined)]
)
def test_every_option_that_counts_as_taken_is_read(key):
    beside = next((more for name, more in BESIDE.items() if key.startswith(name)), {})
    given = [outcome(beside | {key: value}) for value in CANDIDATES]
    if (
        isinstance(NAMES[key], Combined) and not NAMES[key].name
    ):  # a group, only null as a whole
        given.append(outcome(beside))
    assert any(each != given[0] for each in given)
