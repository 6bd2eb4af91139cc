"""Dependencies point one way: a part can be read, tested and replaced without its users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import pytest

FOUNDATION = (
    "atroposlib.type_definitions",
    "atroposlib.wire",
    "atroposlib.errors",
    "atroposlib.text",
    "atroposlib.settings",
    "atroposlib.certificate",
)
LIBRARY = (
    "atroposlib.utils",
    "atroposlib.client",
    "atroposlib.frontend",
    "atroposlib.run_status",
    "atroposlib.trackers",
    "atroposlib.ui",
)
GENERATION = "atroposlib.generation"

# Each chain goes upwards: a module imports its own stage and those before it. A module is
# at the stage with the longest prefix of its name.
ENVIRONMENTS = (
    FOUNDATION,
    LIBRARY,
    (GENERATION,),
    ("atroposlib.envs.server_handling",),  # the original's import paths
    ("atroposlib.envs.settings", "atroposlib.envs.reward_fns"),
    ("atroposlib.envs.rollout",),
    ("atroposlib.envs.journal", "atroposlib.envs.teaching"),
    ("atroposlib.envs.curriculum",),
    ("atroposlib.envs.runtime",),
    ("atroposlib.envs.cli",),
    ("atroposlib.envs",),  # base, and the names of the original
    (
        "atroposlib.envs.eval",
        "atroposlib.envs.function_env",
        "atroposlib.envs.teacher_distillation_env",
    ),
    ("atroposlib.adapters",),
    ("atroposlib.environments.common", "helpers"),
    ("atroposlib.environments",),
)
SAMPLING_A_MODEL = (
    (*FOUNDATION, *LIBRARY),
    (f"{GENERATION}.configs", f"{GENERATION}.sampling", f"{GENERATION}.chat.tool_parsers"),
    (f"{GENERATION}.chat",),
    (f"{GENERATION}.engines",),
    (f"{GENERATION}.sessions",),
    (f"{GENERATION}.routing",),
    (f"{GENERATION}.proxy.apis",),
    (f"{GENERATION}.proxy",),
)
ROLLOUT_API = (
    (*FOUNDATION, "atroposlib.utils", "atroposlib.run_status", "atroposlib.ui"),
    ("atroposlib.api.common",),
    ("atroposlib.api.decisions", "atroposlib.api.store.sql"),
    ("atroposlib.api.store.sqlite", "atroposlib.api.store.postgres"),
    ("atroposlib.api.codec", "atroposlib.api.store"),
    ("atroposlib.api.archive",),
    ("atroposlib.api.guards",),
    ("atroposlib.api.run",),
    ("atroposlib.api.web",),
    ("atroposlib.api",),  # server, and the face of the package
)
INFERENCE = (
    (*FOUNDATION, "atroposlib.utils", "atroposlib.client"),
    ("atroposlib.inference.engine.weights",),
    ("atroposlib.inference.engine",),
    ("atroposlib.inference.http",),
    ("atroposlib.inference",),
)
TRAINER = (
    (*FOUNDATION, *LIBRARY, "atroposlib.processes"),
    ("example_trainer.state", "example_trainer.data", "example_trainer.settings"),
    ("example_trainer.losses", "example_trainer.distributed"),
    ("example_trainer.model",),
    ("example_trainer.advantage", "example_trainer.weights"),
    ("example_trainer.run",),
    ("example_trainer.update",),
    ("example_trainer.checkpoint",),
    ("example_trainer.exchange",),
    ("example_trainer",),  # the loop, and the names of the original
    ("example_trainer.supervised",),
    ("example_trainer.launch", "example_trainer.run.__main__"),
    ("atroposlib.ui", "atroposlib.quickstart"),
    ("example_trainer.quickstart",),
)
CHAINS = {
    "environments": ENVIRONMENTS,
    "generation": SAMPLING_A_MODEL,
    "api": ROLLOUT_API,
    "inference": INFERENCE,
    "trainer": TRAINER,
}
# Standalone packages, with the other modules they may import.
ALONE: Mapping[str, tuple[str, ...]] = {
    "atroposlib.inference": (*FOUNDATION, "atroposlib.utils", "atroposlib.client"),
    "atroposlib.processes": (
        "atroposlib.errors",
        "atroposlib.text",
        "atroposlib.utils.command.signals",
    ),
    "atroposlib.trackers": ("atroposlib.errors", "atroposlib.utils.command.plugins"),
    GENERATION: (*FOUNDATION, "atroposlib.utils"),
    "example_trainer": (
        "atroposlib.errors",
        "atroposlib.text",
        "atroposlib.settings",
        "atroposlib.wire",
        "atroposlib.client",
        "atroposlib.run_status",
        "atroposlib.trackers",
        "atroposlib.processes",
        "atroposlib.utils",
        "atroposlib.quickstart",
        "atroposlib.ui",
    ),
    "atroposlib.quickstart": (*FOUNDATION, "atroposlib.processes", "atroposlib.utils"),
    "atroposlib.run_status": (*FOUNDATION, "atroposlib.trackers", "atroposlib.utils"),
    "atroposlib.frontend": (*FOUNDATION, "atroposlib.ui", "atroposlib.utils"),
    "atroposlib.testing": (*FOUNDATION, "atroposlib.utils.models.vision"),
    "atroposlib.ui": ("atroposlib.text",),
}
OURS = ("atroposlib", "environments", "example_trainer", "helpers")


def covers(prefix: str, module: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def stage_of(module: str, chain: Sequence[tuple[str, ...]]) -> int | None:
    """Index of the stage with the longest matching prefix; None outside the chain."""
    found = [
        (len(prefix), stage)
        for stage, prefixes in enumerate(chain)
        for prefix in prefixes
        if covers(prefix, module)
    ]
    return max(found)[1] if found else None


def climbs(module: str, target: str, chain: Sequence[tuple[str, ...]]) -> bool:
    """Whether ``module`` of this chain imports ``target`` from above or from outside of it."""
    here, there = stage_of(module, chain), stage_of(target, chain)
    return here is not None and here > 0 and (there is None or there > here)


def our_imports(modules):
    for module in modules.values():
        for imported in module.imports:
            if imported.target.split(".")[0] in OURS and imported.target != "atroposlib":
                yield module, imported


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_no_module_imports_from_a_later_stage(modules, chain):
    wrong = [
        f"{module.path}:{imported.line} imports {imported.target}"
        for module, imported in our_imports(modules)
        if climbs(module.name, imported.target, chain)
    ]
    assert wrong == []


def test_the_foundation_imports_no_module_above_it(modules):
    wrong = [
        f"{module.path}:{imported.line} imports {imported.target}"
        for module, imported in our_imports(modules)
        if any(covers(one, module.name) for one in FOUNDATION)
        and not any(covers(one, imported.target) for one in FOUNDATION)
    ]
    assert wrong == []


@pytest.mark.parametrize("part", ALONE)
def test_a_standalone_package_imports_only_its_allowed_modules(modules, part):
    allowed = (part, *ALONE[part])
    wrong = [
        f"{module.path}:{imported.line} imports {imported.target}"
        for module, imported in our_imports(modules)
        if covers(part, module.name)
        and not any(covers(prefix, imported.target) for prefix in allowed)
    ]
    assert wrong == []


def test_no_import_cycle_exists_even_in_functions_or_type_checking_blocks(modules):
    edges = {name: module.targets & modules.keys() for name, module in modules.items()}
    assert find_cycle(edges) is None


def find_cycle(edges: Mapping[str, Set[str]]) -> list[str] | None:
    """The first cycle of a depth-first walk, as a path that ends where it began."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        for target in sorted(edges[node] - {node}):
            if (cycle := visit(target, [*path, node])) is not None:
                return cycle
        done.add(node)
        return None

    for start in sorted(edges):
        if (cycle := visit(start, [])) is not None:
            return cycle
    return None


def test_upward_imports_and_import_cycles_are_detected():
    assert climbs("atroposlib.envs.rollout.groups", "atroposlib.envs.base", ENVIRONMENTS)
    assert not climbs("atroposlib.envs.base", "atroposlib.envs.rollout.groups", ENVIRONMENTS)
    assert climbs("atroposlib.envs.base", "atroposlib.api.server", ENVIRONMENTS)
    assert climbs("atroposlib.api.store.memory", "atroposlib.api.routes_trainer", ROLLOUT_API)
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
