"""Sections of a plan about clusters: Kubernetes and Ray."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from atroposlib.settings.sentences import did_you_mean
from example_trainer.settings.section import PlanSection

ROLES = ("api", "inference", "teacher", "environment", "trainer")
# The published fields of PodSpec, Container and Volume, v1 of Kubernetes 1.35.
POD_FIELDS = (
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig "
    "dnsPolicy enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers "
    "hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead "
    "preemptionPolicy priority priorityClassName readinessGates resourceClaims resources restartPolicy "
    "runtimeClassName schedulerName schedulingGates schedulingGroup securityContext serviceAccount "
    "serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds "
    "tolerations topologySpreadConstraints volumes"
).split()
CONTAINER_FIELDS = (
    "args command env envFrom image imagePullPolicy lifecycle livenessProbe name "
    "ports readinessProbe resizePolicy resources restartPolicy restartPolicyRules securityContext "
    "startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty volumeDevices "
    "volumeMounts workingDir"
).split()
VOLUME_FIELDS = (
    "awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI "
    "emptyDir ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi "
    "name nfs persistentVolumeClaim photonPersistentDisk portworxVolume projected quobyte rbd scaleIO "
    "secret storageos vsphereVolume"
).split()
FIELDS_BELOW = {
    "containers": CONTAINER_FIELDS,
    "initContainers": CONTAINER_FIELDS,
    "volumes": VOLUME_FIELDS,
}
# The field that names an entry of a list, as where Kubernetes merges objects. Further lists have
# no such field.
NAMED_BY = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "env": "name",
}


class KubernetesSection(PlanSection):
    """Settings of Kubernetes: of the pods in the JobSet that is written."""

    image: str = Field("", description="container image with this package; required")
    volume_claim: str = Field(
        "",
        description="PersistentVolumeClaim whose folder of the run's name all pods mount at `out`"
        " and write; required",
    )
    queue: str | None = Field(
        None, description="LocalQueue of Kueue, which starts all pods together or none"
    )
    resources: dict[str, dict[str, str | int | float | None]] = Field(
        {},
        description="of each pod of a role (api, inference, teacher, environment, trainer), such as"
        " {api: {cpu: 0.5, memory: 16Gi}}; null removes one of the launcher's",
    )
    gpu: str = Field("nvidia.com/gpu", description="resource name of a GPU")
    pod: dict[str, Any] = Field(
        {},
        description="fields of every pod, such as nodeSelector and volumes, merged into the"
        " launcher's; `containers` named by role (api, inference, teacher, environment, trainer) are of"
        " the pods of that role; null removes a field",
    )
    container: dict[str, Any] = Field(
        {},
        description="fields of the container of every role, such as securityContext, env, envFrom"
        " and volumeMounts, merged alike",
    )
    await_end: list[Literal["api", "inference", "teacher", "environment", "trainer"]] = Field(
        ["api", "trainer"],
        description="roles whose pod is replaced only when it has ended for certain: on a lost"
        " node that is when its Node object is removed; pods of the other roles are replaced"
        " at once",
    )
    python: str = Field("python", description="interpreter in the image")

    @field_validator("resources")
    @classmethod
    def _with_known_roles(
        cls, values: dict[str, dict[str, str | int | float | None]]
    ) -> dict[str, dict[str, str | int | float | None]]:
        _require_known("a role", values, ROLES)
        return values

    @field_validator("container")
    @classmethod
    def _with_fields_of_containers(cls, fields: dict[str, Any]) -> dict[str, Any]:
        _require_fields("a field of a container", fields, CONTAINER_FIELDS)
        _refuse_own(fields, ("name", "command", "args"))
        return fields

    @field_validator("pod")
    @classmethod
    def _with_fields_of_pods(cls, fields: dict[str, Any]) -> dict[str, Any]:
        _require_fields("a field of a pod", fields, POD_FIELDS)
        if fields.get("restartPolicy", "Never") != "Never":
            raise ValueError("restartPolicy is Never: the job replaces its pods")
        if not all(isinstance(entry, dict) for entry in fields.get("tolerations") or ()):
            raise ValueError("tolerations is a list of mappings, such as {key: gpu}")
        for container in fields.get("containers") or ():
            if container["name"] in ROLES:
                _refuse_own(container, ("command", "args"))
        return fields


def _require_fields(what: str, fields: dict[str, Any], known: Sequence[str]) -> None:
    """Raise ValueError for an unknown field, here or below, and for an entry without its name."""
    _require_known(what, fields, known)
    for name, naming in NAMED_BY.items():
        entries = fields.get(name) or []
        if not isinstance(entries, list):
            raise ValueError(f"{name} is a list")
        for entry in entries:
            if not isinstance(entry, dict) or not entry.get(naming):
                raise ValueError(f"each entry of {name} needs {naming}, not {entry!r}")
            if name in FIELDS_BELOW:
                _require_fields(f"a field of {name}", entry, FIELDS_BELOW[name])


def _require_known(what: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Raise ValueError for a name that Kubernetes does not know, with the nearest name."""
    for name in names:
        if name not in known:
            raise ValueError(f"{name} is not {what}{did_you_mean(str(name), known)}")


def _refuse_own(fields: dict[str, Any], own: Sequence[str]) -> None:
    """Raise ValueError for a field that makes a container the process of its role."""
    for name in own:
        if name in fields:
            raise ValueError(f"{name} of the container of a role is the launcher's")


class RaySection(PlanSection):
    """Settings of Ray: of the actors that run the processes."""

    resources: dict[str, dict[str, float | None]] = Field(
        {},
        description="of each process of a role (api, inference, teacher, environment, trainer), such as"
        " {trainer: {CPU: 16, memory: 64e9}}; else one CPU, and GPUs as the role needs them; null"
        " removes one",
    )
    strategy: Literal["PACK", "SPREAD"] = Field(
        "PACK", description="on few nodes, or spread over all of them"
    )


def label(text: str) -> str:
    """The text as a name of Kubernetes: lower case letters without accents, digits, dashes."""
    plain = unicodedata.normalize("NFKD", text.lower()).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
