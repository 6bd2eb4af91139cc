"""Bundles of a Ray placement group, its log lines while it waits, and Ray that is absent."""

from __future__ import annotations

import sys

import pytest

from atroposlib.errors import ConfigError
from example_trainer.launch.__main__ import main
from example_trainer.launch.ray_cluster import run_ray
from example_trainer.launch.ray_parts import Part, actor_options, missing, parts
from tests.trainer.launch.launch_plans import GSM8K, plan


def test_every_process_of_the_plan_is_a_bundle_with_the_gpus_of_its_role():
    found = parts(
        plan(
            *("inference.engine=vllm", "inference.count=2", "inference.tensor_parallel=4"),
            *("trainer.nodes=2", "trainer.nproc=8"),
            'ray.resources={"environment": {"CPU": 3}, "trainer": {"CPU": null, "memory": 64e9}}',
        )
    )
    assert {part.name: part.resources for part in found} == {
        "api": {"CPU": 1},
        "inference-0": {"CPU": 1, "GPU": 4},
        "inference-1": {"CPU": 1, "GPU": 4},
        "env-0-gsm8k_server": {"CPU": 3},
        "trainer-0": {"GPU": 8, "memory": 64e9},
        "trainer-1": {"GPU": 8, "memory": 64e9},
    }
    assert found[2].words == ("--role", "inference", "--index", "1")


def test_a_teacher_is_a_bundle_with_its_own_gpus():
    teachers = (
        "teachers.big.model=M",
        "teachers.big.tensor_parallel=2",
        "teachers.small.model=S",
    )
    engines = ("teachers.big.engine=vllm", "teachers.small.engine=local")
    found = {part.name: part for part in parts(plan(*teachers, *engines))}
    assert found["teacher-big"].resources == {"CPU": 1, "GPU": 2}
    assert found["teacher-small"].resources == {"CPU": 1}
    assert found["teacher-small"].words == ("--role", "teacher", "--index", "1")


def test_resources_that_ray_has_no_option_for_are_custom_ones():
    assert actor_options({"GPU": 2.0, "memory": 5.0, "a100": 1.0}) == {
        "num_cpus": 0,
        "num_gpus": 2,
        "memory": 5,
        "resources": {"a100": 1},
    }


SERVER, RANKS = Part("inference-0", "inference", (), {"GPU": 1}), {"CPU": 1.0, "GPU": 8.0}
TRAINER = Part("trainer", "trainer", (), RANKS)


@pytest.mark.parametrize(
    ("nodes", "free", "line"),
    [
        ([RANKS, RANKS], {"CPU": 1, "GPU": 3}, "9 GPU (3 free)"),
        ([{"CPU": 4, "GPU": 4}] * 3, {"CPU": 9, "GPU": 12}, "a node with 8 GPU for trainer"),
        ([{"CPU": 4, "GPU": 8}] * 2, {"CPU": 9, "GPU": 12}, "nodes with room for each"),
        ([], {}, "9 GPU (0 free), 1 CPU (0 free), a node with 1 GPU for inference-0"),
    ],
)
def test_a_run_that_waits_names_what_is_missing(nodes, free, line):
    assert missing([SERVER, TRAINER], nodes, free).startswith(line)


def test_the_extra_is_named_where_ray_is_absent(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="atropos-rl.ray."):
        run_ray(plan(out=tmp_path), 0)
    settings = ["inference.engine=local", "trainer.settings.device=cpu"]
    assert main(["ray", "--config", GSM8K, "--out", str(tmp_path), *settings]) == 2
    assert "pip install 'atropos-rl[ray]'" in capsys.readouterr().err
