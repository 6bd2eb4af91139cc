"""Rows of the index of a run as records, for notebooks and scripts."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from atroposlib.api.archive.filters import FILTERS, require_known, where
from atroposlib.api.archive.index import Index
from atroposlib.errors import ConfigError
from atroposlib.wire.explore import RolloutRow

NAMES = RolloutRow.__struct_fields__


def load_rollouts(
    run: str | Path,
    frame: Literal["records", "pandas", "polars"] = "records",
    run_id: str | None = None,
    **filters: str,
) -> Any:
    """The rollouts of a run, running or ended: a list of dicts, oldest first.

    Args:
        run: the data directory of the rollout API.
        frame: ``pandas`` or ``polars`` for a DataFrame of that package.
        run_id: an earlier run of the directory, as ``atropos archive ls`` names it.
        filters: as of GET /explore/rollouts: ``env="math"``, ``reward="0.5..1"``.

    Raises:
        ConfigError: no index is there, or a filter has another value.
        UnknownGroup: the directory has no such run.
    """
    require_known(filters, *FILTERS[:-1])
    path, found = Path(run) / "archive" / "index.sqlite", where(filters)
    if not path.is_file():
        raise ConfigError(f"{run} has no archive/index.sqlite: give a --data-dir of run-api")
    index = Index(path, read_only=True).of_run(run_id)
    sql = f"SELECT {', '.join(NAMES)} FROM rollout {found.clause} ORDER BY gid, row"
    records = [dict(zip(NAMES, row)) for row in index.read(sql, found.values)]
    if frame == "records":
        return records
    return import_module(frame).DataFrame(
        {name: [one[name] for one in records] for name in NAMES}
    )
