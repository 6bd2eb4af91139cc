"""pyproject.toml matches the imports of the code; torch stays out of the core."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from importlib.metadata import packages_distributions
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HEAVY = ("accelerate", "datasets", "gguf", "gradio", "torch", "vllm", "wandb")
# Required by a package we call; never imported directly.
INDIRECT = {"jinja2": "transformers renders chat templates with it"}
# Imported where it is at hand, with a clear message where it is not; no extra installs it.
# Python 3.10 reads only top_level.txt of a distribution, and this one has none.
PACKAGED_AS = {
    "aviary": ["fhaviary"],
    "markdown_it": ["markdown-it-py"],
    "sklearn": ["scikit-learn"],
}
OPTIONAL = {
    "bitsandbytes": "8-bit AdamW, CUDA only",
    "flash-attn": "is compiled for the CUDA and the torch of a machine",
    "vllm": "has an environment of its own",
}
APART = ("verifiers",)  # its extras have separate environments, without pins
OURS = ("atroposlib", "environments", "example_trainer", "helpers")
LIGHT = ["atroposlib", "atroposlib.wire", "atroposlib.client", "atroposlib.envs.base"]
LIGHT += ["atroposlib.api.server", "atroposlib.cli.run_api"]


@pytest.fixture(scope="module")
def project(root) -> dict[str, Any]:
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def canonical(requirement: str) -> str:
    """``uvicorn[standard]>=0.30`` -> ``uvicorn``; ``PyYAML`` -> ``pyyaml``."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name.group()).lower()


def distributions_imported(modules) -> dict[str, str]:
    """Distribution -> one place in the product that imports it."""
    known = {**PACKAGED_AS, **packages_distributions()}
    found: dict[str, str] = {}
    for module in modules.values():
        for imported in module.imports:
            top = imported.target.split(".")[0]
            if top in sys.stdlib_module_names or top in OURS:
                continue
            name = canonical(known.get(top, [top])[0])
            found.setdefault(name, f"{module.path}:{imported.line}")
    return found


def test_the_core_has_no_heavy_dependency(project):
    core = {canonical(entry) for entry in project["dependencies"]}
    assert core.isdisjoint(HEAVY)


def test_every_dependency_has_a_range(project):
    extras = project["optional-dependencies"]
    entries = project["dependencies"] + [e for name in extras for e in extras[name]]
    unbounded = [
        e for e in entries if not e.startswith(("atropos-rl[", "types-")) and "<" not in e
    ]
    assert unbounded == []


def test_every_core_dependency_is_imported_somewhere(project, modules):
    used = set(distributions_imported(modules)) | set(INDIRECT)
    assert sorted({canonical(e) for e in project["dependencies"]} - used) == []


def test_every_imported_package_is_declared(project, modules):
    extras = project["optional-dependencies"]
    declared = {canonical(e) for e in project["dependencies"]} | set(OPTIONAL)
    declared |= {canonical(e) for name in extras for e in extras[name]}
    missing = {k: v for k, v in distributions_imported(modules).items() if k not in declared}
    assert missing == {}


def test_every_pin_lies_in_its_range(root, project):
    from packaging.requirements import Requirement

    extras = project["optional-dependencies"]
    ranges = [Requirement(e) for e in project["dependencies"]]
    ranges += [Requirement(e) for name in extras for e in extras[name]]
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    for wanted in ranges:
        if wanted.name in (project["name"], *APART):
            continue
        matching = [p for p in pins if canonical(p.name) == canonical(wanted.name)]
        assert matching, f"{wanted.name} has no pin: make lock"
        for pin in matching:
            (version,) = [clause.version for clause in pin.specifier]
            problem = f"{pin} is outside of {wanted}: make lock"
            assert wanted.specifier.contains(version), problem


def test_the_page_on_installation_lists_every_extra(project, root):
    page = (root / "docs/install.md").read_text("utf-8")
    for_developers = {"dev", "bench", "all", "example_trainer"}
    extras = {extra for extra in project["optional-dependencies"] if "-test" not in extra}
    assert not {extra for extra in extras - for_developers if f"`{extra}`" not in page}


def test_every_console_command_exists(project):
    for command, target in project["scripts"].items():
        module, function = target.split(":")
        assert callable(getattr(import_module(module), function)), command


@pytest.mark.parametrize("module", LIGHT)
def test_importing_the_core_loads_no_heavy_dependency(root, module):
    code = f"import {module}, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()).isdisjoint({*HEAVY, "transformers"})


def test_ci_runs_the_test_command_of_the_readme(root):
    assert re.search(r"^make test\b", (root / "README.md").read_text("utf-8"), re.MULTILINE)
    assert re.search(r"^make test\b", (root / ".ci/run").read_text("utf-8"), re.MULTILINE)
