"""Checks of a plan before its start: every problem at once, and an environment's own check."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections import namedtuple

import pytest

from atroposlib.errors import ConfigError
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.utils.command.startup import FILLS_BATCHES_OF
from example_trainer.launch import check
from example_trainer.launch.__main__ import main
from example_trainer.launch.check import (
    environment_variables,
    problems_of,
    require_none,
    submission_problems,
)
from tests.trainer.launch.launch_plans import plan

ENVIRONMENT = """
from atroposlib.envs import environment

@environment([{"n": 1}])
async def ones(task, model):
    return await model.chat("n", max_tokens=2) == "1"

if __name__ == "__main__":
    ones.cli()
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def planned(model, tmp_path):
    def make(*words):
        named = (f"trainer.settings.model_name={model}", "inference.engine=local")
        return plan(*named, *words, out=tmp_path / "run")

    return make


def problems(of):
    return list(problems_of(of))


def test_a_sound_plan_has_no_problem(planned):
    assert problems(planned()) == []


def test_a_plan_is_checked_without_torch(planned):
    code = "import sys; from example_trainer.launch.check import *;"
    code += " from example_trainer.launch.plan import *;"
    code += " list(problems_of(Plan.model_validate_json(sys.argv[1])));"
    code += " sys.exit('torch' in sys.modules)"
    words = [sys.executable, "-c", code, planned().model_dump_json()]
    assert subprocess.run(words, check=False).returncode == 0


def test_every_problem_is_in_one_error(planned):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("trainer.settings.loss=none.py:loss", f"api.port={port}")
        with pytest.raises(ConfigError) as refused:
            require_none(problems_of(planned(*words, "trainer.settings.model_name=/no/such")))
    text = str(refused.value)
    assert "none.py: no such file" in text
    assert "no directory /no/such" in text and f"api.port: port {port}" in text


def test_a_mistake_in_an_environment_has_the_place_of_its_setting(tmp_path):
    log = tmp_path / "check.log"
    log.write_text("error: /out/launch/environment-0.yaml:3: env.sise is no setting\n")
    words = {"environments.0.config.env.sise": "command line: environments.0.env.sise"}
    text = str(check.invalid_settings(log, words))
    assert text.startswith("command line: environments.0.env.sise is no setting (log: ")


def test_the_error_of_a_rank_is_found_before_the_lines_of_torchrun(tmp_path):
    log = tmp_path / "trainer.log"
    log.write_text(
        "loading\natropos-grpo: PluginError: a.py:3: gone\nE1 api.py failed\n"
        + "=" * 60
        + "\n"
    )
    assert str(check.invalid_settings(log, {})).startswith("atropos-grpo: PluginError: a.py:3")


def test_lengths_and_sizes_that_the_plan_names_must_fit(planned):
    of = planned("batch_size=3", "gradient_accumulation_steps=2", "seq_len=16")
    of.environments[0].config["env"] = {"group_size": 4, "max_token_length": 100}
    longest, size = problems(of)
    assert (
        "environments.0.config.env.max_token_length 100" in longest and "16 tokens" in longest
    )
    assert size.startswith("6 sequences of a step") and "no sum of groups of 4" in size


@pytest.mark.parametrize("section", ["sampling", "eval_sampling"])
def test_penalties_that_the_local_server_refuses_are_named_before_the_start(planned, section):
    of = planned()
    of.environments[0].config["openai"] = {
        section: {"frequency_penalty": 0.25, "presence_penalty": 0.0}
    }
    [problem] = problems(of)
    assert problem.startswith(f"environments.0.config.openai.{section}.frequency_penalty")
    of.inference.engine = "vllm"
    assert not [problem for problem in problems(of) if "penalty" in problem]


def test_plugins_are_imported_in_a_process_of_their_own(planned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def loss(batch):\n    pass\n\n\nimport gone_x\n")
    words = ("trainer.settings.loss=mine.py:loss", "trainer.settings.advantage=mine2:half")
    [problem] = problems(planned(*words))
    assert problem.startswith("mine.py:5: ModuleNotFoundError: No module named 'gone_x'")
    (tmp_path / "mine.py").write_text("def loss(batch, settings):\n    pass\n")
    [problem] = problems(planned(*words))
    assert "No module named 'mine2'" in problem
    (tmp_path / "mine2.py").write_text("def half(rewards, groups, settings):\n    pass\n")
    assert problems(planned(*words)) == []


@pytest.mark.parametrize("command", [("slurm", "--dry-run"), ("k8s",), ("ray",)])
@pytest.mark.parametrize("sweep", [(), ("sweep.lr=[0.001,0.002]",)], ids=["run", "sweep"])
def test_a_submission_refuses_what_its_settings_show(
    run_file, command, sweep, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ("environments.0.env.group_size=3", "batch_size=8", *sweep)
    assert main([*command, "--config", run_file, *words]) == 2
    assert "8 sequences of a step" in capsys.readouterr().err
    assert not list(tmp_path.glob("*-k8s.yaml"))


def test_a_submission_checks_the_plugins_that_its_jobs_import_from_here(
    planned, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    of = planned("trainer.settings.loss=none.py:loss")
    with pytest.raises(ConfigError, match="none.py: no such file"):
        require_none(submission_problems(of, plugins_here=True))
    require_none(
        submission_problems(of, plugins_here=False)
    )  # the image of a cluster may have it
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    require_none(submission_problems(of, plugins_here=True))  # a login node without torch


STEP_OF_8 = ("batch_size=8", "gradient_accumulation_steps=1", "seq_len=64")


@pytest.mark.parametrize(
    "words, environments, sentence",
    [
        ((), [{"group_size": 4}], ""),
        ((), [{"group_size": 3}], "8 sequences of a step"),
        ((), [{"group_size": 16}], "no sum of groups of 16"),
        ((), [{"group_size": 3}, {"group_size": 5}], ""),
        ((), [{"group_size": 6}, {"group_size": 10}], "no sum of groups of 6, 10"),
        ((), [{"group_size": 12}, {"group_size": 16}], "no sum of groups of 12, 16"),
        ((), [{"group_size": 3}, {}], ""),  # the size of the second is unknown
        ((), [{"group_size": 1, "ensure_scores_are_not_same": True}], "group_size 1"),
        ((), [{"group_size": 1, "ensure_scores_are_not_same": False}], ""),
        ((), [{"max_token_length": 64}], ""),
        ((), [{"max_token_length": 65}], "65 is more than the 64 tokens that the trainer"),
        (("max_tokens_per_microbatch=32",), [{"max_token_length": 32}], ""),
        (("max_tokens_per_microbatch=32",), [{"max_token_length": 33}], "of a forward pass"),
    ],
)
def test_pairs_of_sizes_that_can_never_work_are_refused(
    planned, words, environments, sentence
):
    of = planned(*STEP_OF_8, *words)
    first = of.environments[0]
    of.environments[:] = [
        first.model_copy(update={"config": {"env": e}}) for e in environments
    ]
    found = "; ".join(problems(of))
    assert sentence in found and bool(found) == bool(sentence), found


def test_a_disk_without_room_for_the_reserve_is_named(planned, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 2 * 10**7))
    [problem] = problems(planned())
    assert "20 MB free" in problem and "out=FOLDER" in problem


def test_only_an_environment_that_is_alone_has_to_fill_the_batch(planned):
    of = planned("trainer.settings.batch_size=8")
    assert environment_variables(of, 8) == {FILLS_BATCHES_OF: "8"}
    of.environments.append(of.environments[0])
    assert environment_variables(of, 8) == {}


@pytest.fixture
def run_file(tmp_path, model):
    (tmp_path / "ones.py").write_text(ENVIRONMENT)
    path = tmp_path / "run.yaml"
    path.write_text(
        f"out: {tmp_path}/run\nenvironments: [{{script: {tmp_path}/ones.py}}]\n"
        f"inference: {{engine: local}}\n"
        f"trainer: {{settings: {{model_name: {model}, device: cpu, batch_size: 8,"
        " gradient_accumulation_steps: 1}}\n"
    )
    return str(path)


def test_the_command_checks_environments_and_prints_every_command(run_file, capsys):
    assert main(["check", "--config", run_file]) == 0
    shown = capsys.readouterr().out
    assert "environment ones: its settings are sound" in shown
    assert "trainer: " in shown and "example_trainer.grpo" in shown
    assert "the plan is sound" in shown


def test_an_environment_that_refuses_ends_the_check_with_its_own_words(run_file, capsys):
    assert main(["local", "--dry-run", "--config", run_file, "batch_size=6"]) == 2
    assert "no number of groups makes a batch of 6 sequences" in capsys.readouterr().err


def test_an_environment_that_does_not_end_is_given_up(planned, monkeypatch, tmp_path):
    monkeypatch.setattr(check, "ENVIRONMENT_S", 0.01)
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    of = planned()
    of.environments[0].script = str(tmp_path / "slow.py")
    with pytest.raises(ConfigError, match="environments.0 "):
        list(check.check_environments(of))


def test_an_algorithm_of_no_environment_is_refused_with_the_nearest_name(planned):
    named = planned("environments.0.name=gsm8k", "algorithms.gsm8.loss=cispo")
    [problem] = [text for text in problems_of(named) if "algorithms" in text]
    assert problem == (
        "command line: algorithms.gsm8.loss: this run has no environment gsm8; did you mean"
        " gsm8k? (there are: gsm8k)"
    )
    assert not any(
        "algorithms" in text
        for text in problems_of(
            planned("environments.0.name=gsm8k", "algorithms.gsm8k.loss=sapo")
        )
    )


def test_held_needs_two_servers_and_dir_an_address_on_a_cluster(tmp_path):
    entry = "evaluation.environments=gsm8k_server"
    held = plan("evaluation.where=held", entry, out=tmp_path)
    assert any("inference.count of 2 or more" in text for text in problems_of(held))
    held.environments[0].script, held.environments[0].command = None, ["a", "{inference_url}"]
    assert any("would go on to sample held servers" in text for text in problems_of(held))
    own = plan("evaluation.where=dir", entry, out=tmp_path)
    with pytest.raises(ConfigError, match="needs trainer.settings.eval_url on a cluster"):
        require_none(submission_problems(own, plugins_here=False))
    named = plan("evaluation.where=dir", "evaluation.url=http://a:1", entry, out=tmp_path)
    require_none(submission_problems(named, plugins_here=False))
