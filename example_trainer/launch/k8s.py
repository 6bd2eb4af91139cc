"""Kubernetes manifests of a run: a JobSet with a job per role, and a Secret of its files.

    Secret   plan, token and its digest, files of every pod
    JobSet   admitted all at once (k8s.queue), done when the trainer's job is done

    a pod fails, or hangs     another takes its place, up to restarts (recover_retries) times
    its node is lost          another takes its place: of API and trainer (k8s.await_end) when the
                              old pod has ended for certain, of other roles after LOST_NODE_S

Of the roles of k8s.await_end, a pod that is evicted or preempted is replaced without a limit, and
the exit code 2 (invalid settings) fails the run at once. A job can tell ends of pods apart only if
it awaits them.

They are written, not submitted. Pods run ``atropos-launch node``, as jobs of SLURM do.
"""

from __future__ import annotations

import json
import math
import secrets
from pathlib import Path
from typing import Any

import yaml

from atroposlib.errors import ConfigError
from atroposlib.utils.io import write_whole
from example_trainer.launch import roles
from example_trainer.launch.clusters import NAMED_BY, ROLES, label
from example_trainer.launch.plan import Plan, trainer_settings
from example_trainer.launch.slurm import TOKEN, dump_plan, plan_path, secret_files

JOBSET = "jobset.x-k8s.io/v1alpha2"
QUEUE = "kueue.x-k8s.io/queue-name"
NAME_CHARS = 63  # limit of a pod's name: <run>-<job>-0-<index>-<five letters>
MEETING_PORT = 29500  # port of the trainer's first pod, whose address is known
FILES = "/etc/atropos"  # folder of the Secret in every pod
AGAIN = 75  # the trainer was stopped and has saved
LOST_NODE_S = 30  # after which Kubernetes deletes the pods of a node that it does not reach
LOST_NODE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
PORTS = {"api": 8000, "inference": 9001, "teacher": 9001}  # each pod has an address
# Paths that answer while the process lives. The API's /health is of its database too.
ALIVE = {"api": "/ui/", "inference": "/health", "teacher": "/health"}
PROBE_S = 10  # between two questions whether a process lives
SILENT_S = {"api": 120, "inference": 300, "teacher": 300}  # then a process counts as hung
API_STARTS_S = 900  # bound of the start of the API, which reads its queue
DEFAULT_RESOURCES: dict[str, dict[str, Any]] = {
    "api": {"cpu": 4, "memory": "16Gi"},
    "environment": {"cpu": 8},
}


def write(plan: Plan, path: Path) -> None:
    """Write the manifests, readable by their owner alone; a token in ``path`` is kept.

    Raises:
        ConfigError: ``k8s.image`` or ``k8s.volume_claim`` is missing, a name is too long or no
            name in Kubernetes, or a volume is missing or has not one source.
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
    copies = json.loads(
        json.dumps(documents)
    )  # without objects in common, which YAML abbreviates
    write_whole(path, yaml.safe_dump_all(copies, sort_keys=False))


def manifests(plan: Plan, token: str) -> list[dict[str, Any]]:
    """Return the Secret and the JobSet. Raises as :func:`write`."""
    for key in ("image", "volume_claim"):
        if not getattr(plan.k8s, key):
            raise ConfigError(f"k8s.{key} is missing: the pods of the run need it")
    name, (_, cfg) = run_label(plan), trainer_settings(plan)
    of_pods = dump_plan(plan)
    of_pods["slurm"]["python"] = plan.k8s.python  # Python of a node's commands
    files = {plan_path(plan).name: json.dumps(of_pods), **secret_files(plan, token)}
    gpus = roles.gpus_of(plan)
    index = ("--index", "$(JOB_COMPLETION_INDEX)")
    meet = ("--until-recorded", "--meet", f"{name}-trainer-0-0.{name}:{MEETING_PORT}")
    servers = plan.inference.count
    jobs = [
        _job(plan, "api", "api", 1, plan.restarts),
        _job(plan, "inference", "inference", servers, plan.restarts, index, gpus["inference"]),
    ]
    for number, (teacher, section) in enumerate(plan.teachers.items()):
        own, words = label(f"teacher-{teacher}"), ("--index", str(number))
        needed = roles.gpus_of_server(section)
        jobs.append(_job(plan, own, "teacher", 1, plan.restarts, words, needed))
    for number, wanted in enumerate(plan.environments):
        own = label(f"env-{number}-{roles.environment_name(plan, number)}")
        words = ("--index", str(number))
        jobs.append(_job(plan, own, "environment", wanted.count, plan.restarts, words))
    nodes, retries = plan.trainer.nodes, cfg.trainer_retries
    jobs.append(_job(plan, "trainer", "trainer", nodes, retries, meet, gpus["trainer"]))
    # Ranks need each other, while a run goes on without a server that failed for good.
    jobs[-1]["template"]["spec"]["maxFailedIndexes"] = 0
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


def run_label(plan: Plan) -> str:
    """The name of the run's objects, which has to be a label of RFC 1035, as of a Service.

    Raises:
        ConfigError: the name of the run has no letter, or begins with a digit.
    """
    name = label(plan.name)
    if not name[:1].isalpha():
        raise ConfigError(
            f"name={plan.name} is no name in Kubernetes: begin with a letter from a to z"
        )
    return name


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
    spec = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimitPerIndex": restarts,
        "podReplacementPolicy": "TerminatingOrFailed",
        "template": {"spec": _pod(plan, role, words, gpus)},
    }
    if role in plan.k8s.await_end:
        spec |= {"podReplacementPolicy": "Failed", "podFailurePolicy": {"rules": _rules()}}
    return {"name": name, "replicas": 1, "template": {"spec": spec}}


def _rules() -> list[dict[str, Any]]:
    """What an end of a pod means other than a failure."""
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    return [
        {"action": "Ignore", "onPodConditions": disrupted},
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [AGAIN]}},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}},
    ]


def _pod(plan: Plan, role: str, words: tuple[str, ...], gpus: int) -> dict[str, Any]:
    """The pod of a role, with the fields of ``k8s.pod`` and ``k8s.container``."""
    fields = dict(plan.k8s.pod)
    named = {entry["name"]: entry for entry in fields.pop("containers", None) or ()}
    container = merge_fields(_container(plan, role, words, gpus), plan.k8s.container)
    beside = [entry for name, entry in named.items() if name not in ROLES]
    tolerations = fields.pop("tolerations", None) or []
    chosen = [entry.get("key") for entry in tolerations]
    lost_node = [
        {
            "key": key,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_S,
        }
        for key in LOST_NODE
        if key not in chosen
    ]
    own = {
        "restartPolicy": "Never",
        "tolerations": [*lost_node, *tolerations],
        "containers": [merge_fields(container, named.get(role, {})), *beside],
        "volumes": [
            {"name": "out", "persistentVolumeClaim": {"claimName": plan.k8s.volume_claim}},
            {"name": "files", "secret": {"secretName": run_label(plan)}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},  # memory for NCCL and vLLM
        ],
    }
    pod: dict[str, Any] = merge_fields(own, fields)
    _require_volumes(pod)
    return pod


def _require_volumes(pod: dict[str, Any]) -> None:
    """Refuse volumes and mounts for which Kubernetes would make no pod, after it took the run."""
    volumes = pod.get("volumes", [])
    for volume in volumes:
        sources = sorted(volume.keys() - {"name"})
        if len(sources) != 1:
            raise ConfigError(
                f"k8s.pod.volumes: {volume['name']} has {' and '.join(sources) or 'no source'}:"
                " a volume has one source; null removes the launcher's"
            )
    names = {volume["name"] for volume in volumes}
    for container in pod["containers"]:
        for mount in container.get("volumeMounts", ()):
            if mount.get("name") not in names:
                raise ConfigError(
                    f"k8s: {container['name']} mounts {mount.get('name')} at"
                    f" {mount['mountPath']}, which is not in k8s.pod.volumes"
                )


def _container(plan: Plan, role: str, words: tuple[str, ...], gpus: int) -> dict[str, Any]:
    """The container of a role as the launcher makes it."""
    file = f"{FILES}/{plan_path(plan).name}"
    command = [plan.k8s.python, "-m", "example_trainer.launch", "node", "--plan", file]
    resources = {**DEFAULT_RESOURCES.get(role, {}), **plan.k8s.resources.get(role, {})}
    if gpus:
        resources.setdefault(plan.k8s.gpu, gpus)
    # The schema of JobSet takes integers and strings.
    limits = {
        key: str(value) if isinstance(value, float) else value
        for key, value in resources.items()
        if value is not None
    }
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    env: list[dict[str, Any]] = [{"name": "ATROPOS_HOST", "valueFrom": address}]
    probes: dict[str, Any] = {}
    # Pods in the network of their node may meet there, and take ports that are free.
    if role in PORTS and not plan.k8s.pod.get("hostNetwork"):
        ports = {"api": plan.api.port, "inference": plan.inference.port}
        port = ports.get(role) or PORTS[role]
        ready_s = [own.ready_within_s for own in (plan.inference, *plan.teachers.values())]
        starts_s = API_STARTS_S if role == "api" else max(ready_s)
        env.append({"name": "ATROPOS_POD_PORT", "value": str(port)})
        probes = {
            name: {
                "httpGet": {"path": ALIVE[role], "port": port},
                "periodSeconds": PROBE_S,
                "timeoutSeconds": PROBE_S,
                "failureThreshold": math.ceil(bound_s / PROBE_S),
            }
            for name, bound_s in (
                ("startupProbe", starts_s),
                ("livenessProbe", SILENT_S[role]),
            )
        }
    # The claim may be that of further runs.
    out = {"name": "out", "mountPath": str(plan.directory), "subPath": run_label(plan)}
    return {
        "name": role,
        "image": plan.k8s.image,
        "command": [*command, "--role", role, *words],
        "env": env,
        "resources": {"requests": limits, "limits": dict(limits)},
        "volumeMounts": [
            out,
            {"name": "files", "mountPath": FILES},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
        **probes,
    }


def merge_fields(base: Any, more: Any, field: str = "") -> Any:
    """``base`` with the fields of ``more``, entries of lists by their names; null removes.

    A variable of ``env`` is replaced whole: a value and a source exclude each other.
    """
    if isinstance(more, dict):
        kept = base if isinstance(base, dict) else {}
        below = {name: merge_fields(kept.get(name), more[name], name) for name in more}
        return {name: value for name, value in {**kept, **below}.items() if value is not None}
    naming = NAMED_BY.get(field)
    if not isinstance(more, list) or naming is None:
        return more
    entries = {entry[naming]: entry for entry in base or ()}
    for entry in more:
        name = entry[naming]
        entries[name] = merge_fields(None if field == "env" else entries.get(name), entry)
    return [*entries.values()]
