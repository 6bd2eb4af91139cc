"""Kubernetes manifests of a run: a JobSet with a job per role, and a Secret of its files.

    Secret   plan, token and its digest, files of every pod
    JobSet   admitted all at once (k8s.queue), done when the trainer's job is done

    a pod is evicted or preempted   another takes its place, without a limit
    a pod fails                     another takes its place, up to restarts (recover_retries) times
    exit code 2                     the run fails: another start would fail alike

They are written, not submitted. Pods run ``atropos-launch node``, as jobs of SLURM do.
"""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path
from typing import Any

import yaml

from atroposlib.errors import ConfigError
from atroposlib.utils.io import write_whole
from example_trainer.launch import roles
from example_trainer.launch.plan import Plan, trainer_settings
from example_trainer.launch.slurm import TOKEN, dump_plan, plan_path, token_files

JOBSET = "jobset.x-k8s.io/v1alpha2"
QUEUE = "kueue.x-k8s.io/queue-name"
NAME_CHARS = 63  # limit of a pod's name: <run>-<job>-0-<index>-<five letters>
MEETING_PORT = 29500  # port of the trainer's first pod, whose address is known
FILES = "/etc/atropos"  # folder of the Secret in every pod
AGAIN = 75  # the trainer was stopped and has saved
DEFAULT_RESOURCES: dict[str, dict[str, Any]] = {
    "api": {"cpu": 4, "memory": "16Gi"},
    "environment": {"cpu": 8},
}


def write(plan: Plan, path: Path) -> None:
    """Write the manifests, readable by their owner alone; a token in ``path`` is kept.

    Raises:
        ConfigError: ``k8s.image`` or ``k8s.volume_claim`` is missing, or a name is too long.
    """
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    # A user may have added manifests, with Secrets of another content.
    secrets_before = [
        manifest.get("stringData") or {}
        for manifest in yaml.safe_load_all(before)
        if isinstance(manifest, dict)
    ]
    known = [secret[TOKEN].strip() for secret in secrets_before if TOKEN in secret]
    documents = manifests(plan, known[0] if known else secrets.token_urlsafe(32))
    write_whole(path, yaml.safe_dump_all(documents, sort_keys=False))


def manifests(plan: Plan, token: str) -> list[dict[str, Any]]:
    """Return the Secret and the JobSet. Raises as :func:`write`."""
    for key in ("image", "volume_claim"):
        if not getattr(plan.k8s, key):
            raise ConfigError(f"k8s.{key} is missing: the pods of the run need it")
    name, (_, cfg) = label(plan.name), trainer_settings(plan)
    of_pods = dump_plan(plan)
    of_pods["slurm"]["python"] = plan.k8s.python  # Python of a node's commands
    files = {plan_path(plan).name: json.dumps(of_pods), **token_files(token)}
    gpus = roles.gpus_of(plan)
    index = ("--index", "$(JOB_COMPLETION_INDEX)")
    meet = ("--until-recorded", "--meet", f"{name}-trainer-0-0.{name}:{MEETING_PORT}")
    servers = plan.inference.count
    jobs = [
        _job(plan, "api", "api", 1, plan.restarts),
        _job(plan, "inference", "inference", servers, plan.restarts, index, gpus["inference"]),
    ]
    for number, wanted in enumerate(plan.environments):
        own = label(f"env-{number}-{roles.environment_name(plan, number)}")
        words = ("--index", str(number))
        jobs.append(_job(plan, own, "environment", wanted.count, plan.restarts, words))
    nodes = plan.trainer.nodes  # a failed node ends the ranks of all nodes
    retries = cfg.trainer_retries * nodes
    jobs.append(_job(plan, "trainer", "trainer", nodes, retries, meet, gpus["trainer"]))
    metadata = {"name": name}
    queued = {"labels": {QUEUE: plan.k8s.queue}} if plan.k8s.queue else {}
    done = {"operator": "All", "targetReplicatedJobs": ["trainer"]}
    spec = {
        "network": {"enableDNSHostnames": True},
        "successPolicy": done,
        "failurePolicy": {"maxRestarts": 0},  # the jobs restart their pods
        "replicatedJobs": jobs,
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": files}
    jobset = {"apiVersion": JOBSET, "kind": "JobSet", "metadata": {**metadata, **queued}}
    return [secret, {**jobset, "spec": spec}]


def label(text: str) -> str:
    """The text as a name of Kubernetes: lower case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _job(
    plan: Plan,
    name: str,
    role: str,
    count: int,
    restarts: int,
    words: tuple[str, ...] = (),
    gpus: int = 0,
) -> dict[str, Any]:
    """A replicated job of ``count`` pods."""
    longest = f"{label(plan.name)}-{name}-0-{count}-abcde"
    if len(longest) > NAME_CHARS:
        raise ConfigError(f"name={plan.name} is too long for Kubernetes: {longest} is a pod")
    rules = [
        {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        },
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [AGAIN]}},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}},
    ]
    spec = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": restarts,
        "podFailurePolicy": {"rules": rules},
        "template": {"spec": _pod(plan, role, words, gpus)},
    }
    return {"name": name, "replicas": 1, "template": {"spec": spec}}


def _pod(plan: Plan, role: str, words: tuple[str, ...], gpus: int) -> dict[str, Any]:
    file = f"{FILES}/{plan_path(plan).name}"
    command = [plan.k8s.python, "-m", "example_trainer.launch", "node", "--plan", file]
    resources = {**DEFAULT_RESOURCES.get(role, {}), **plan.k8s.resources.get(role, {})}
    if gpus:
        resources.setdefault(plan.k8s.gpu, gpus)
    limits = {key: value for key, value in resources.items() if value is not None}
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    places = {"out": str(plan.directory), "files": FILES, "shm": "/dev/shm"}
    container = {
        "name": role,
        "image": plan.k8s.image,
        "command": [*command, "--role", role, *words],
        "env": [{"name": "ATROPOS_HOST", "valueFrom": address}],
        "resources": {"requests": limits, "limits": dict(limits)},
        "volumeMounts": [
            {"name": volume, "mountPath": path} for volume, path in places.items()
        ],
    }
    volumes = [
        {"name": "out", "persistentVolumeClaim": {"claimName": plan.k8s.volume_claim}},
        {"name": "files", "secret": {"secretName": label(plan.name)}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},  # memory for NCCL and vLLM
    ]
    own = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    return {**plan.k8s.pod, **own}
