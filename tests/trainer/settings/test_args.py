"""Flags of the trainer and their order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atroposlib.settings.fields import flag_of
from example_trainer import TrainingConfig, parse_args
from example_trainer.settings.args import ALIASES, build_parser
from example_trainer.settings.files import SECTIONS
from tests.trainer.settings.conftest import given

ROOT = Path(__file__).resolve().parents[3]


def test_every_setting_has_a_kebab_case_flag_and_a_sentence():
    actions = {a.dest: a for a in build_parser()._actions}
    for name, field in TrainingConfig.model_fields.items():
        assert flag_of(name) in actions[name].option_strings
        assert field.description


def test_flags_are_typed_by_the_model():
    argv = ["--model", "m", "--lr", "1e-3", "--use-wandb", "--checkpoint-interval", "0"]
    argv += ["--inference-urls", "http://a:1/v1", "http://b:2/", "--clip-eps-high", "0.28"]
    cfg = parse_args(argv)
    assert (cfg.lr, cfg.use_wandb, cfg.checkpoint_interval) == (1e-3, True, 0)
    assert cfg.servers == ["http://a:1", "http://b:2"]
    assert cfg.clip_eps_high == 0.28 and len(cfg.wandb_group or "") == 8


def test_aliases_of_the_original_are_kept():
    assert parse_args(["--model-name", "m"]) == parse_args(["--model", "m"])
    assert set(ALIASES.values()) == {("--model",), ("--gpu-memory-utilization",)}


def test_a_misspelt_setting_is_refused():
    with pytest.raises(ValueError, match="learning_rate"):
        TrainingConfig(model_name="m", learning_rate=1.0)


def test_last_flag_or_override_wins_and_both_take_precedence_over_files(file):
    first = file("lr: 1e-3\nseq_len: 64\noptim:\n  adam_eps: 1e-6\n", "a.yaml")
    second = file("actor: {optimizer: {lr: 2e-3}}\nbatch.minibatches: 2\n", "b.yaml")
    words = ("--config", first, "--config", second)
    assert given(*words)["lr"] == 2e-3
    assert given(*words) | {"lr": 0} == {
        "lr": 0,
        "seq_len": 64,
        "adam_eps": 1e-6,
        "minibatches": 2,
    }
    assert given("lr=3e-3", *words)["lr"] == 3e-3
    assert given(*words, "lr=3e-3", "--lr", "4e-3")["lr"] == "4e-3"
    assert given(*words, "--lr", "4e-3", "actor.optimizer.lr=5e-3")["lr"] == 5e-3


def test_an_override_may_stand_between_flags_and_after_a_list():
    words = (
        "--model",
        "m",
        "lr=1",
        "--inference-urls",
        "http://a?x=1",
        "seq_len=8",
        "--use-wandb",
    )
    assert given(*words, "seed=3") == {
        "model_name": "m",
        "lr": 1,
        "inference_urls": ["http://a?x=1"],
        "seq_len": 8,
        "use_wandb": True,
        "seed": 3,
    }
    assert given("--run-name", "a=b") == {"run_name": "a=b"}


@pytest.mark.parametrize(("rank", "count"), [("0", 1), ("1", 0)])
def test_notes_are_logged_by_one_rank(rank, count, monkeypatch, capsys):
    monkeypatch.setenv("RANK", rank)
    parse_args(["--model", "m", "sglang.dtype=x"])
    assert capsys.readouterr().err.count("note: sglang.dtype") == count


def test_help_lists_the_settings_by_section(capsys):
    with pytest.raises(SystemExit):
        parse_args(["--help"])
    said = capsys.readouterr().out
    places = [said.index(f"\n{section}:\n") for section in SECTIONS]
    assert places == sorted(places) and "key=value" in said


@pytest.mark.parametrize("setting", ["model-name", "reference-model"])
def test_a_model_directory_that_does_not_exist_is_refused_before_torch_is_loaded(setting):
    words = {"model-name": "tests", "reference-model": "tests", setting: "./nope"}
    flags = [word for name, value in words.items() for word in (f"--{name}", value)]
    code = "import sys; from example_trainer.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *flags], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2 and "no directory ./nope" in done.stderr
