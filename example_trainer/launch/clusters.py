"""Sections of a plan about clusters: Kubernetes and Ray."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class PlanSection(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class KubernetesSection(PlanSection):
    """Settings of Kubernetes: of the pods in the JobSet that is written."""

    image: str = Field("", description="container image with this package; required")
    volume_claim: str = Field(
        "",
        description="PersistentVolumeClaim that all pods mount at `out` and write; required",
    )
    queue: str | None = Field(
        None, description="LocalQueue of Kueue, which starts all pods together or none"
    )
    resources: dict[str, dict[str, str | int | None]] = Field(
        {},
        description="of each pod of a role (api, inference, environment, trainer), such as"
        " {api: {cpu: 4, memory: 16Gi}}; null removes one of the launcher's",
    )
    gpu: str = Field("nvidia.com/gpu", description="resource name of a GPU")
    pod: dict[str, Any] = Field(
        {}, description="more fields of every pod, such as nodeSelector and tolerations"
    )
    python: str = Field("python", description="interpreter in the image")


class RaySection(PlanSection):
    """Settings of Ray: of the actors that run the processes."""

    resources: dict[str, dict[str, float | None]] = Field(
        {},
        description="of each process of a role (api, inference, environment, trainer), such as"
        " {trainer: {CPU: 16, memory: 64e9}}; else one CPU, and GPUs as the role needs them; null"
        " removes one",
    )
    strategy: Literal["PACK", "SPREAD"] = Field(
        "PACK", description="on few nodes, or spread over all of them"
    )
