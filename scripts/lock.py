"""Rewrite constraints.txt from the ranges of pyproject.toml (`make lock`; needs uv).

A universal resolution covers Python 3.10 to 3.13 on every platform; markers
separate the branches. Newest versions are taken: read the diff and run `make test` after it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Held back on purpose; everything else moves to the newest version its range admits.
HELD = ["torch==2.13.0"]
# Extras that conflict with the rest; their environments have no pins.
APART = ("verifiers", "verifiers-v0")
# torch pins its CUDA packages, and its CPU builds need none.
LEFT_TO_TORCH = ("cuda-", "nvidia-", "triton==")
HEADER = """\
# The versions `make install` takes, for Python 3.10 to 3.13. Written by scripts/lock.py.
# By hand: pip install -e ".[quickstart,dev]" -c constraints.txt
"""


def resolve() -> list[str]:
    """The pins that uv finds for all extras but APART, a requirement per line."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--universal"]
    command += ["--python-version", "3.10", "--no-annotate", "--no-header"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    for extra in re.findall(r"(?m)^([\w-]+) = \[", section):
        command += [] if extra in APART else ["--extra", extra]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--quiet", "--constraint", "-"]
    done = subprocess.run(
        command, cwd=ROOT, input="\n".join(HELD), text=True, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"lock: uv could not resolve (pip install uv?)\n{done.stderr}")
    return done.stdout.splitlines()


def main() -> None:
    pins = [line for line in resolve() if not line.startswith(LEFT_TO_TORCH)]
    (ROOT / "constraints.txt").write_text(HEADER + "\n".join(pins) + "\n", encoding="utf-8")
    print(f"lock: {len(pins)} pins in constraints.txt")


if __name__ == "__main__":
    main()
