from __future__ import annotations

import pytest

from atroposlib.quickstart.__main__ import default_out, parse_args
from atroposlib.quickstart.recipes import ServingEngine


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
