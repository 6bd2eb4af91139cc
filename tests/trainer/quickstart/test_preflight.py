from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from atroposlib.errors import ConfigError
from atroposlib.quickstart.models import Unavailable
from example_trainer.quickstart import preflight
from example_trainer.quickstart.preflight import NotReady
from example_trainer.quickstart.recipes import Options, ServingEngine, recipe_for, sizes_of


def test_a_port_in_use_is_one_error_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            NotReady, match=f"--api-port {port} cannot be used: Address already"
        ):
            preflight.require_free_port("--api-port", port)


def test_any_free_port_needs_no_check():
    preflight.require_free_port("--port", 0)


def test_the_directory_of_an_old_run_is_not_overwritten(tmp_path):
    preflight.require_unused(tmp_path / "new")
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(NotReady, match="already holds a run"):
        preflight.require_unused(tmp_path)


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotReady, match="cannot write to .*file: "):
        preflight.require_writable(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(NotReady, match="Permission denied"):
        preflight.require_writable(tmp_path / "new")


def test_too_little_disk_space_is_reported_with_the_required_amount(tmp_path):
    with pytest.raises(NotReady, match=r"the run needs 1000000000.0 GB in .*GB are free"):
        preflight.require_disk(tmp_path, 10**18, "the run")


def test_missing_packages_are_named():
    with pytest.raises(
        NotReady, match="needs no_such_package: pip install 'atropos-rl.quickstart.'"
    ):
        preflight.require_packages(("json", "no_such_package"))


ENVIRONMENT = """
from atroposlib.envs import environment

@environment(["a"], {settings})
async def mine(task, model):
    return 1.0
"""


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ("group_size=4", {"group_size": 4, "seq_len": 2048}),
        ("max_token_length=96", {"seq_len": 96}),
        (
            "max_tokens=8, ensure_scores_are_not_same=True",
            {"ensure_scores_are_not_same": True, "seq_len": 2048},
        ),
    ],
)
def test_the_settings_that_an_environment_names_replace_the_recipe(settings, own, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(ENVIRONMENT.format(settings=settings))
    assert preflight.own_settings(file) == own
    recipe = recipe_for("tiny", environment=file, **own)
    assert {name: getattr(recipe, name) for name in own} == own
    assert recipe.sequences_per_step == recipe_for("tiny").sequences_per_step
    assert recipe.env_script == str(file)


def test_a_setting_that_the_environment_does_not_have_is_rejected_with_the_nearest(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(ENVIRONMENT.format(settings="group_size=4"))
    with pytest.raises(
        NotReady, match="--env.max_token: mine.py .*did you mean --env.max_token"
    ):
        preflight.own_settings(file, (("max_token", "8"),))


def test_sizes_given_on_the_command_line_are_those_of_the_trainer_too():
    sizes = sizes_of((("group_size", "4"), ("max_token_length", "96"), ("tasks", "9")))
    assert sizes == {"group_size": 4, "seq_len": 96}
    assert (
        recipe_for("tiny", **sizes).sequences_per_step == recipe_for("tiny").sequences_per_step
    )
    assert recipe_for("tiny", groups_per_step=2, **sizes).sequences_per_step == 8
    with pytest.raises(ConfigError, match="--env: .*'many'"):
        sizes_of((("group_size", "many"),))


def test_a_file_that_cannot_be_imported_is_rejected_with_its_line(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("raise ValueError(3)")
    with pytest.raises(NotReady, match="--environment .*mine.py:1: ValueError: 3"):
        preflight.own_settings(file)


def options(tmp_path, **given):
    return Options(engine=ServingEngine.LOCAL, seed=0, **{"out": tmp_path / "run", **given})


def test_a_misspelt_model_is_rejected_before_a_directory_is_made(tmp_path):
    chosen = options(tmp_path, model="tinny")
    with pytest.raises(Unavailable, match="--model tinny: .*did you mean tiny"):
        preflight.check(chosen, recipe_for("tinny"), tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


def test_two_runs_of_one_second_get_different_directories(tmp_path):
    default = options(tmp_path, model="tiny", numbered=True)
    names = [preflight.new_directory(default).name for _ in range(3)]
    assert names == ["run", "run-2", "run-3"]
    named = options(tmp_path, model="tiny")
    assert preflight.new_directory(named) == named.out


def test_the_instruction_sets_of_this_processor_are_words():
    listed = Path("/proc/cpuinfo")
    text = listed.read_text(encoding="utf-8") if listed.is_file() else ""
    flags = set(preflight.cpu_info("flags").split())
    assert flags <= set(text.split()) and bool(flags) == ("\nflags" in text)
