"""Views of a whole run for /explore: batches, curves, histograms, weights, events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec
import numpy as np

from atroposlib.api.archive.filters import (
    FILTERS,
    filter_number,
    limit_of,
    require_known_filters,
    where,
)
from atroposlib.api.archive.index import Index
from atroposlib.api.archive.records import BATCH
from atroposlib.api.archive.selection import ChosenRows
from atroposlib.errors import ConfigError, UnknownGroup
from atroposlib.wire import explore
from atroposlib.wire.safetensors import Array

MAX_POINTS = 2000  # points of a curve
MAX_KEYS = 64  # per call
BINS = 20
Span = tuple[str | None, int]  # environment (None: all), and the first step
RECENT_STEPS = 500  # newest steps whose keys are listed
NUMBERS = tuple(
    "reward advantage n_tokens n_trained turns tool_calls logprob_mean diff_mean diff_max "
    "clipped_share staleness generate_s step batch_no arrived".split()
)
_CURVES = {  # key -> SQL over the rows of ``rollup`` of a step
    "reward": "SUM(reward) / SUM(n)",
    "reward_std": "SQRT(MAX(0, SUM(reward_square) / SUM(n) - POWER(SUM(reward) / SUM(n), 2)))",
    "rollouts": "SUM(n)",
    "tokens": "SUM(tokens)",
    "tokens_mean": "1.0 * SUM(tokens) / SUM(n)",
    "trained_tokens": "SUM(trained)",
    "turns_mean": "1.0 * SUM(turns) / SUM(n)",
    "staleness_mean": "1.0 * SUM(staleness) / SUM(n)",
    "diff_max": "MAX(diff_max)",
    "truncated_share": "1.0 * SUM(truncated) / SUM(n)",
}
_BATCH = (*BATCH, "step", "claimed", "acked")


class RunViews:
    """Reads of the index alone."""

    def __init__(self, index: Index) -> None:
        self.index = index

    # --- batches --------------------------------------------------------------------

    def batches(self, given: Mapping[str, str]) -> explore.BatchPage:
        """A page of batches, the newest first."""
        require_known_filters(given, "after", "limit")
        before = filter_number("after", given.get("after", str(2**62)), int)
        limit = limit_of(given)
        views = self._batches("no < ? ORDER BY no DESC LIMIT ?", before, limit)
        return explore.BatchPage(views, str(views[-1].no) if len(views) == limit else None)

    def batch(self, no: int, given: Mapping[str, str]) -> explore.BatchDetail:
        """A batch and its groups.

        Raises:
            UnknownGroup: no batch has this number.
        """
        require_known_filters(given)
        views = self._batches("no = ?", no) if 0 < no < 2**63 else []
        if not views:
            raise UnknownGroup(f"batch {no} is not in the index")
        rows = self.index.read(
            "SELECT gid, MAX(env), MAX(item), COUNT(*), AVG(reward), SQRT(MAX(0, "
            "AVG(reward * reward) - AVG(reward) * AVG(reward))) FROM rollout "
            "WHERE batch_no = ? GROUP BY gid ORDER BY gid",
            (no,),
        )
        members = [explore.Member(*row) for row in rows]
        return explore.BatchDetail(**msgspec.structs.asdict(views[0]), members=members)

    def _batches(self, condition: str, *values: int) -> list[explore.BatchView]:
        rows = self.index.read(
            f"SELECT {', '.join(_BATCH)} FROM batch WHERE {condition}", values
        )
        views = {row[0]: explore.BatchView(**dict(zip(_BATCH, row))) for row in rows}
        for view in views.values():
            text = str(view.ranks or "")
            view.ranks = [int(rank) for rank in text.split(",") if rank.isdigit()]
        parts = self.index.read(
            "SELECT batch_no, env, staleness, COUNT(*), SUM(row = 0) FROM rollout "
            "INDEXED BY rollout_batch_no WHERE batch_no IN (SELECT value FROM json_each(?)) "
            "GROUP BY batch_no, env, staleness",
            (msgspec.json.encode(list(views)).decode(),),
        )
        for no, env, lag, n, groups in parts:
            view = views[no]
            view.groups += groups
            if not view.envs or view.envs[-1].env != env:
                view.envs.append(explore.EnvPart(env, 0))
            view.envs[-1].sequences += n
            if lag is not None:
                view.staleness[str(lag)] = view.staleness.get(str(lag), 0) + n
        return list(views.values())

    # --- curves ---------------------------------------------------------------------

    def curves(self, given: Mapping[str, str]) -> explore.Curves:
        """Curves of ``keys`` from a step on, at most ``MAX_POINTS`` points each (or means)."""
        require_known_filters(given, "keys", "env", "from")
        keys = [key for key in given.get("keys", "").split(",") if key]
        span = given.get("env"), filter_number("from", given.get("from", "0"), int)
        if len(keys) > MAX_KEYS:
            raise ConfigError(f"keys: at most {MAX_KEYS}")
        curves: list[explore.Curve] = []
        for key in keys:
            if key in _CURVES:
                curves += self._rollup(key, span)
            curves += self._steps(key, span)
        return explore.Curves(self._keys() if span[1] == 0 else [], curves)

    def _keys(self) -> list[str]:
        rows = self.index.read(
            "SELECT DISTINCT key FROM (SELECT body FROM step ORDER BY step DESC LIMIT ?), "
            "json_each(body)",
            (RECENT_STEPS,),
        )
        return sorted({*_CURVES, *(key for (key,) in rows)})

    def _rollup(self, key: str, span: Span) -> list[explore.Curve]:
        rows = self.index.read(
            f"SELECT COALESCE(batch.step, batch_no) AS at, {_CURVES[key]} FROM rollup "
            "JOIN batch ON batch.no = batch_no WHERE (?1 IS NULL OR env = ?1) AND at >= ?2 "
            "GROUP BY at ORDER BY at",
            span,
        )
        return [explore.Curve(key, span[0], "rollup", bucket_means(rows))] if rows else []

    def _steps(self, key: str, span: Span) -> list[explore.Curve]:
        series: dict[tuple[str, str], list[tuple[int, Any]]] = {}
        path = "$." + msgspec.json.encode(key).decode()
        rows = self.index.read(
            "SELECT role, name, step, json_extract(body, ?1) AS value FROM step "
            "WHERE step >= ?3 AND value IS NOT NULL AND (?2 IS NULL OR name = ?2) "
            "ORDER BY role, name, step",
            (path, *span),
        )
        for role, name, step, value in rows:
            if isinstance(value, (int, float)):
                series.setdefault((role, name), []).append((step, value))
        return [
            explore.Curve(
                key,
                None if role == "trainer" else name,
                "trainer" if role == "trainer" else "env",
                bucket_means(points),
            )
            for (role, name), points in series.items()
        ]

    def histogram(self, given: Mapping[str, str]) -> explore.Histogram:
        """Counts of a number in ``BINS`` bins of equal width, over the rows of the filters."""
        require_known_filters(given, "field", *FILTERS[:-1])
        field = histogram_field(given)
        with closing(self.index.reader()) as reader:
            values, whole = ChosenRows(reader, where(given)).values(field)
        return histogram_of(field, values, sampled=not whole)

    # --- weights and events -----------------------------------------------------------

    def weights(self, given: Mapping[str, str]) -> explore.Weights:
        """Versions over time, versions that servers reported, and durations of publishes."""
        require_known_filters(given, "limit")
        most = limit_of(given)

        def last(sql: str, most: int = most) -> list[tuple[Any, ...]]:
            return list(self.index.read(f"{sql} DESC LIMIT {most}"))[::-1]

        at_server = (
            "SELECT server, version, at FROM weights WHERE server IS NOT NULL ORDER BY id"
        )
        announced = "SELECT version, at FROM weights WHERE server IS NULL ORDER BY id"
        step = (
            "SELECT CAST(body ->> 'version' AS INTEGER), at, body ->> 'seconds_publish', "
            "body ->> 'seconds_check' FROM step WHERE role = 'trainer' ORDER BY step"
        )
        return explore.Weights(
            [explore.VersionAt(*row) for row in last(announced) if row[0] is not None],
            [explore.ServerWeights(*row) for row in last(at_server, MAX_POINTS)],
            [explore.Publish(*row) for row in last(step) if row[0] and row[2]],
        )

    def events(self, given: Mapping[str, str]) -> explore.EventPage:
        """A page of stored events, the oldest first."""
        require_known_filters(given, "after", "limit")
        after, limit = filter_number("after", given.get("after", "0"), int), limit_of(given)
        rows = self.index.read(
            "SELECT id, name, kind, at, body FROM event WHERE id > ? ORDER BY id LIMIT ?",
            (after, limit),
        )
        entries = [
            explore.EventEntry(name, kind, at, msgspec.json.decode(body))
            for _, name, kind, at, body in rows
        ]
        return explore.EventPage(entries, str(rows[-1][0]) if len(rows) == limit else None)


def histogram_field(given: Mapping[str, str]) -> str:
    field = given.get("field", "reward")
    if field not in NUMBERS:
        raise ConfigError(f"field: one of {', '.join(NUMBERS)}")
    return field


def histogram_of(
    field: str, values: Sequence[float | None], sampled: bool
) -> explore.Histogram:
    """Counts of the values in bins of equal width."""
    known = np.array([value for value in values if value is not None])
    nulls = len(values) - len(known)
    if not len(known):
        return explore.Histogram(field, [], nulls, sampled)
    edges = _edges(float(known.min()), float(known.max()))
    counts, ends = np.histogram(known, edges)[0], edges.tolist()
    bins = list(map(explore.Bin, ends, ends[1:], counts.tolist()))
    return explore.Histogram(field, bins, nulls, sampled)


def _edges(low: float, high: float) -> Array:
    """Edges of ``BINS`` bins of equal width; of a single bin if too few floats lie in between."""
    edges = np.linspace(low / 2, high / 2, BINS + 1) * 2  # high - low may exceed the floats
    if np.all(edges[1:] > edges[:-1]):
        return edges
    return np.array([low, high if high > low else low + 1.0])


def bucket_means(rows: Iterable[Sequence[Any]]) -> list[tuple[int, float | None]]:
    """(step, mean of the values) per bucket of steps; the buckets are few enough."""
    points = [(int(step), value) for step, value in rows]
    steps = points[-1][0] - points[0][0] + 1 if points else 1
    bucket = math.ceil(steps / MAX_POINTS)
    sums: dict[int, list[float]] = {}
    for step, value in points:
        values = sums.setdefault(step - step % bucket, [])
        if value is not None:
            values.append(value)
    return [
        (step, math.fsum(values) / len(values) if values else None)
        for step, values in sums.items()
    ]
