"""A run of AReaL's file: looks at the environment and the data, then translates.

assignments -> options -> environment, its settings, rows of its data -> sections of a plan
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.utils.datasets import load_rows
from example_trainer.launch.areal import values
from example_trainer.launch.areal.options import ENV, given_options, translated
from example_trainer.launch.areal.values import RunContext
from example_trainer.settings.files import Assignment, listed_keys

Notes = list[str]
IMPORT_TIMEOUT_S = 300.0
DATA = "train_dataset.path"


def read(
    assignments: Sequence[Assignment],
    environment: str | None,
    choose_engine: Callable[[Any], str],
    on_cluster: bool,
) -> tuple[dict[str, Any], Notes]:
    """Return sections of a plan, and what has no effect in it.

    Args:
        assignments: ``env.<field>`` sets a field of the environment that AReaL has no name for.
        environment: file or name, in place of the usual one of the data set.
        choose_engine: from that of the allocation, or "auto".

    Raises:
        ConfigError: an option is unknown or has no counterpart; says what to write.
        DatasetUnavailable: the file of the data cannot be read.
    """
    own = {one.key: one.value for one in assignments if one.key.startswith(ENV)}
    given = given_options([one for one in assignments if one.key not in own])
    run = look(given, values.environment_of(given, environment), on_cluster)
    run.engine = choose_engine(values.allocation_of(given).engine or "auto")
    tree = translated(values.as_rl(given), run)
    config = tree["environments"][0]["config"]
    config["env"] |= {key.removeprefix(ENV): value for key, value in own.items()}
    return tree, [f"{listed_keys(keys)}: {why}" for why, keys in run.notes.items()]


def look(given: Mapping[str, Any], environment: str, on_cluster: bool) -> RunContext:
    """Read the names of the environment's settings, and count the rows of local data."""
    path = given.get(DATA)
    is_local = path is not None and Path(path).exists()
    known = values.known_dataset(path)
    rows = known.rows if known and known.hub == path else None
    return RunContext(
        environment=environment,
        fields=fields_of(environment),
        on_cluster=on_cluster,
        data_is_local=is_local,
        rows=len(load_rows(str(path), "train", path=path, option=DATA)) if is_local else rows,
    )


def fields_of(environment: str) -> frozenset[str]:
    """Names of the settings of an environment, which another process imports."""
    code = "import sys; from atroposlib.cli.env_files import *; print_settings(sys.argv[1])"
    words = (sys.executable, "-c", code, environment)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"--env {environment}: not imported in {error.timeout:.0f} s"
        ) from error
    if done.returncode != 0:
        raise ConfigError(f"--env {environment}: {done.stderr.strip()}")
    return frozenset(json.loads(done.stdout.splitlines()[-1])["fields"])
