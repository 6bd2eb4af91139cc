"""Manifests of Kubernetes: the published models accept them, and their pods find the run."""

from __future__ import annotations

import stat

import pytest
import yaml
from kubeflow_trainer_api.models import (
    IoK8sApiCoreV1Secret,
    JobsetV1alpha2JobSet,
)

from atroposlib.errors import ConfigError
from example_trainer.launch import k8s, node
from example_trainer.launch.__main__ import main
from tests.trainer.launch.launch_plans import GSM8K, plan

NEEDED = ("k8s.image=registry/atropos:1", "k8s.volume_claim=shared", "out=/shared/run")
PLANS = (
    ("inference.engine=local", "trainer.settings.device=cpu"),
    ("inference.engine=vllm", "inference.count=4", "inference.tensor_parallel=2"),
    ("inference.engine=sglang", "trainer.nodes=2", "trainer.nproc=8", "k8s.queue=gpus"),
)


def jobs(*overrides):
    """The pods of each job: its spec, its pod's, and the container's."""
    _, jobset = k8s.manifests(plan(*overrides, *NEEDED), "secret")
    specs = {one["name"]: one["template"]["spec"] for one in jobset["spec"]["replicatedJobs"]}
    pods = {name: spec["template"]["spec"] for name, spec in specs.items()}
    return jobset, specs, pods, {name: pod["containers"][0] for name, pod in pods.items()}


@pytest.mark.parametrize("overrides", PLANS, ids=lambda words: words[0])
def test_the_published_models_know_every_field(overrides):
    secret, jobset = k8s.manifests(plan(*overrides, *NEEDED), "secret")
    assert JobsetV1alpha2JobSet.from_dict(jobset).to_dict() == jobset
    assert IoK8sApiCoreV1Secret.from_dict(secret).to_dict() == secret


def test_a_run_is_one_jobset_that_starts_together_and_ends_with_its_trainer():
    jobset, specs, *_ = jobs(*PLANS[2], "name=My.Run")
    assert jobset["metadata"] == {
        "name": "my-run",
        "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
    }
    assert jobset["spec"]["successPolicy"]["targetReplicatedJobs"] == ["trainer"]
    assert {name: spec["completions"] for name, spec in specs.items()} == {
        "api": 1,
        "inference": 1,
        "env-0-gsm8k-server": 1,
        "trainer": 2,
    }


def test_pods_ask_for_the_gpus_of_their_role():
    gpu = "nvidia.com/gpu"
    _, _, _, containers = jobs(*PLANS[1], "trainer.nproc=8")
    limits = {name: one["resources"]["limits"] for name, one in containers.items()}
    assert limits["inference"][gpu] == 2 and limits["trainer"][gpu] == 8
    _, _, _, containers = jobs(*PLANS[0])
    assert not [one for one in containers.values() if gpu in one["resources"]["limits"]]


def test_resources_and_fields_of_pods_are_merged_with_those_of_the_launcher():
    _, _, pods, containers = jobs(
        'k8s.resources={"api": {"cpu": null, "memory": "2Gi"}}',
        'k8s.pod={"nodeSelector": {"pool": "a"}}',
    )
    assert containers["api"]["resources"]["requests"] == {"memory": "2Gi"}
    assert all(pod["nodeSelector"] == {"pool": "a"} for pod in pods.values())


def test_ranks_of_two_nodes_meet_in_the_first_pod_of_the_trainer():
    _, _, _, containers = jobs(*PLANS[2])
    words = containers["trainer"]["command"]
    assert words[-3:] == ["--until-recorded", "--meet", "gsm8k-trainer-0-0.gsm8k:29500"]
    assert containers["inference"]["command"][-2:] == ["--index", "$(JOB_COMPLETION_INDEX)"]


def test_a_written_manifest_keeps_its_token_and_is_private(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    command = ["k8s", "--config", GSM8K, "--manifest", str(path), "inference.engine=vllm"]
    assert main([*command, *NEEDED]) == 0
    assert f"kubectl apply -f {path}" in capsys.readouterr().out
    first = [*yaml.safe_load_all(path.read_text())]
    added = "kind: Secret\nmetadata: {name: mine}\ndata: {key: dmFsdWU=}\n---\n"
    path.write_text(added + path.read_text())  # before ours, by a user
    assert main([*command, *NEEDED, "name=again"]) == 0
    again = [*yaml.safe_load_all(path.read_text())]
    assert again[0]["stringData"]["token"] == first[0]["stringData"]["token"]
    assert again[1]["metadata"]["name"] == "again"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_pod_reads_plan_and_token_from_the_secret(tmp_path):
    secret, _ = k8s.manifests(plan(*NEEDED, "k8s.python=python3.12", out=tmp_path), "secret")
    folder = tmp_path / "mounted"
    folder.mkdir()
    for name, text in secret["stringData"].items():
        (folder / name).write_text(text)
    read = node.load_plan(folder / "plan.json")
    read.out = str(tmp_path)
    api = node.command_of(read, "api", 0, None, {"ATROPOS_HOST": "10.0.0.7"})
    assert api.argv[0] == "python3.12" and str(folder / "tokens") in api.argv
    address = (tmp_path / "launch" / "endpoints" / "api").read_text()
    assert address.startswith("http://10.0.0.7:")


@pytest.mark.parametrize(
    "word, problem",
    [
        ('k8s.image=""', "k8s.image is missing"),
        ('k8s.volume_claim=""', "k8s.volume_claim is missing"),
        (f"name={'long' * 12}", "too long for Kubernetes"),
    ],
)
def test_a_run_that_no_cluster_takes_is_refused_by_the_setting(word, problem):
    with pytest.raises(ConfigError, match=problem):
        k8s.manifests(plan(*NEEDED, word), "secret")
