"""Each recipe of docs/recipes/ names its commands, and its overrides for one GPU are a plan."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from example_trainer.launch.check import check_environments, submission_problems
from example_trainer.launch.plan import Plan, read_plan
from example_trainer.settings.files import parse_override
from scripts.recipes import RECIPES, commands_of, held_out_figures, read_recipe

FILES = sorted(RECIPES.glob("*.yaml"))
WHOLE = """\
# A model learns
# to count.
#
# Held out: exact, share of 9 words.
#
# Start, once: a model.
#   $ python make.py \\
#       --seed 1 > runs/rows.jsonl
# Run:
#   $ atropos run local docs/recipes/count.yaml seed=0
# On one GPU: more.
#   $ atropos run local docs/recipes/count.yaml lr=1e-6
name: count
trainer: { settings: { evaluation: { every: 3, environments: [words] } } }
"""


def plan_of(command: str, root: Path) -> Plan:
    words = shlex.split(command)
    assert words[:3] == ["atropos", "run", "local"]
    overrides = [parse_override(word) for word in words[4:]]
    return read_plan([str(root / words[3])], overrides)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_commands_of_a_recipe_are_plans_of_its_file(path, root, monkeypatch):
    monkeypatch.chdir(root)
    recipe = read_recipe(path)
    for command in (recipe.run, recipe.on_gpu):
        assert shlex.split(command)[3] == f"docs/recipes/{path.name}"
        plan = plan_of(command, root)
        assert plan.notes == []
        assert list(submission_problems(plan, plugins_here=False)) == []
    assert "seed=0" in recipe.run
    assert plan_of(recipe.on_gpu, root).inference.engine in ("vllm", "sglang")


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_environments_of_a_recipe_accept_its_settings(path, root, monkeypatch, tmp_path):
    monkeypatch.chdir(root)
    recipe = read_recipe(path)
    for command in (recipe.run, recipe.on_gpu):
        notes = list(check_environments(plan_of(f"{command} out={tmp_path}", root)))
        assert all(note.endswith("its settings are sound") for note in notes), notes


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_figures_of_a_recipe_are_those_of_three_seeds_below_an_hour(path):
    recorded = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert {"0", "1", "2"} <= recorded["seeds"].keys()
    for run in recorded["seeds"].values():
        assert run["seconds"] + recorded.get("start_s", 0) < 3600
        assert len(run["held_out"]) >= 2


def test_the_head_of_a_recipe_has_its_parts(tmp_path):
    path = tmp_path / "count.yaml"
    path.write_text(WHOLE, encoding="utf-8")
    recipe = read_recipe(path)
    assert recipe.about == "A model learns to count."
    assert (recipe.held_out, recipe.meaning) == ("eval/words/exact", "share of 9 words.")
    assert shlex.split(recipe.start[0])[2:4] == ["--seed", "1"]
    assert recipe.on_gpu.endswith("lr=1e-6")


@pytest.mark.parametrize("title", ["Held out:", "Start, once:", "Run:", "On one GPU:"])
def test_a_head_without_a_part_is_refused_with_its_name(title, tmp_path):
    path = tmp_path / "count.yaml"
    path.write_text(WHOLE.replace(title, "Then"), encoding="utf-8")
    with pytest.raises(ValueError, match=f"count.yaml: .*{title}"):
        read_recipe(path)


def test_commands_go_on_behind_a_backslash():
    assert commands_of(["words", "$ a \\", "b", "$ c"]) == ["a  b", "c"]


def test_held_out_figures_have_the_step_that_was_evaluated():
    rows = [
        {"step": 0, "eval/a/exact": 0.25, "eval/a/stderr/exact": 0.0412},
        {"step": 3, "reward_mean": 1.0},
        {"step": 9, "evaluated_step": 8, "eval/a/exact": 1.0},
        {"evaluated_step": 9, "eval/a/exact": 0.5},  # behind the last step
    ]
    figures = [[0, 0.25, 0.041], [8, 1.0, 0.0], [9, 0.5, 0.0]]
    assert list(held_out_figures(rows, "eval/a/exact")) == figures
