"""Teachers by name: their commands, and their addresses in settings and commands of environments."""

from __future__ import annotations

import json

import pytest

from example_trainer.launch import node, roles, slurm
from example_trainer.launch.gpus import GpuShares
from example_trainer.launch.local import processes
from example_trainer.launch.plan import trainer_settings
from example_trainer.launch.roles import Endpoints
from example_trainer.launch.teachers.wiring import teachers_named
from tests.trainer.launch.launch_plans import plan
from tests.trainer.launch.teachers.teacher_plans import BIG, HAS_BIG, taught_plan

URLS = {"big": "http://a:1", "small": "http://b:2"}


@pytest.mark.parametrize(
    ("own", "filled"),
    [
        ("big", "http://a:1/v1"),
        ("[big, small]", ["http://a:1/v1", "http://b:2/v1"]),
        ("[small, http://c:3/v1]", ["http://b:2/v1", "http://c:3/v1"]),
        ("policy", "policy"),
        ("http://c:3/v1", "http://c:3/v1"),
    ],
)
def test_a_script_gets_the_addresses_of_the_teachers_that_it_names(own, filled):
    found = plan(
        BIG, "teachers.small.model=S", f"environments.0.config.env.teacher.base_url={own}"
    )
    at = Endpoints("http://api", teachers=URLS)
    settings = roles.environment_settings(found, 0, trainer_settings(found)[1], at)
    assert settings["env"]["teacher"]["base_url"] == filled


def test_the_protocol_is_that_of_the_teachers_engine_unless_it_is_named():
    of = "environments.0.config.env.teacher.server_type=vllm"
    at = Endpoints("http://api", teachers=URLS)
    for words, expected in (((), "sglang"), ((of,), "vllm")):
        found = plan(BIG, "teachers.big.engine=sglang", HAS_BIG, *words)
        settings = roles.environment_settings(found, 0, trainer_settings(found)[1], at)
        assert settings["env"]["teacher"]["server_type"] == expected


def test_a_command_of_the_authors_own_gets_the_address_in_its_placeholder(tmp_path):
    found = plan(BIG, out=tmp_path)
    found.environments[0].script = None
    found.environments[0].command = ["run", "--judge={teachers.big}/v1"]
    assert teachers_named(found.environments[0]) == ["big"]
    at = Endpoints("http://api", teachers=URLS)
    command = roles.environment(found, trainer_settings(found)[1], "py", 0, at)
    assert command.argv == ("run", "--judge=http://a:1/v1")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), None),
        (("environments.0.config.env.teacher.top_k=20",), None),
        (("environments.0.config.env.teacher.top_k=64",), "--max-logprobs 64"),
        (
            (
                "environments.0.config.env.teacher.top_k=64",
                "teachers.big.args=[--max-logprobs=99]",
            ),
            "--max-logprobs=99",
        ),
        (("environments.0.config.env.teacher.top_k=64", "teachers.big.engine=local"), None),
    ],
)
def test_vllm_returns_as_many_logprobs_as_are_asked_for(words, expected):
    found = plan(BIG, "teachers.big.engine=vllm", HAS_BIG, *words)
    command = roles.teacher(found, trainer_settings(found)[1], "py", 0, "127.0.0.1", 9000)
    line = " ".join(command.argv)
    assert line.count("--max-logprobs") == (expected is not None)
    assert expected is None or expected in line


def test_a_local_run_starts_each_teacher_as_a_server_that_no_trainer_knows(tmp_path):
    found = taught_plan("teachers.big.port=9300", "teachers.small.engine=local", out=tmp_path)
    shares = GpuShares((None,), teachers={"big": ("3", 0.25), "small": (None, None)})
    specs = {spec.name: spec for spec in processes(found, shares)}
    assert [*specs] == [
        "api", "inference-0", "teacher-big", "teacher-small", "env-0-gsm8k_server", "trainer",
    ]  # fmt: skip
    big, small = specs["teacher-big"], specs["teacher-small"]
    assert big.health_url == "http://127.0.0.1:9300/health" and big.restartable
    assert "--model M" in " ".join(big.argv) and "atroposlib.inference" in small.argv
    assert big.env["CUDA_VISIBLE_DEVICES"] == "3" and "CUDA_VISIBLE_DEVICES" not in small.env
    assert "0.25" in big.argv and big.env["VLLM_SERVER_DEV_MODE"] == "0"
    for spec in (big, small):
        assert "atroposlib.client.announce" not in spec.argv
        assert "--worker-extension-cls" not in spec.argv and "--enable-lora" not in spec.argv
    settings = json.loads((tmp_path / "launch" / "environment-0.yaml").read_text())
    assert settings["env"]["teacher"]["base_url"][0] == "http://127.0.0.1:9300/v1"


def test_a_teacher_of_a_cluster_publishes_its_address_and_a_script_follows_the_file(tmp_path):
    """A server that starts anew elsewhere writes another address into the same file."""
    found = taught_plan("teachers.small.port=9400", out=tmp_path)
    slurm.write(found, 0)
    endpoints = tmp_path / "launch" / "endpoints"
    (endpoints / "api").write_text("http://api:1\n")
    for number in range(2):
        node.command_of(found, "teacher", number, None, {"SLURMD_NODENAME": f"n{number}"})
    assert (endpoints / "teacher-small").read_text() == "http://n1:9400\n"
    node.command_of(found, "environment", 0, None, {})
    settings = json.loads((tmp_path / "launch" / "environment-0.yaml").read_text())
    files = [(endpoints / f"teacher-{name}").as_uri() for name in ("big", "small")]
    assert settings["env"]["teacher"]["base_url"] == files


def test_an_environment_waits_until_its_teacher_has_an_address(tmp_path):
    found = taught_plan("slurm.wait_s=0.001", out=tmp_path)
    slurm.write(found, 0)
    (tmp_path / "launch" / "endpoints" / "api").write_text("http://api:1\n")
    with pytest.raises(node.EndpointTimeout, match="the address of the teacher big"):
        node.command_of(found, "environment", 0, None, {})


def test_an_evaluation_of_a_taught_environment_asks_no_teacher(tmp_path):
    found = taught_plan(
        "evaluation.every=20", "evaluation.environments=gsm8k_server", out=tmp_path
    )
    roles.trainer(found, "py", Endpoints("http://api"))
    settings = json.loads((tmp_path / "launch" / "evaluation-0.yaml").read_text())
    assert settings["env"]["teacher"] is None
