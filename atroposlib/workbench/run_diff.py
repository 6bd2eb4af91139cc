"""Comparison of two runs: settings, code, curves at equal steps and tokens, paired tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.api.archive.filters import name_of_label
from atroposlib.errors import ConfigError
from atroposlib.run_status.ended import RunOutcome
from atroposlib.workbench.overlay import (
    AXES,
    Axis,
    band_of,
    curve_keys,
    points_of,
    value_at,
)
from atroposlib.workbench.paired import comparison_of
from atroposlib.workbench.run_folders import RunDirectory, RunFiles, totals_of
from atroposlib.workbench.run_settings import NOT_SET, RecordedSettings, differing_settings
from atroposlib.workbench.run_verdict import run_verdict
from atroposlib.workbench.task_results import TaskResults, task_results

MAX_CURVES = 12
PACKAGE = "atropos"


@dataclass(frozen=True)
class Side:
    """Contents of the files of a run."""

    name: str
    state: str
    line: str
    settings: RecordedSettings
    rows: Sequence[Mapping[str, Any]]
    sources: Mapping[str, Mapping[str, str]]
    code: str = ""  # version and digest of this package; empty: unknown

    def facts(self) -> dict[str, Any]:
        about = {"name": self.name, "state": self.state, "line": self.line}
        return {**about, **totals_of(self.rows)}


def side_of(run: RunDirectory, files: RunFiles, name: str = "") -> Side:
    verdict, _ = run_verdict(run, files)
    outcome = files.outcome() or RunOutcome("running")
    return Side(
        name=name or run.name,
        state=verdict["state"],
        line=verdict["line"],
        settings=files.settings(),
        rows=files.steps(),
        sources=files.sources(),
        code=outcome.code,
    )


def diff_of_runs(
    a: RunDirectory, b: RunDirectory, metric: str, solved: float, steps: str | None
) -> dict[str, Any]:
    """The comparison as JSON values; a run is named by its folder, or its path where names agree.

    Raises ConfigError: a run has no number of that name.
    """
    alike = a.name == b.name
    files = [RunFiles(run) for run in (a, b)]
    sides = [
        side_of(run, file, str(run.path) if alike else "") for run, file in zip((a, b), files)
    ]
    result = comparison_of_sides(*sides)
    try:
        of_a, of_b = task_results(files, metric, steps)
        result["tasks"] = paired_tasks(of_a, of_b, metric, solved)
    except ConfigError as error:
        if metric != "reward" or steps is not None:
            raise
        result["tasks"], result["tasks_missing"] = None, str(error)
    return result


def comparison_of_sides(a: Side, b: Side) -> dict[str, Any]:
    """Everything but the tasks. Pure."""
    keys = curve_keys([a.rows, b.rows])[:MAX_CURVES]
    return {
        "a": a.facts(),
        "b": b.facts(),
        "settings": [
            setting_of(name, a.settings, b.settings)
            for name in differing_settings([a.settings, b.settings])
        ],
        "settings_known": [bool(side.settings.values) for side in (a, b)],
        "code": code_lines(a, b),
        "figures": [figures_of(key, a.rows, b.rows) for key in keys],
        "curves": {
            axis: {key: [points_of(side.rows, key, axis) for side in (a, b)] for key in keys}
            for axis in AXES
        },
    }


def setting_of(name: str, a: RecordedSettings, b: RecordedSettings) -> dict[str, str]:
    """A setting of both, with its places."""
    return {
        "name": name,
        "a": a.values.get(name, NOT_SET),
        "b": b.values.get(name, NOT_SET),
        "place_a": a.places.get(name, ""),
        "place_b": b.places.get(name, ""),
    }


def code_lines(a: Side, b: Side) -> list[dict[str, Any]]:
    """Package, version and digest of the code of both, a line per part."""
    parts: list[dict[str, Any]] = [{"name": PACKAGE, "a": a.code, "b": b.code}]
    texts = [source_texts(side.sources) for side in (a, b)]
    for name in dict.fromkeys([*texts[0], *texts[1]]):
        parts.append({"name": name, "a": texts[0].get(name, ""), "b": texts[1].get(name, "")})
    for part in parts:
        part["same"] = part["a"] == part["b"] if part["a"] and part["b"] else None
    return parts


def source_texts(sources: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """``package version digest`` by the name of the environment; all, where its processes differ."""
    texts: dict[str, dict[str, None]] = {}
    for label, source in sources.items():
        words = (source.get(word, "") for word in ("package", "version", "digest"))
        text = " ".join(word for word in words if word)
        texts.setdefault(name_of_label(label), {})[text] = None
    return {name: ", ".join(distinct) for name, distinct in texts.items()}


def figures_of(
    key: str, a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The last value of both, and both where the shorter run ends: at equal steps and tokens."""
    curves = {axis: [points_of(rows, key, axis) for rows in (a, b)] for axis in AXES}
    last = [curve[-1][1] if curve else None for curve in curves["step"]]
    equal: dict[str, Any] = {axis: equal_values(curves[axis], axis) for axis in AXES}
    return {"key": key, **equal, "last": last}


def equal_values(curves: Sequence[Sequence[tuple[float, float]]], axis: Axis) -> Any:
    """``at`` and the values there; None where the curves do not overlap."""
    shared = band_of(curves) if all(curves) else []
    if not shared:
        return None
    at = shared[-1][0]
    values = [value_at(curve, at) for curve in curves]
    return {"at": at, "a": values[0], "b": values[1]}


def paired_tasks(a: TaskResults, b: TaskResults, metric: str, solved: float) -> dict[str, Any]:
    """The paired comparison over tasks that both have."""
    alone = [len(x.items.keys() - y.items.keys()) for x, y in ((a, b), (b, a))]
    return {
        "metric": metric,
        "source": a.source,
        "about_a": a.about,
        "about_b": b.about,
        "unpaired_a": alone[0],
        "unpaired_b": alone[1],
        "solved": solved,
        "length_unit": a.length_unit,
        **comparison_of(a.items, b.items, solved),
    }
