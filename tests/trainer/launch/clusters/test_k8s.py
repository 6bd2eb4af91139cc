"""Manifests of Kubernetes: the published models accept them, and their pods find the run."""

from __future__ import annotations

import stat

import httpx
import pytest
import yaml
from kubeflow_trainer_api.models import (
    IoK8sApiCoreV1Secret,
    JobsetV1alpha2JobSet,
)

from atroposlib.api.guards.auth import ANYONE, SCOPES_OF
from atroposlib.errors import ConfigError
from example_trainer.launch import k8s, node
from example_trainer.launch.__main__ import main
from tests.client.harness import served_api
from tests.trainer.launch.launch_plans import GSM8K, plan

NEEDED = ("k8s.image=registry/atropos:1", "k8s.volume_claim=shared", "out=/shared/run")
PLANS = (
    ("inference.engine=local", "trainer.settings.device=cpu"),
    ("inference.engine=vllm", "inference.count=4", "inference.tensor_parallel=2"),
    ("inference.engine=sglang", "trainer.nodes=2", "trainer.nproc=8", "k8s.queue=gpus"),
    ("inference.engine=vllm", "api.port=8100", "inference.port=9100", "restarts=7"),
    ("inference.engine=vllm", "k8s.pod.hostNetwork=true", "inference.ready_within_s=61"),
    (
        "inference.engine=vllm",
        "k8s.await_end=[api, environment]",
        "recover_retries=5",
        "k8s.gpu=amd.com/gpu",
        "k8s.resources={api: {cpu: 0.5}, trainer: {cpu: 16, memory: 64Gi}}",
    ),
)
GPU = "nvidia.com/gpu"
GONE, NOW = "Failed", "TerminatingOrFailed"
# Of each job: pods, restarts of each, replacement of a pod on a lost node, limits, port of the probes.
API, ENVIRONMENT = {"cpu": 4, "memory": "16Gi"}, {"cpu": 8}
EXPECTED = (
    {
        "api": (1, 3, GONE, API, 8000),
        "inference": (1, 3, NOW, {}, 9001),
        "env-0-gsm8k-server": (1, 3, NOW, ENVIRONMENT, None),
        "trainer": (1, 3, GONE, {}, None),
    },
    {
        "api": (1, 3, GONE, API, 8000),
        "inference": (4, 3, NOW, {GPU: 2}, 9001),
        "env-0-gsm8k-server": (1, 3, NOW, ENVIRONMENT, None),
        "trainer": (1, 3, GONE, {GPU: 1}, None),
    },
    {
        "api": (1, 3, GONE, API, 8000),
        "inference": (1, 3, NOW, {GPU: 1}, 9001),
        "env-0-gsm8k-server": (1, 3, NOW, ENVIRONMENT, None),
        "trainer": (2, 3, GONE, {GPU: 8}, None),
    },
    {
        "api": (1, 7, GONE, API, 8100),
        "inference": (1, 7, NOW, {GPU: 1}, 9100),
        "env-0-gsm8k-server": (1, 7, NOW, ENVIRONMENT, None),
        "trainer": (1, 3, GONE, {GPU: 1}, None),
    },
    {
        "api": (1, 3, GONE, API, None),
        "inference": (1, 3, NOW, {GPU: 1}, None),
        "env-0-gsm8k-server": (1, 3, NOW, ENVIRONMENT, None),
        "trainer": (1, 3, GONE, {GPU: 1}, None),
    },
    {
        "api": (1, 3, GONE, {"cpu": "0.5", "memory": "16Gi"}, 8000),
        "inference": (1, 3, NOW, {"amd.com/gpu": 1}, 9001),
        "env-0-gsm8k-server": (1, 3, GONE, ENVIRONMENT, None),
        "trainer": (1, 5, NOW, {"cpu": 16, "memory": "64Gi", "amd.com/gpu": 1}, None),
    },
)
# The job of a plan's servers, whole.
SERVERS = """
name: inference
replicas: 1
template:
  spec:
    completionMode: Indexed
    completions: 4
    parallelism: 4
    backoffLimitPerIndex: 3
    podReplacementPolicy: TerminatingOrFailed
    template:
      spec:
        restartPolicy: Never
        tolerations:
        - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute,
           tolerationSeconds: 30}
        - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute,
           tolerationSeconds: 30}
        containers:
        - name: inference
          image: registry/atropos:1
          command: [python, -m, example_trainer.launch, node, --plan, /etc/atropos/plan.json,
                    --role, inference, --index, $(JOB_COMPLETION_INDEX)]
          env:
          - {name: ATROPOS_HOST, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
          - {name: ATROPOS_POD_PORT, value: '9001'}
          resources: {requests: {nvidia.com/gpu: 2}, limits: {nvidia.com/gpu: 2}}
          volumeMounts:
          - {name: out, mountPath: /shared/run, subPath: gsm8k}
          - {name: files, mountPath: /etc/atropos}
          - {name: shm, mountPath: /dev/shm}
          startupProbe: {httpGet: {path: /health, port: 9001}, periodSeconds: 10,
                         timeoutSeconds: 10, failureThreshold: 90}
          livenessProbe: {httpGet: {path: /health, port: 9001}, periodSeconds: 10,
                          timeoutSeconds: 10, failureThreshold: 30}
        volumes:
        - {name: out, persistentVolumeClaim: {claimName: shared}}
        - {name: files, secret: {secretName: gsm8k}}
        - {name: shm, emptyDir: {medium: Memory}}
"""
# Fields of a user: a cache, a token from a Secret, a level of security, memory of the servers.
OWN = (
    """k8s.pod={
    nodeSelector: {pool: a},
    terminationGracePeriodSeconds: 120,
    tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists}, {key: gpu}],
    volumes: [{name: models, persistentVolumeClaim: {claimName: models}},
              {name: shm, emptyDir: {sizeLimit: 64Gi}}],
    initContainers: [{name: logs, image: logs:1, restartPolicy: Always}],
    containers: [{name: inference, image: engine:1, livenessProbe: null,
                  env: [{name: ATROPOS_HOST, value: here}]}]}""",
    """k8s.container={
    securityContext: {allowPrivilegeEscalation: false},
    env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hub, key: token}}}],
    envFrom: [{secretRef: {name: wandb}}],
    volumeMounts: [{name: models, mountPath: /models, readOnly: true},
                   {mountPath: /shared/run, subPath: team/gsm8k}]}""",
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


@pytest.mark.parametrize("overrides, expected", [*zip(PLANS, EXPECTED)], ids=range(len(PLANS)))
def test_jobs_of_a_plan_are_those_computed_by_hand(overrides, expected):
    _, specs, _, containers = jobs(*overrides)
    found = {}
    for name, spec in specs.items():
        probe = containers[name].get("livenessProbe")
        found[name] = (
            spec["completions"],
            spec["backoffLimitPerIndex"],
            spec["podReplacementPolicy"],
            containers[name]["resources"]["limits"],
            probe["httpGet"]["port"] if probe else None,
        )
    assert found == expected


def test_the_job_of_the_servers_is_that_written_by_hand():
    jobset, *_ = jobs(*PLANS[1])
    assert jobset["spec"]["replicatedJobs"][1] == yaml.safe_load(SERVERS)


@pytest.mark.parametrize("overrides", PLANS, ids=range(len(PLANS)))
def test_kubernetes_takes_the_fields_of_a_job_together(overrides):
    for name, spec in jobs(*overrides)[1].items():
        # With rules of failures the job may replace only pods that have ended for certain.
        has_rules = "podFailurePolicy" in spec
        assert has_rules == (spec["podReplacementPolicy"] == GONE)
        assert "backoffLimit" not in spec  # counts the failures of all pods together
        assert spec.get("maxFailedIndexes") == (0 if name == "trainer" else None)


def test_two_runs_on_one_claim_share_no_folder():
    mounts = [
        container["volumeMounts"][0]
        for name in ("one", "two")
        for container in jobs(*PLANS[0], f"name={name}")[3].values()
    ]
    assert {mount["subPath"] for mount in mounts} == {"one", "two"}
    assert {mount["name"] for mount in mounts} == {"out"}


def test_fields_of_a_user_are_merged_into_those_of_the_launcher():
    jobset, _, pods, containers = jobs(*PLANS[1], *OWN)
    assert JobsetV1alpha2JobSet.from_dict(jobset).to_dict() == jobset
    for name, pod in pods.items():
        assert pod["nodeSelector"] == {"pool": "a"}
        assert pod["terminationGracePeriodSeconds"] == 120
        assert [entry.get("tolerationSeconds") for entry in pod["tolerations"]] == [
            30,
            None,
            None,
        ]
        assert [volume["name"] for volume in pod["volumes"]] == [
            "out",
            "files",
            "shm",
            "models",
        ]
        assert pod["volumes"][2]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
        assert [container["name"] for container in pod["initContainers"]] == ["logs"]
        assert len(pod["containers"]) == 1
        container = containers[name]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False}
        assert container["envFrom"] == [{"secretRef": {"name": "wandb"}}]
        assert container["env"][-1]["name"] == "HF_TOKEN" or name == "inference"
        first, *_, last = container["volumeMounts"]
        assert first == {"name": "out", "mountPath": "/shared/run", "subPath": "team/gsm8k"}
        assert last == {"name": "models", "mountPath": "/models", "readOnly": True}
    assert containers["inference"]["image"] == "engine:1"
    assert containers["inference"]["env"][0] == {"name": "ATROPOS_HOST", "value": "here"}
    assert "livenessProbe" not in containers["inference"]
    assert containers["api"]["image"] == "registry/atropos:1"


def test_probes_ask_paths_that_need_no_token():
    assert all(SCOPES_OF["GET", path] == ANYONE for path in k8s.ALIVE.values())
    with served_api() as api:
        assert httpx.get(api + k8s.ALIVE["api"], trust_env=False).status_code == 200


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
    "text, name",
    [("My.Run_1", "my-run-1"), ("\u00e9t\u00e9", "ete"), ("-a-", "a"), ("a--b", "a-b")],
)
def test_the_name_of_a_run_is_a_label(text, name):
    assert k8s.run_label(plan(f"name={text}")) == name


def test_the_file_has_the_name_of_the_jobset(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["k8s", "--config", GSM8K, "name=My.Run_1", *PLANS[0], *OWN, *NEEDED]) == 0
    assert "kubectl apply -f my-run-1-k8s.yaml" in capsys.readouterr().out
    assert "*id" not in (tmp_path / "my-run-1-k8s.yaml").read_text()  # no aliases of YAML


@pytest.mark.parametrize(
    "word, problem",
    [
        ('k8s.image=""', "k8s.image is missing"),
        ('k8s.volume_claim=""', "k8s.volume_claim is missing"),
        (f"name={'long' * 12}", "too long for Kubernetes"),
        ("name=1run", "name=1run is no name in Kubernetes: begin with a letter from a to z"),
        ("name=___", "name=___ is no name in Kubernetes"),
        ("name=\u65e5\u672c", "is no name in Kubernetes"),
        (
            "k8s.pod={volumes: [{name: shm, hostPath: {path: /dev/shm}}]}",
            "k8s.pod.volumes: shm has emptyDir and hostPath: a volume has one source",
        ),
        ("k8s.pod={volumes: [{name: data}]}", "data has no source"),
        (
            "k8s.container={volumeMounts: [{name: modles, mountPath: /models}]}",
            "mounts modles at /models, which is not in k8s.pod.volumes",
        ),
        ("k8s.pod={volumes: null}", "which is not in k8s.pod.volumes"),
    ],
)
def test_a_run_that_no_cluster_takes_is_refused_by_the_setting(word, problem):
    with pytest.raises(ConfigError, match=problem):
        k8s.manifests(plan(*NEEDED, word), "secret")


def test_each_teacher_is_a_pod_with_gpus_and_probes_of_its_own():
    teachers = (
        "teachers.big={model: M, engine: vllm, tensor_parallel: 4}",
        "teachers.b_2.model=S",
    )
    late = ("teachers.b_2.ready_within_s=1800", "inference.port=9100")
    _, specs, _, containers = jobs(*teachers, *late, "teachers.b_2.engine=local")
    big, small = containers["teacher-big"], containers["teacher-b-2"]
    assert big["command"][-4:] == ["--role", "teacher", "--index", "0"]
    assert small["command"][-1] == "1" and small["resources"]["limits"] == {}
    assert big["resources"]["limits"] == {GPU: 4}
    assert big["livenessProbe"]["httpGet"] == {"path": "/health", "port": 9001}
    assert big["startupProbe"]["failureThreshold"] == 180
    assert specs["teacher-big"]["completions"] == 1
    _, specs, _, containers = jobs(*teachers, "k8s.resources={teacher: {cpu: 3}}")
    assert containers["teacher-big"]["resources"]["limits"]["cpu"] == 3
