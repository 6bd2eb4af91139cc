"""atropos-sft, atropos-dpo and atropos-rm on the tiny model, from groups to saved models."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from atroposlib.cli.collect.collecting import dpo_gen, sft_gen
from example_trainer.model import critic, loading
from example_trainer.supervised import (
    commands,
    corpus,
    dpo,
    loop as supervised,
    reward_model,
    sft,
)
from example_trainer.supervised.settings import parse
from tests.trainer.supervised.answers import PROMPTS, good
from tests.trainer.supervised.pairs import PAIRS, metrics


def test_groups_of_environments_train_a_saved_model(collected, settings, tmp_path):
    lines = [json.loads(line) for line in collected[sft_gen].read_text().splitlines()]
    assert lines == [{"prefix": p, "completion": good(p), "score": 1.0} for p in PROMPTS[:8]]
    path = collected[sft_gen]
    sft.train_sft(sft.SftConfig(**settings(path, valid_file=str(path), checkpoint_interval=6)))
    told = metrics(tmp_path)
    assert [line["step"] for line in told] == list(range(1, 13))
    assert told[-1]["loss"] < told[0]["loss"] / 2
    assert [line["step"] for line in told if "valid/loss" in line] == [2, 4, 6, 8, 10, 12]
    assert {p.name for p in (tmp_path / "saved").iterdir()} == {
        "step_6",
        "step_12",
        "final_model",
    }

    final = loading.load_policy(
        sft.SftConfig(
            **settings(path, model_name=str(tmp_path / "saved/final_model"))
        ).shared()
    )
    rows = corpus.read(
        str(path), lambda line, group: corpus.sft_rows(final.tokenizer, line, group), 64
    )
    sums, tokens = sft.CrossEntropy(final).measure(rows.examples)
    assert sums["loss"] / tokens == pytest.approx(told[-1]["valid/loss"], abs=1e-5)


def gradients(model, learn):
    told = learn()
    found = [parameter.grad.clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    return told, found


@pytest.mark.parametrize("kind", ["sft", "dpo", "ipo", "rm"])
def test_loss_and_gradient_do_not_depend_on_passes(settings, kind):
    cfg = settings("none")
    if kind == "rm":
        shared = reward_model.RewardConfig(**cfg).shared()
        one = critic.load_value_model(shared, shared.model_name)
        torch.nn.init.normal_(one.model.score.weight, std=0.1)
        objective = reward_model.BradleyTerry(reward_model.rewards_of(one))
    else:
        loss = "ipo" if kind == "ipo" else "sigmoid"
        settings_of = dpo.DpoConfig(**cfg, preference_loss=loss)
        one = loading.load_policy(settings_of.shared())
        known = {id(side): -1.0 for pair in PAIRS for side in pair}
        objective = dpo.Preference(settings_of, dpo.sums_of(one), known)
        if kind == "sft":
            objective = sft.CrossEntropy(one)
    assert len(one.plan(corpus.flat(PAIRS))) == 1
    told, whole = gradients(one, lambda: objective.learn(PAIRS))
    one.max_tokens_per_microbatch, one.share_prefixes = 12, False
    assert len(one.plan(corpus.flat(PAIRS))) > 4
    told_apart, apart = gradients(one, lambda: objective.learn(PAIRS))
    assert told_apart == pytest.approx(told, abs=1e-5)
    measured, count = objective.measure(PAIRS)
    assert {n: v / count for n, v in measured.items()} == pytest.approx(
        {name: told[name] for name in measured}, abs=1e-5
    )
    assert max(float(g.abs().max()) for g in whole) > 1e-4
    for ours, theirs in zip(whole, apart):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_every_epoch_goes_through_all_lines_in_its_own_order(settings):
    cfg = sft.SftConfig(**settings("none", epochs=2))
    steps = list(supervised.lines_of_steps(cfg, 10, 6))
    assert [len(step) for step in steps] == [4, 4, 2, 4, 4, 2]
    first, second = sum(steps[:3], []), sum(steps[3:], [])
    assert sorted(first) == sorted(second) == list(range(10)) and first != second
    assert steps == list(supervised.lines_of_steps(cfg, 10, 6))
    plain = sft.SftConfig(**settings("none", shuffle=False))
    assert list(supervised.lines_of_steps(plain, 10, 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_the_shared_parts_get_the_settings_of_the_same_name(settings, tmp_path):
    cfg = sft.SftConfig(**settings("none", warmup_steps=3, lora=True, lora_r=4))
    shared = cfg.shared(7)
    assert (shared.training_steps, shared.warmup_steps, shared.lora_r) == (7, 3, 4)
    assert shared.trains_adapter and shared.save_path == str(tmp_path / "saved")
    assert shared.microbatch_tokens == 4 * 64
    own = {name: value for name, value in settings("none").items() if name != "lr"}
    assert dpo.DpoConfig(**own).shared().lr == 1e-6
    assert sft.SftConfig(**own).shared().lr == 1e-5


def test_flags_take_precedence_over_files(tmp_path, capsys):
    config = tmp_path / "mine.yaml"
    config.write_text("model_name: none\nlr: 1e-4\nbeta: 0.3\ntrain_file: none\n")
    cfg = parse(dpo.DpoConfig, ["--config", str(config), "--beta", "0.5", "--no-shuffle"])
    assert (cfg.lr, cfg.beta, cfg.shuffle) == (1e-4, 0.5, False)
    words = ["--model", "no model", "--train-file", "none", "--device", "cpu"]
    assert commands.sft(words) == 1
    assert "cannot be loaded" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(  # dpo shares the sums of the reward model
    ("command", "tensor_parallel"), [("sft", 1), ("reward_model", 1), ("reward_model", 2)]
)
def test_two_ranks_train_as_one(collected, settings, tmp_path, command, tensor_parallel):
    module = {"sft": sft, "reward_model": reward_model}[command]
    kind = sft.SftConfig if command == "sft" else reward_model.RewardConfig
    path = collected[sft_gen if command == "sft" else dpo_gen]
    # Plain SGD: Adam turns the rounding of a gradient near 0 into a whole step.
    more = {"training_steps": 2, "valid_file": str(path), "optimizer": "sgd", "lr": 0.1}
    own = settings(path, **more, max_tokens_per_microbatch=40)
    getattr(module, f"train_{command}")(kind(**own))
    (alone,) = [metrics(tmp_path)]
    own |= {"log_dir": str(tmp_path / "two"), "save_path": str(tmp_path / "two")}
    own |= {"tensor_parallel": tensor_parallel}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in own.items()]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            *torchrun,
            "-m",
            f"example_trainer.supervised.{command}",
            *flags,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    both = [
        json.loads(line) for line in (tmp_path / "two/metrics.jsonl").read_text().splitlines()
    ]
    assert len(both) == 2
    for ours, theirs in zip(alone, both):
        same = {
            n: v
            for n, v in ours.items()
            if not n.startswith(("seconds", "time", "tokens_per"))
        }
        assert {n: theirs[n] for n in same} == pytest.approx(same, abs=1e-4)
    assert (tmp_path / "two" / "final_model" / "model.safetensors").exists()
