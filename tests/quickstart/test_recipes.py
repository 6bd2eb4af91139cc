from __future__ import annotations

from atroposlib.quickstart.recipes import RECIPES, disk_needed, recipe_for


def test_a_model_directory_is_trained_on_the_sums():
    assert recipe_for("my/model") is RECIPES["smollm2"]


def test_steps_of_the_command_line_replace_those_of_the_recipe():
    assert recipe_for("tiny", 3).steps == 3


def test_four_copies_of_the_model_must_fit_in_memory():
    recipe = RECIPES["smollm2"]
    assert disk_needed(recipe) >= 4 * recipe.checkpoint_bytes
