"""Rewrite README's map: one line per folder and source file, out of their own docstrings.

    python scripts/readme_map.py

The phrase of a file is the first sentence of its docstring, so the two cannot disagree.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOPS = (
    "atroposlib",
    "environments",
    "helpers",
    "example_trainer",
    "scripts",
    "benchmarks",
)
BLOCK = re.compile(r"(<!-- map -->\n```\n).*?(```\n<!-- /map -->)", re.DOTALL)
NAME_WIDTH = 30
# Where the order of the alphabet would hide the order of the flow.
FIRST = {
    "atroposlib": ("wire.py", "errors.py", "client", "envs", "inference", "api"),
    "atroposlib/envs/server_handling": (
        "configs.py",
        "server_manager.py",
        "server_baseline.py",
        "backends.py",
        "generation.py",
        "segments.py",
        "managed_server.py",
        "sequences.py",
    ),
    "atroposlib/envs/function_env": ("env.py", "config.py", "data.py", "model.py"),
    "atroposlib/envs": ("base.py", "groups.py", "pacing.py", "workers.py", "delivery.py"),
    "atroposlib/api": (
        "server.py",
        "records.py",
        "web",
        "guards",
        "codec",
        "run",
        "decisions",
    ),
    "atroposlib/api/run": ("service.py", "core.py", "posts.py", "claims.py"),
    "atroposlib/api/decisions": ("run_state.py", "batching.py", "exact_fill.py", "mix.py"),
    "atroposlib/api/store": ("base.py", "sql.py", "memory.py", "sqlite.py", "postgres.py"),
    "atroposlib/inference": ("server.py", "engine.py", "scheduler.py"),
    "atroposlib/quickstart": ("launch.py", "plan.py", "commands.py"),
    "example_trainer": (
        *("grpo.py", "config.py", "settings", "feed.py", "data.py", "prepare.py"),
        *("advantages.py", "shaping.py", "gae.py", "packing.py", "attention.py"),
        *("model.py", "scoring.py", "head.py", "learn.py", "spread.py", "losses", "optim.py"),
        *("weights", "alignment.py", "diagnosis.py", "recovery.py", "snapshots.py"),
    ),
}


def main() -> None:
    readme = ROOT / "README.md"
    lines = "\n".join(line for top in TOPS for line in folder_lines(ROOT / top, depth=0))
    text = readme.read_text(encoding="utf-8")
    readme.write_text(BLOCK.sub(lambda m: m[1] + lines + "\n" + m[2], text), encoding="utf-8")


def folder_lines(folder: Path, depth: int) -> list[str]:
    """The line of ``folder`` and, further in, those of its files and folders."""
    name = folder.name if depth else str(folder.relative_to(ROOT))
    lines = [entry(f"{name}/", first_sentence(folder / "__init__.py"), depth)]
    for path in sorted(children(folder), key=lambda path: reading_order(folder, path)):
        if path.suffix == ".py":
            lines.append(entry(path.name, first_sentence(path), depth + 1))
        else:
            lines += folder_lines(path, depth + 1)
    return lines


def children(folder: Path) -> set[Path]:
    """Source files of ``folder`` and folders that hold some; what git ignores is left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", str(folder)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / line for line in listed.stdout.splitlines() if line.endswith(".py")]
    return {
        folder / file.relative_to(folder).parts[0]
        for file in files
        if file.exists() and file.name not in ("__init__.py", "__main__.py")
    }


def reading_order(folder: Path, path: Path) -> tuple[int, bool, str]:
    first = FIRST.get(str(folder.relative_to(ROOT)), ())
    place = first.index(path.name) if path.name in first else len(first)
    return place, path.suffix != ".py", path.name


def entry(name: str, phrase: str, depth: int) -> str:
    indent = "  " * depth
    # A name as long as the column still ends in a space: the map is read back by a test.
    return f"{indent}{name:<{NAME_WIDTH - len(indent) - 1}} {phrase}".rstrip()


def first_sentence(file: Path) -> str:
    """Of the docstring, without markup and the final stop; empty without one."""
    if not file.exists():
        return ""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    plain = re.sub(r":\w+:`(\w+)`", r"\1", paragraph).replace("``", "")
    return re.split(r"(?<=\w\w)[.:](?= [A-Z]|$)|; ", plain)[0].rstrip(".:")


if __name__ == "__main__":
    main()
