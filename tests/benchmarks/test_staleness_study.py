"""The studies of whole runs: command lines, figures and tables, without running anything."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import staleness_study as study
from learn_reasoning_gym import Learned, figures
from wholerun import Setup, changed_settings, with_flags

from atroposlib.processes import ProcessSpec
from atroposlib.quickstart.recipes import COPY


def test_flags_replace_existing_flags_or_are_appended():
    command = ("python", "--lr", "0.1", "--steps", "3")
    flags = {"--lr": 0.2, "--loss": "grpo", "--no-prefetch": None}
    assert with_flags(command, flags) == (
        *("python", "--lr", "0.2", "--steps", "3", "--loss", "grpo", "--no-prefetch"),
    )


def test_several_ranks_start_under_torchrun_and_share_the_cores():
    spec = ProcessSpec("trainer", ("py", "-m", "example_trainer.grpo"), {}, Path("."))
    setup = Setup(Path("."), COPY, "tiny", 0, trainer={"--loss": "ppo"}, ranks=2, cores=8)
    started = changed_settings(spec, setup)
    assert started.argv[1:4] == ("-m", "torch.distributed.run", "--standalone")
    assert started.argv[-4:] == ("-m", "example_trainer.grpo", "--loss", "ppo")
    assert started.env["OMP_NUM_THREADS"] == "4"


def steps(rewards, ages):
    return [
        {
            "step": n + 1,
            "time": 10.0 + n,
            "tokens": 50,
            "reward_mean": reward,
            "seconds_wait": 0.25,
            "staleness_counts": {str(age): 10, "0": 10},
        }
        for n, (reward, age) in enumerate(zip(rewards, ages))
    ]


def test_a_run_is_measured_over_its_second_half():
    case = study.Case(staleness=4, loss="grpo", seed=0)
    rewards, ages = [0.0] * 4 + [0.5, 0.5, 1.0, 1.0], [0] * 4 + [4] * 4
    result = study.measure_study(case, steps(rewards, ages), heldout=0.9, seconds=30.0)
    assert (result.staleness_mean, result.staleness_p95, result.staleness_max) == (2.0, 4, 4)
    assert (result.tokens_per_s, result.steps_per_min, result.wait_share) == (50, 60, 0.25)
    assert result.reward_last == pytest.approx(0.6)  # the last five


def test_the_table_has_a_row_per_setting_with_the_spread_over_seeds():
    results = [
        study.measure_study(
            study.Case(level, loss, seed), steps([0.1] * 8, [level] * 8), held, 1.0
        )
        for level in (0, 8)
        for loss in ("grpo", "decoupled")
        for seed, held in enumerate((0.2, 0.4))
    ]
    lines = study.table(results).splitlines()
    assert [line.split("|")[1:3] for line in lines[2:]] == [
        [" 0 ", " naive "],
        [" 0 ", " decoupled "],
        [" 8 ", " naive "],
        [" 8 ", " decoupled "],
    ]
    assert "0.30 (0.20 to 0.40)" in lines[2]
    assert {line.count("|") for line in lines} == {11}


def test_environments_run_ahead_up_to_the_staleness_bound():
    options = argparse.Namespace(
        out=Path("o"), parallel=1, steps=40, groups=12, lr=1e-3, epochs=4, minibatches=4
    )
    setup = study.setup_of(study.Case(8, "decoupled", 1), options)
    assert setup.trainer["--max-staleness"] == 8
    assert int(setup.environment["--env.max_batches_offpolicy"]) > 8
    assert int(setup.environment["--env.total_steps"]) > 40 + 8


def test_the_figures_of_a_real_run_form_a_table_row():
    made = [
        {
            **step,
            "env/exact": step["reward_mean"],
            "seconds_train": 2.0,
            "publish_mismatch_max": 1e-5,
        }
        for step in steps([0.1, 0.2, 0.9, 0.9, 0.9, 0.9, 0.9], [0] * 7)
    ]
    row = figures([Learned(2, 0, made, [(0, 0.05), (7, 0.8)], 33.0)]).splitlines()[2]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:8] == ["2", "0", "0.10", "0.90", "0.10", "0.90", "0.05", "0.80"]
    assert cells[8:] == ["33", "1.0", "0.2", "2.0", "0.0", "1.0e-05"]
