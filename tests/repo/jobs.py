"""Jobs that `.ci/run` adds to `make test`: those whose files differ from their last whole run.

    python -m tests.repo.jobs              make targets to run, one a line; reasons on stderr
    python -m tests.repo.jobs --all        all of them
    python -m tests.repo.jobs --record     note in .ci/passed.json that everything passed

Files of a job: the modules that its roots import at any depth, those that a test names in a
string (`python -m NAME`), and its patterns. A campaign is recorded per file of tests, so that a
change runs the campaigns of its area. ALL=1 .ci/run records. A change of how jobs are chosen or
installed runs all.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.repo.sources import PRODUCT, ROOT, SOURCE, Graph, Source, import_graph, load

RECORD = Path(".ci/passed.json")
# How things are installed, chosen and run: a change of one concerns every job.
COMMON = (
    ".ci/run",
    "Makefile",
    "constraints.txt",
    "pyproject.toml",
    "pytest.ini",
    "scripts/bootstrap.py",
    "tests/conftest.py",
    "tests/examples.py",
    "tests/repo/jobs.py",
    "tests/repo/sources.py",
)
CAMPAIGN = re.compile(
    r"mark\.campaign|whole_sizes\(|^from (hypothesis|tests\.examples) import", re.MULTILINE
)


@dataclass(frozen=True)
class Job:
    """Files of a job, by modules that it starts from and by patterns below the root."""

    roots: tuple[str, ...] = ()  # a module, or a package with all below it
    patterns: tuple[str, ...] = ()


JOBS = {
    "browser": Job(
        ("tests.ui", "tests.workbench", "atroposlib.ui", "atroposlib.workbench"),
        (
            "atroposlib/ui/static/**/*",
            "atroposlib/ui/exported/*",
            "atroposlib/workbench/static/*",
        ),
    ),
    "adapters": Job(
        (
            "atroposlib.adapters",
            "tests.environments.test_library",
            "example_trainer.exchange.rows",
        ),
        ("tests/adapters/**/*.py",),
    ),
    "wheel": Job(("scripts.check_wheel", *("atroposlib", "example_trainer"))),
}
# Tests that read or start what no import names.
MORE = {
    "tests/integration/test_lost_nodes.py": Job(("atroposlib.cli", "example_trainer")),
    "tests/integration/test_whole_run.py": Job(("atroposlib.quickstart", "example_trainer")),
    "tests/integration/test_image.py": Job(
        ("atroposlib.cli", "example_trainer"), ("Dockerfile", "compose.yaml", ".dockerignore")
    ),
    "tests/benchmarks/test_gpu.py": Job(("benchmarks", "example_trainer")),
    "tests/torture/network/test_network.py": Job(
        ("example_trainer.grpo", "atroposlib.inference")
    ),
}


class Checkout:
    """Files of the repository and what each module imports."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self._contents: dict[Path, str] = {}  # digests of files
        sources = load(root).under(*SOURCE, "tests")
        self.modules: Mapping[str, Source] = {one.name: one for one in sources}
        self.graph: Graph = import_graph(sources)
        for source in sources:
            # Not of the product: the table of `atropos` names every command.
            if source.path.parts[0] not in PRODUCT:
                named = strings(source)
                named |= {f"{name}.__main__" for name in named}
                self.graph[source.name] |= self.modules.keys() & named

    def digest(self, job: Job) -> str:
        """Content of the files of a job, as a few hexadecimal digits."""
        paths = {self.modules[name].path for name in self.reached(job.roots)}
        paths |= {Path(path) for path in COMMON}
        for pattern in job.patterns:
            paths |= {path.relative_to(self.root) for path in self.root.glob(pattern)}
        sha = hashlib.sha256()
        for path in sorted(path for path in paths if (self.root / path).is_file()):
            if path not in self._contents:
                content = (self.root / path).read_bytes()
                self._contents[path] = hashlib.sha256(content).hexdigest()
            sha.update(f"{path} {self._contents[path]}\n".encode())
        return sha.hexdigest()[:16]

    def reached(self, roots: Iterable[str]) -> set[str]:
        """Modules of the roots and all that they import, at any depth."""
        todo = [
            name
            for name in self.graph
            if any(name == root or name.startswith(f"{root}.") for root in roots)
        ]
        reached: set[str] = set()
        while todo:
            name = todo.pop()
            if name not in reached:
                reached.add(name)
                todo += self.graph[name]
        return reached

    def campaigns(self) -> dict[str, Job]:
        """Jobs of the test files with a campaign or with properties, by path."""
        jobs = {}
        for source in self.modules.values():
            path = source.path.as_posix()
            if source.path.name.startswith("test_") and CAMPAIGN.search(source.text):
                more = MORE.get(path, Job())
                jobs[path] = Job((source.name, *more.roots), more.patterns)
        return jobs

    def digests(self) -> dict[str, str]:
        """Digest of every job and campaign file, by name."""
        jobs = {**JOBS, **self.campaigns()}
        return {name: self.digest(job) for name, job in sorted(jobs.items())}


@cache
def current() -> Checkout:
    """The repository of this file."""
    return Checkout()


def strings(source: Source) -> set[str]:
    """String constants of a file: `python -m NAME` imports NAME."""
    return {
        node.value
        for node in source.nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def to_run(now: Mapping[str, str], passed: Mapping[str, str]) -> list[str]:
    """Names of jobs whose digest is not the recorded one, in order."""
    return [name for name, digest in now.items() if passed.get(name) != digest]


def targets(names: Sequence[str], all_campaigns: int) -> list[str]:
    """Words for make: the jobs, and one campaign with its files where not all of them run."""
    jobs = [name for name in names if name in JOBS]
    files = [name for name in names if name not in JOBS]
    if files:
        jobs.append(
            "campaign" if len(files) == all_campaigns else f"campaign FILES={','.join(files)}"
        )
    return jobs


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every job")
    parser.add_argument("--record", action="store_true", help="note that every job passed")
    options = parser.parse_args(argv)
    now = current().digests()
    record = ROOT / RECORD
    if options.record:
        record.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        return 0
    passed = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    names = list(now) if options.all else to_run(now, passed)
    print(f"{len(names)} of {len(now)} jobs have files that changed", file=sys.stderr)
    print("\n".join(targets(names, len(now) - len(JOBS))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
