from __future__ import annotations

import pytest

from example_trainer.quickstart.__main__ import default_out, parse_args
from example_trainer.quickstart.plan import launch_plan
from example_trainer.quickstart.recipes import ServingEngine


def test_options_come_from_the_command_line(tmp_path):
    options = parse_args(
        [
            "--model",
            "tiny",
            "--engine",
            "vllm",
            "--seed",
            "7",
            "--out",
            str(tmp_path),
            "--no-live",
        ]
    )
    assert (options.model, options.engine, options.seed) == ("tiny", ServingEngine.VLLM, 7)
    assert options.out == tmp_path
    assert not options.live


@pytest.mark.parametrize("argv", [["--steps", "0"], ["--port", "70000"], ["--engine", "x"]])
def test_an_unusable_option_is_rejected(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse_args(argv)
    assert stopped.value.code == 2
    assert "error" in capsys.readouterr().err


def test_a_run_of_a_model_directory_is_named_after_its_last_part():
    assert default_out("some/where/mine").name.startswith("quickstart-mine-")


def test_settings_of_the_environment_and_of_the_trainer_are_passed_on(plan):
    words = ["--env.size", "4", "--trainer.lr=1e-5", "--seed", "7", "--env.text", "a b"]
    options = parse_args([*words, "--env.flag"])
    assert options.seed == 7
    assert options.env_settings == (("size", "4"), ("text", "a b"), ("flag", ""))
    start = plan(env_settings=options.env_settings, trainer_settings=options.trainer_settings)
    found = launch_plan(start)
    words = ["--env.size", "4", "--env.text", "a b", "--env.flag", ""]
    assert found.environments[0].args == words
    assert found.trainer.settings["lr"] == 1e-5
