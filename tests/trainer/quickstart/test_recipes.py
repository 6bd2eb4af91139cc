from __future__ import annotations

from pathlib import Path

import pytest

from example_trainer.quickstart.recipes import (
    RECIPES,
    Options,
    ServingEngine,
    disk_needed,
    dtype_for,
    recipe_for,
)


def test_a_model_directory_is_trained_on_the_sums():
    assert recipe_for("my/model") == RECIPES["smollm2"]


def test_steps_of_the_command_line_replace_those_of_the_recipe():
    assert recipe_for("tiny", 3).steps == 3


def test_four_copies_of_the_model_must_fit_in_memory():
    recipe = RECIPES["smollm2"]
    assert disk_needed(recipe) >= 4 * recipe.checkpoint_bytes


@pytest.mark.parametrize(
    ("flags", "model", "engine", "asked", "expected"),
    [
        ({"avx2", "avx512_bf16"}, "smollm2", "local", "auto", "bfloat16"),
        ({"amx_bf16"}, "my/model", "local", "auto", "bfloat16"),
        ({"avx2", "avx512_vnni"}, "smollm2", "local", "auto", "float32"),
        ({"avx512_bf16"}, "tiny", "local", "auto", "float32"),
        ({"avx512_bf16"}, "smollm2", "vllm", "auto", "float32"),
        ({"avx512_bf16"}, "smollm2", "local", "float32", "float32"),
        (set(), "tiny", "local", "bfloat16", "bfloat16"),
    ],
)
def test_bfloat16_is_chosen_where_it_is_fast(flags, model, engine, asked, expected):
    options = Options(model, ServingEngine(engine), seed=0, out=Path("out"), dtype=asked)
    assert dtype_for(options, recipe_for(model), frozenset(flags)) == expected
