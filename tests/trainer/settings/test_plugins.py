"""Plug-ins of the trainer's settings: each kind in its place, refused at once, recorded."""

from __future__ import annotations

import json
import sys
from typing import get_args

import pytest
import torch
from pydantic import ValidationError

from atroposlib import trackers
from atroposlib.errors import ConfigError
from atroposlib.trackers import Run
from atroposlib.utils.command.plugins import KINDS, PluginError
from example_trainer import losses, weights
from example_trainer.advantage import compute
from example_trainer.advantage.estimators import ESTIMATORS
from example_trainer.advantage.prepare import prepare_batch
from example_trainer.loss_properties import random_inputs
from example_trainer.settings.args import config_to_run
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.loss import Estimator, LossName
from example_trainer.settings.plugins import (
    FILE,
    SETTINGS,
    named_plugins,
    record_plugins,
    require_plugins,
)
from example_trainer.settings.weights import PublisherName
from example_trainer.weights.disk import DiskPublisher
from tests.trainer.rows import row

MINE = """
from example_trainer.weights.disk import DiskPublisher


def loss(batch, settings):
    per_token = -batch.tokens.only(batch.advantages) * batch.tokens.only(batch.logprobs)
    return batch.tokens.loss_sum(per_token), {"clip_eps_seen": settings.clip_eps}


def mean_loss(batch, settings):
    return batch.logprobs.mean(dim=1), {}


def half(rewards, groups, settings):
    return [reward / 2 for reward in rewards]


def first(rewards, groups, settings):
    return rewards[:1]


def squared(rewards, settings, lengths, finish_reasons):
    return [reward**2 for reward in rewards]


def has_success(rows, settings):
    return max(row.reward for row in rows) > 0


class Quiet(DiskPublisher):
    pass


class Constructed:
    def __init__(self, cfg, engines, announce, on_wait):
        pass


class Printed:
    def __init__(self, run):
        self.run = run

    def log(self, metrics, step):
        print(step, metrics)

    def close(self):
        pass


def no_tracker(run):
    return run
"""


@pytest.fixture
def cfg(tmp_path, monkeypatch):
    """Settings whose plug-ins are in the file mine.py of the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine.py").write_text(MINE)
    return lambda **settings: TrainingConfig(model_name="m", **settings)


def test_the_names_of_the_settings_are_the_names_of_the_registries():
    assert set(get_args(LossName)) == losses.FORMULAS.keys()
    assert set(get_args(Estimator)) == ESTIMATORS.keys()
    assert set(get_args(PublisherName)) == weights.PUBLISHERS.keys()
    of_environments = {"atroposlib.rewards", "atroposlib.samplers", "atroposlib.gates"}
    assert {kind.group for kind, _ in SETTINGS.values()} == KINDS.keys() - of_environments


def test_a_loss_gets_the_settings_and_needs_all_logprobs(cfg):
    settings = cfg(loss="mine.py:loss", clip_eps=0.3, dual_clip=2.0)
    total, metrics = losses.formula(settings.loss)(random_inputs(), settings)
    assert total.ndim == 0 and float(metrics["clip_eps_seen"]) == pytest.approx(0.3)
    assert losses.needs_sampler(settings.loss) and losses.needs_proximal(settings)


def test_a_loss_that_returns_something_else_is_named_with_its_line(cfg):
    settings = cfg(loss="mine.py:mean_loss")
    with pytest.raises(PluginError, match=r"mine.py:10: loss has to return \(sum of the loss"):
        losses.formula(settings.loss)(random_inputs(), settings)


def test_an_estimator_and_a_shaping_replace_the_built_in_ones(cfg):
    settings = cfg(advantage="mine.py:half", reward_shaping="mine.py:squared", reward_scale=10)
    assert compute([1.0, 3.0], ["a", "a"], settings) == [5.0, 45.0]
    assert compute(torch.tensor([1.0, 3.0]), ["a", "b"], settings) == [5.0, 45.0]


def test_an_estimator_has_to_return_a_number_for_each_reward(cfg):
    with pytest.raises(
        PluginError, match=r"mine.py:\d+: advantage has to return an adv.*1 entr"
    ):
        compute([1.0, 3.0], ["a", "a"], cfg(advantage="mine.py:first"))


def test_a_filter_leaves_groups_out_and_counts_their_rows(cfg):
    rows = [row([1], [2], reward=r, group=g) for g, r in (("a", 0), ("a", 0), ("b", 1))]
    prepared = prepare_batch(rows, cfg(group_filter="mine.py:has_success"), 0)
    assert [kept.group for kept in prepared.rows] == ["b"]
    assert prepared.counts["rows_filtered_by_group_filter"] == 2


def test_a_publisher_is_a_subclass(cfg):
    made = weights.make_publisher(cfg(weight_publisher="mine.py:Quiet"), [], None)
    assert isinstance(made, DiskPublisher) and type(made).__name__ == "Quiet"
    with pytest.raises(ConfigError, match="has to be a subclass"):
        weights.make_publisher(cfg(weight_publisher="mine.py:Constructed"), [], None)


def test_a_tracker_is_an_object_with_two_methods(cfg, capsys):
    tracker = trackers.open_tracker("mine.py:Printed", Run("a"))
    tracker.log({"x": 1}, 3)
    assert capsys.readouterr().out == "3 {'x': 1}\n"
    with pytest.raises(
        ConfigError, match=r"has to return an object with log\(metrics, step\)"
    ):
        trackers.open_tracker("mine.py:no_tracker", Run("a"))


@pytest.mark.parametrize(
    "setting, sentence",
    [
        ({"loss": "grp"}, "did you mean grpo"),
        ({"advantage": "rlo"}, "did you mean rloo"),
        ({"weight_publisher": "dsk"}, "did you mean disk"),
        ({"trackers": ["wandbb"]}, "did you mean wandb"),
        ({"reward_shaping": "mine"}, "reward_shaping 'mine' is unknown"),
        ({"group_filter": "mine"}, "group_filter 'mine' is unknown"),
    ],
)
def test_an_unknown_name_is_refused_when_the_settings_are_read(cfg, setting, sentence):
    with pytest.raises(ValidationError, match=sentence):
        cfg(**setting)


def test_built_in_names_are_no_plugins(cfg):
    assert named_plugins(cfg(loss="gspo", advantage="rloo", trackers=["wandb"])) == []


def test_the_command_line_refuses_a_plugin_before_anything_is_loaded(cfg, capsys):
    with pytest.raises(SystemExit) as ended:
        config_to_run(["--model-name", "m", "--loss", "mine.py:los"])
    assert ended.value.code == 2
    assert "no 'los' in mine.py; did you mean loss?" in capsys.readouterr().err


def test_a_run_records_its_plugins_by_the_digest_of_their_code(cfg, tmp_path):
    settings = cfg(loss="mine.py:loss", group_filter="mine.py:has_success")
    require_plugins(settings)
    record_plugins(settings, tmp_path / "run")
    recorded = json.loads((tmp_path / "run" / FILE).read_text())
    assert [entry["name"] for entry in recorded] == ["mine.py:loss", "mine.py:has_success"]
    assert all(entry["digest"].startswith("sha256:") for entry in recorded)
    record_plugins(cfg(), tmp_path / "run")
    assert not (tmp_path / "run" / FILE).exists()
