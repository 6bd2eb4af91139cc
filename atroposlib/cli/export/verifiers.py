"""The files of a package for verifiers 0.4: a task set, a harness and an environment."""

from __future__ import annotations

import json
from string import Template

from atroposlib.cli.export import Exported

MODULE = Template(
    '''"""The environment $name of atroposlib, as a task set, harness and environment of verifiers."""

${imports}from atroposlib.adapters.inside.verifiers_export import (
    ExportedEnv,
    ExportedHarness,
    ExportedTaskset,
)
from atroposlib.cli.env_files import load

__all__ = ["Taskset", "Harness", "Env"]


class Taskset(ExportedTaskset):
    environment = $expression


class Harness(ExportedHarness):
    environment = Taskset.environment


class Env(ExportedEnv):
    """One rollout of the environment, in this process."""
'''
)
PYPROJECT = Template("""[build-system]
requires = ["hatchling>=1.25,<2"]
build-backend = "hatchling.build"

[project]
name = "$package"
version = "0.1.0"
description = "The environment $name of atroposlib for verifiers"
readme = "README.md"
requires-python = ">=3.11"
dependencies = $requires

[tool.hatch.metadata]
allow-direct-references = true

[tool.hatch.build.targets.wheel]
only-include = $included
""")
README = Template("""# $package

The environment `$name` of atroposlib (the distribution `atropos-rl`) for
[verifiers](https://pypi.org/project/verifiers/) 0.4.

    pip install .
    vf-eval $package -n 3 --model MODEL --client.base-url http://127.0.0.1:9001/v1
    vf-validate $package --only-gold

| option | meaning |
|---|---|
| `--env.taskset.settings '{"max_tokens": 64}'` | settings of the environment, as of `atropos env info` |
| `--env.taskset.held-out true` | the held-out tasks instead of the trained ones |

The rollout runs in the process of verifiers; a rollout without a score is an error of the task there.
""")


def files(exported: Exported) -> dict[str, str]:
    """Texts of the package ``NAME_verifiers``, by file name."""
    package = f"{exported.name}_verifiers".lower()  # verifiers imports ids in lower case
    requires = [*exported.requires, "verifiers>=0.4,<0.5"]
    texts = {
        "package": package,
        "name": exported.name,
        "expression": exported.expression,
        "imports": "from pathlib import Path\n\n" if exported.copied else "",
        "requires": json.dumps(requires),
        "included": json.dumps([f"{package}.py", *exported.copied]),
    }
    return {
        f"{package}.py": MODULE.substitute(texts),
        "pyproject.toml": PYPROJECT.substitute(texts),
        "README.md": README.substitute(texts),
    }
