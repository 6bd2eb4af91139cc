"""Filters and pages of /explore/rollouts as SQL. Pure."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from atroposlib.errors import ConfigError
from atroposlib.wire.numbers import INT64_MAX

MAX_LIMIT = 500
MAX_CHARACTERS = 200
SORTS = ("arrived", "reward", "diff_max", "n_tokens", "step")
_KINDS = {  # filter -> column of few values, all in a common index
    "env": "env",
    "state": "state",
    "outcome": "outcome",
    "finish": "finish_reason",
    "why": "why",
}
_RANGES: dict[str, type] = {"step": int, "reward": float, "batch_no": int}
FILTERS = (*_KINDS, "item", *_RANGES, "version", "diff_min", "q")
PAGING = ("sort", "after", "limit", "answer")
# values of a row that the filters above compare
KIND = f"json_array({', '.join(_KINDS.values())})"
# Most versions that a row spans: a row with a version begins at most that many earlier.
SPAN = "version_max - version_min"
_WIDEST = f"(SELECT COALESCE(MAX({SPAN}), 0) FROM rollout WHERE {SPAN} > 0)"


_Finite = Annotated[float, msgspec.Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
_Group = Annotated[int, msgspec.Meta(ge=-INT64_MAX, le=INT64_MAX)]  # negative: a dropped one
_Place = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]


@dataclass(frozen=True)
class Where:
    """Conditions that hold together.

    Args:
        kinds: positions in ``KIND`` and the values that pass.
        parts: (column whose index serves it, SQL, values) of each other condition.
    """

    kinds: Mapping[int, Sequence[str]]
    parts: tuple[tuple[str, str, tuple[Any, ...]], ...] = ()

    def and_(self, sql: str, *values: Any, column: str = "gid") -> Where:
        return Where(self.kinds, (*self.parts, (column, sql, values)))

    def of_envs(self, envs: Sequence[str]) -> Where:
        """The same for these environments alone."""
        return replace(self, kinds={**self.kinds, list(_KINDS).index("env"): envs})

    @property
    def clause(self) -> str:
        columns = tuple(_KINDS.values())
        kinds = [
            f"{columns[at]} IN ({', '.join('?' * len(passing))})"
            for at, passing in self.kinds.items()
        ]
        each = kinds + [sql for _, sql, _ in self.parts]
        return f"WHERE {' AND '.join(each or '1')}"

    @property
    def values(self) -> tuple[Any, ...]:
        passing = (value for values in self.kinds.values() for value in values)
        return (*passing, *(value for *_, own in self.parts for value in own))

    def has(self, kind: str) -> bool:
        """Whether rows of a value of ``KIND`` pass the conditions on it."""
        values = msgspec.json.decode(kind)
        return all(values[at] in passing for at, passing in self.kinds.items())


def envs_called(name: str, envs: Iterable[str]) -> list[str]:
    """The environments of a run with this name, or with a number that the API added to it.

    Example: "sums" is "sums" and "sums_1" of ["sums", "sums_1", "sums_long_0"].
    """
    return [env for env in envs if re.fullmatch(rf"{re.escape(name)}(_\d+)?", env)]


def name_of_label(label: str) -> str:
    """The name of an environment without the number that the API added to it.

    Example: "sums_1" is "sums"; so is "sums".
    """
    return re.sub(r"_\d+$", "", label, flags=re.ASCII)


def require_known_filters(given: Mapping[str, str], *known: str) -> None:
    """Reject parameters that a route does not have.

    Raises:
        ConfigError: names the first unknown parameter.
    """
    for name in given:
        if name not in known:
            raise ConfigError(f"{name[:50]}: unknown; there are {', '.join(known)}")


def where(given: Mapping[str, str]) -> Where:
    """The rows that all filters let pass; ``q`` is applied to texts, later.

    Raises:
        ConfigError: a value is invalid for its filter.
    """
    condition = Where({at: (given[name],) for at, name in enumerate(_KINDS) if name in given})
    if "item" in given:
        condition = condition.and_("item = ?", given["item"], column="item")
    for name, kind in _RANGES.items():
        if name in given:
            ends = zip((">=", "<="), bounds(name, given[name], kind))
            known = [(f"{name} {sign} ?", end) for sign, end in ends if end is not None]
            if known:
                sql = " AND ".join(term for term, _ in known)
                condition = condition.and_(sql, *(end for _, end in known), column=name)
    if "version" in given:
        version = filter_number("version", given["version"], int)
        sql = f"version_min BETWEEN ? - {_WIDEST} AND ? AND version_max >= ?"
        condition = condition.and_(sql, version, version, version, column="version_min")
    if "diff_min" in given:
        least = filter_number("diff_min", given["diff_min"], float)
        condition = condition.and_("diff_max >= ?", least, column="diff_max")
    return condition


def bounds(name: str, text: str, kind: type) -> tuple[Any, Any]:
    """``a..b`` with either end open, or a single number."""
    low, dots, high = text.partition("..")
    first, last = (
        filter_number(name, end, kind) if end or not dots else None
        for end in (low, high if dots else low)
    )
    return first, last


def filter_number(name: str, text: str, kind: type) -> Any:
    """A finite number that SQLite can hold."""
    try:
        value = kind(text)
        if math.isfinite(value) and abs(value) < 2**63:
            return value
    except (ValueError, OverflowError):
        pass
    raise ConfigError(f"{name}: {'a whole number' if kind is int else 'a number'} is expected")


def limit_of(given: Mapping[str, str]) -> int:
    """Rows of a page, at most ``MAX_LIMIT``."""
    limit: int = filter_number("limit", given.get("limit", "100"), int)
    if not 1 <= limit <= MAX_LIMIT:
        raise ConfigError(f"limit: lies in 1 .. {MAX_LIMIT}")
    return limit


def characters_of(given: Mapping[str, str]) -> int:
    """Characters of each answer in a page, at most ``MAX_CHARACTERS``."""
    characters: int = filter_number("answer", given.get("answer", "0"), int)
    if not 0 <= characters <= MAX_CHARACTERS:
        raise ConfigError(f"answer: lies in 0 .. {MAX_CHARACTERS}")
    return characters


@dataclass(frozen=True)
class Order:
    """Order of a list, and the key of a row, by which the next page begins.

    Rows without a value of the column have no place in its order, and are not listed.
    """

    column: str
    descending: bool

    @property
    def sql(self) -> str:
        way = " DESC" if self.descending else ""
        return f"ORDER BY {self.column}{way}, gid{way}, row{way}"

    def start(self, found: Where, after: str | None) -> Where:
        """``found``, from after the row of the key ``after`` on."""
        if self.column != "gid":
            found = found.and_(f"{self.column} IS NOT NULL")
        if after is None:
            return found
        try:
            key = msgspec.json.decode(after, type=tuple[_Finite, _Group, _Place])
        except msgspec.DecodeError as error:
            raise ConfigError(
                "after: the value of next of the last page is expected"
            ) from error
        sign = "<" if self.descending else ">"
        if self.column == "gid":
            return found.and_(f"(gid, row) {sign} (?, ?)", *key[1:])
        return found.and_(f"({self.column}, gid, row) {sign} (?, ?, ?)", *key)

    def key(self, row: Any) -> str:
        value = getattr(row, self.column)
        return msgspec.json.encode((float(value), row.gid, row.row)).decode()


def order_of(given: Mapping[str, str]) -> Order:
    """The order that ``sort`` names; the newest first by default."""
    name = given.get("sort", "-arrived")
    column = name.removeprefix("-")
    if column not in SORTS:
        raise ConfigError(f"sort: one of {', '.join(SORTS)}, with - for the largest first")
    # Groups arrive in the order of their ids, which every index ends with.
    return Order("gid" if column == "arrived" else column, name.startswith("-"))
