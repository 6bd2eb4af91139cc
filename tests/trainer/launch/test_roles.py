from __future__ import annotations

import json
import re

import pytest

from atroposlib.errors import ConfigError
from atroposlib.utils.command.startup import SEAT
from example_trainer.launch import roles
from example_trainer.launch.plan import trainer_settings
from example_trainer.launch.roles import Endpoints
from tests.trainer.launch.launch_plans import plan

AT = Endpoints("http://api:8000", ("http://a:9000", "http://b:9001"))


def test_a_store_goes_to_the_api_by_a_variable_and_never_by_a_word(tmp_path, monkeypatch):
    monkeypatch.setenv("DB_PASSWORD", "geheim")
    of = plan("store=postgresql://a:${DB_PASSWORD}@db/a", out=tmp_path)
    command = roles.api(of, "python", "127.0.0.1", 1)
    assert command.env["ATROPOS_STORE"] == "postgresql://a:geheim@db/a"
    assert "geheim" not in " ".join(command.argv) and "geheim" not in of.model_dump_json()
    memory = roles.api(plan("store=memory", out=tmp_path), "python", "127.0.0.1", 1)
    assert memory.env["ATROPOS_STORE"] == "memory"
    folder = roles.api(plan("store=/scratch/q", out=tmp_path), "python", "127.0.0.1", 1)
    assert "ATROPOS_STORE" not in folder.env and "/scratch/q" in folder.argv


@pytest.mark.parametrize(
    "store, problem",
    [
        ("${NO_SUCH}", "command line: store: the environment variable NO_SUCH is not set"),
        ("mysql://a", "command line: store should be postgresql://..., memory, or a folder"),
    ],
)
def test_a_store_that_cannot_be_opened_is_refused_under_its_place(tmp_path, store, problem):
    with pytest.raises(ConfigError, match=re.escape(problem)):
        roles.store_of(plan(f"store={store}", out=tmp_path))


def test_environment_script_gets_the_directory_and_its_settings_take_precedence(tmp_path):
    found = plan(out=tmp_path)
    _, cfg = trainer_settings(found)
    command = roles.environment(found, cfg, "py", 0, AT)
    told = tmp_path / "launch" / "environment-0.yaml"
    assert command.argv == (
        ("py", "environments/gsm8k_server.py", "serve", "--config", str(told))
    )
    settings = json.loads(told.read_text())
    assert settings["env"]["rollout_server_url"] == "http://api:8000"
    assert settings["env"]["group_size"] == 8
    assert settings["openai"]["base_url"] == "directory://"


def test_each_life_of_a_copy_has_the_same_seat_and_no_two_copies_have_it(tmp_path):
    found = plan(out=tmp_path)
    _, cfg = trainer_settings(found)
    seats = [
        roles.environment(found, cfg, "py", 0, AT, copy).env[SEAT] for copy in ("0", "1", "0")
    ]
    assert seats == ["0-0", "0-1", "0-0"]


def test_a_ready_environment_is_run_from_the_package_where_its_file_is_absent(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    ready = ("-m", "atroposlib.environments.copy_server")
    assert roles.script_words("environments/copy_server.py") == ready
    assert roles.script_words("copy_server") == ready
    for absent in ("mine.py", "elsewhere/copy_server.py", "a.b.py"):
        with pytest.raises(ConfigError, match=f"no file {absent}"):
            roles.script_words(absent)


def test_an_environment_may_be_named_as_env_list_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert roles.script_words("gsm8k") == ("-m", "atroposlib.environments.gsm8k_server")


def test_settings_of_openai_in_one_mapping_are_those_of_every_server(tmp_path):
    found = plan(out=tmp_path)
    found.environments[0].config["openai"] = {"timeout": 60}
    _, cfg = trainer_settings(found)
    settings = roles.environment_settings(found, 0, cfg, AT)
    assert (settings["openai"]["timeout"], settings["openai"]["base_url"]) == (
        60,
        "directory://",
    )


def test_environment_command_gets_addresses_in_its_placeholders(tmp_path):
    words = "[my-env, '{api_url}', '{inference_urls}', '{\"a\": 1}', '{model}']"
    found = plan(f"environments=[{{command: {words}}}]", out=tmp_path)
    _, cfg = trainer_settings(found)
    assert roles.environment(found, cfg, "py", 0, AT).argv == (
        ("my-env", "http://api:8000", "http://a:9000,http://b:9001", '{"a": 1}')
        + ("Qwen/Qwen2.5-0.5B-Instruct",)
    )


@pytest.mark.parametrize(
    ("engine", "asked"),
    [("local", "m"), ("vllm", "gsm8k"), ("sglang", "m:gsm8k")],
)
def test_environments_request_the_adapter_by_name_if_the_engine_requires_it(
    engine, asked, tmp_path
):
    lora = ("weight_publisher=lora", "model_name=m", f"inference.engine={engine}")
    found = plan(*lora, out=tmp_path)
    assert roles.served_name(found, trainer_settings(found)[1]) == asked
    whole = plan("model_name=m", f"inference.engine={engine}", out=tmp_path)
    assert roles.served_name(whole, trainer_settings(whole)[1]) == "m"


@pytest.mark.parametrize(
    ("ranks", "meeting", "words"),
    [
        ((), (), "py -m example_trainer.grpo"),
        (
            ("trainer.nproc=2",),
            (),
            "py -m example_trainer.distributed.torchrun --standalone --nproc-per-node 2"
            " -m example_trainer.grpo",
        ),
        (
            ("trainer.nproc=8", "trainer.nodes=2"),
            ("n1:29500", "77"),
            "py -m example_trainer.distributed.torchrun --nnodes 2 --nproc-per-node 8"
            " --rdzv-backend c10d --rdzv-endpoint n1:29500 --rdzv-id 77 -m example_trainer.grpo",
        ),
    ],
)
def test_trainer_with_several_ranks_is_started_by_torchrun(ranks, meeting, words, tmp_path):
    command = roles.trainer(plan(*ranks, out=tmp_path), "py", AT, *meeting)
    folder = tmp_path / "launch"
    files = f"--config {folder / 'wiring.yaml'} --config {folder / 'trainer.yaml'}"
    assert " ".join(command.argv) == f"{words} {files}"
    wiring = json.loads((folder / "wiring.yaml").read_text())
    assert wiring["atropos_url"] == "http://api:8000"
    assert wiring["inference_urls"] == ["directory://"]
    assert wiring["inference_min_ready"] == 1


def test_a_server_is_started_behind_its_announcement(tmp_path):
    found = plan("inference.engine=local", out=tmp_path)
    at = Endpoints("", api_file=tmp_path / "api")
    _, cfg = trainer_settings(found)
    command = roles.inference(found, cfg, "py", "0.0.0.0", 9000, 2, at, announced="n7")
    words = (
        f"--api {(tmp_path / 'api').as_uri()} --name inference-2 --url http://n7:9000 -- py -m"
    )
    assert words in " ".join(command.argv)


def test_environments_register_by_the_names_of_their_algorithms():
    """Without algorithms and teachers each registers by the name of its class, as before."""
    for words, name in (
        ([], None),
        (["algorithms.gsm8k_server.loss=cispo"], "gsm8k_server"),
        (["teachers.big.model=M"], "gsm8k_server"),
        (["algorithms.mine.loss=cispo", "environments.0.name=mine"], "mine"),
        (["algorithms.x.loss=cispo", "environments.0.config.env.wandb_name=x"], "x"),
    ):
        found = plan(*words)
        settings = roles.environment_settings(found, 0, trainer_settings(found)[1], AT)
        assert settings["env"].get("wandb_name") == name


def test_the_trainer_evaluates_an_environment_of_the_plan_with_its_settings(tmp_path):
    words = ["evaluation.every=20", "evaluation.where=held", "inference.count=2"]
    entry = "evaluation.environments=['gsm8k_server --env.eval_items 9', other.py]"
    of = plan(*words, entry, out=tmp_path)
    roles.trainer(of, "py", AT)
    written = json.loads((tmp_path / "launch" / "trainer.yaml").read_text())
    own = tmp_path / "launch" / "evaluation-0.yaml"
    script = "environments/gsm8k_server.py"
    assert written["eval_environments"] == [
        f"name=gsm8k_server {script} --config {own} --env.eval_items 9",
        "other.py",
    ]
    settings = json.loads(own.read_text())["env"]
    assert settings["group_size"] == 8  # as it trains
    assert (settings["metrics_path"], settings["use_wandb"]) == (None, False)
    _, cfg = trainer_settings(of)
    serving = roles.environment_settings(of, 0, cfg, AT)["env"]
    assert serving["steps_per_eval"] == 0  # not evaluated twice
    usual = plan(out=tmp_path)
    assert "steps_per_eval" not in roles.environment_settings(usual, 0, cfg, AT)["env"]


def test_a_command_of_the_authors_own_is_not_evaluated_by_name(tmp_path):
    of = plan("evaluation.environments=mine", out=tmp_path)
    of.environments[0].script, of.environments[0].command = None, ["run"]
    of.environments[0].name = "mine"
    with pytest.raises(ConfigError, match="evaluate it by eval_command"):
        roles.trainer(of, "py", AT)
