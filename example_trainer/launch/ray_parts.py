"""Processes of a run as bundles of a Ray placement group, and reasons for a wait. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from example_trainer.launch import roles
from example_trainer.launch.local import TRAINER
from example_trainer.launch.plan import Plan


@dataclass(frozen=True)
class Part:
    """A process: words of ``atropos-launch node``, resources by Ray's names."""

    name: str
    role: str
    words: tuple[str, ...]
    resources: dict[str, float]


def parts(plan: Plan) -> list[Part]:
    """Return every process in the order of the bundles."""
    of_roles, processes = roles.gpus_of(plan), list[Part]()

    def add(role: str, name: str, index: int = 0, gpus: int = 0) -> None:
        amounts = {
            "CPU": 1,
            "GPU": gpus or of_roles.get(role),
            **plan.ray.resources.get(role, {}),
        }
        resources = {key: float(value) for key, value in amounts.items() if value}
        processes.append(Part(name, role, ("--role", role, "--index", str(index)), resources))

    add("api", "api")
    for i in range(plan.inference.count):
        add("inference", f"inference-{i}", i)
    for i, (teacher, section) in enumerate(plan.teachers.items()):
        add("teacher", f"teacher-{teacher}", i, roles.gpus_of_server(section))
    for i, wanted in enumerate(plan.environments):
        name = f"env-{i}-{roles.environment_name(plan, i)}"
        for copy in range(wanted.count):
            add("environment", name + (f"-{copy}" if wanted.count > 1 else ""), i)
    for node in range(plan.trainer.nodes):
        add(TRAINER, TRAINER + (f"-{node}" if plan.trainer.nodes > 1 else ""))
    return processes


def actor_options(resources: Mapping[str, float]) -> dict[str, object]:
    """The resources as options of an actor, whose names differ from a bundle's."""
    custom = {k: v for k, v in resources.items() if k not in ("CPU", "GPU", "memory")}
    counts = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0)}
    return {**counts, "memory": resources.get("memory"), "resources": custom}


def missing(
    waiting: Sequence[Part], nodes: Sequence[Mapping[str, float]], free: Mapping[str, float]
) -> str:
    """Reason why processes are not placed.

    Args:
        nodes: all resources of each.
        free: of all nodes together.
    """
    needed, largest = Counter[str](), dict[str, Part]()
    for part in waiting:
        needed.update(part.resources)
        for key, amount in part.resources.items():
            if amount > max([node.get(key, 0) for node in nodes], default=0):
                largest.setdefault(key, part)
    lacking = [
        f"{amount:g} {key} ({free.get(key, 0):g} free)"
        for key, amount in needed.items()
        if amount > free.get(key, 0)
    ]
    lacking += [
        f"a node with {p.resources[key]:g} {key} for {p.name}" for key, p in largest.items()
    ]
    return ", ".join(lacking) or "nodes with room for each"
