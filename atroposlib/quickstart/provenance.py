"""Provenance of a run, for its report: versions, commit, processor, the command that repeats it."""

from __future__ import annotations

import platform
import shlex
import subprocess
from importlib.metadata import version
from pathlib import Path

from atroposlib import __version__
from atroposlib.quickstart.recipes import Options

GIT_TIMEOUT_S = 5.0


def provenance(repo: Path) -> dict[str, str]:
    """Return what the settings of a run do not name, and its result depends on."""
    packages = (f"{name} {version(name)}" for name in ("torch", "transformers"))
    return {
        "packages": ", ".join([f"atroposlib {__version__}", *packages]),
        "commit": commit(repo),
        "processor": processor(),
    }


def commit(repo: Path) -> str:
    """Return the commit of a checkout, with ``-dirty`` if files differ from it."""
    if not (repo / ".git").exists():  # an installed package, perhaps inside other sources
        return "none: not a checkout"
    argv = ("git", "-C", str(repo), "describe", "--always", "--dirty", "--abbrev=12")
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=GIT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown: git did not answer"
    return done.stdout.strip() or "unknown"


def processor() -> str:
    """Return the name of the processor; Linux names it in /proc/cpuinfo only."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def repeat_command(options: Options) -> str:
    """Return the command that starts the same run again, in a new directory."""
    words = ["python", "-m", "atroposlib.quickstart", "--model", options.model]
    words += ["--engine", options.engine.value, "--seed", str(options.seed)]
    words += ["--steps", str(options.steps)] if options.steps is not None else []
    words += ["--environment", str(options.environment)] if options.environment else []
    return shlex.join(words)
