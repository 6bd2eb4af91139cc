"""Checks of the machine and the options, model and engine: all before the first process starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from atroposlib.errors import AtroposError
from atroposlib.processes import Children, free_port
from atroposlib.quickstart import models
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.command.parser import missing
from atroposlib.utils.command.run_folder import DATA_FOLDERS, METRICS
from atroposlib.utils.http.sockets import port_problem
from atroposlib.utils.io import existing_folder, free_bytes
from example_trainer.quickstart import vllm_env
from example_trainer.quickstart.recipes import (
    Options,
    QuickstartPlan,
    Recipe,
    ServingEngine,
    Settings,
    disk_needed,
    dtype_for,
)

GIGABYTE = 10**9
NEEDED = ("torch", "transformers", "safetensors", "fastapi", "uvicorn", "apsw", "rich")
NEEDED_FOR_GGUF = ("gguf", "accelerate", "pip")


class NotReady(AtroposError):
    """Preflight failure: nothing was started."""


def check(options: Options, recipe: Recipe, cache: Path) -> None:
    """Check every requirement. Raises NotReady with a line about the first failure."""
    if options.model not in models.NAMED:
        models.model_directory(options.model)
    converted = cache / models.SMOLLM2.name / "config.json"
    converts = options.model == "smollm2" and not converted.is_file()
    require_packages(NEEDED + (NEEDED_FOR_GGUF if converts else ()))
    for name, port in (("--api-port", options.api_port), ("--port", options.server_port)):
        require_free_port(name, port)
    require_unused(options.out)
    require_writable(options.out)
    require_disk(options.out, disk_needed(recipe), "the run")
    needed = models.SMOLLM2.bytes_needed if converts else 0
    if options.engine is ServingEngine.VLLM and not vllm_env.is_ready(cache):
        needed += vllm_env.BYTES_NEEDED
    if needed:
        require_writable(cache)
        require_disk(cache, needed, "the model and engine cache")


def cpu_info(name: str) -> str:
    """A field of the first processor, as ``flags``; empty where the system does not list it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(name):
                return line.partition(":")[2].strip()
    return ""


def own_settings(environment: Path, given: Settings = ()) -> dict[str, Any]:
    """Return what the recipe takes over from a user's file, which another process imports.

    Raises NotReady: the file cannot be used, or has no setting of a name that was given.
    """
    code = "import sys; from atroposlib.cli.env_files import *; print_settings(sys.argv[1])"
    words = (sys.executable, "-c", code, str(environment))
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotReady(f"--environment {done.stderr.strip()}")
    described = json.loads(done.stdout.splitlines()[-1])
    for name, _ in given:
        if name not in described["fields"]:
            hint = did_you_mean(
                f"--env.{name}", [f"--env.{field}" for field in described["fields"]]
            )
            raise NotReady(f"--env.{name}: {environment.name} has no such setting{hint}")
    return dict(described["own"])


def require_packages(names: tuple[str, ...]) -> None:
    if lacking := missing(*names):
        raise NotReady(f"needs {', '.join(lacking)}: pip install 'atropos-rl[quickstart]'")


def require_free_port(option: str, port: int) -> None:
    if reason := port_problem(port):
        raise NotReady(f"{option} {port} cannot be used: {reason}")


def require_unused(out: Path) -> None:
    """Require a new directory: the API would resume an old run and mix it with the new run."""
    if any((out / name).exists() for name in (METRICS, *DATA_FOLDERS, "report.html")):
        raise NotReady(f"--out {out} already holds a run; choose another directory")


def require_writable(directory: Path) -> None:
    """Require that files can be written, without making the directory."""
    try:
        with tempfile.TemporaryFile(dir=existing_folder(directory)):
            pass
    except OSError as error:
        raise NotReady(f"cannot write to {directory}: {error.strerror}") from error


def require_disk(directory: Path, needed_bytes: int, what: str) -> None:
    free = free_bytes(directory)
    if free < needed_bytes:
        raise NotReady(
            f"{what} needs {needed_bytes / GIGABYTE:.1f} GB in {directory}, "
            f"{free / GIGABYTE:.1f} GB are free"
        )


def new_directory(options: Options) -> Path:
    """Make and return the directory of the run; no second run gets the same numbered directory."""
    out = options.out
    for number in count(2):
        with suppress(FileExistsError):
            out.mkdir(parents=True, exist_ok=not options.numbered)
            break
        out = options.out.with_name(f"{options.out.name}-{number}")
    return out


def draft(options: Options, recipe: Recipe, repo: Path) -> QuickstartPlan:
    """Return the plan for this machine, before its model and engine are provided."""
    # A process may have fewer cores than the machine. macOS does not have the function.
    usable = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
    return QuickstartPlan(
        options=options,
        recipe=recipe,
        model_dir=Path(options.model),
        serve_dir=Path(options.model),
        repo=repo,
        cores=len(usable(0)),
        dtype=dtype_for(options, recipe, cpu_info("flags").split()),
        api_port=options.api_port or free_port(),
        server_port=options.server_port or free_port(),
    )


def prepare(
    plan: QuickstartPlan, cache: Path, children: Children, on_wait: Callable[[str], None]
) -> QuickstartPlan:
    """Provide model and engine; return the plan with their places."""
    options = plan.options
    on_wait(models.preparation(options.model, cache))
    model_dir = models.provide(
        options.model, seed=options.seed, out=options.out, cache=cache, children=children
    )
    if options.engine is ServingEngine.LOCAL:
        return replace(plan, model_dir=model_dir, serve_dir=model_dir)
    on_wait(f"installing {vllm_env.VLLM} (once, minutes; kept in {cache})")
    return replace(
        plan,
        model_dir=model_dir,
        engine_python=str(vllm_env.provide(cache, children)),
        serve_dir=models.untied_copy(model_dir, options.out / "served"),
    )
