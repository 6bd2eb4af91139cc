"""Tables of rollouts: frames of pandas, polars and Arrow, made block by block.

A table has a column ``reward.NAME`` for each named reward, and messages as JSON, so that each
column has a single type in every block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, get_args, get_type_hints

import orjson

from atroposlib.api.archive.rollout_blocks import Record
from atroposlib.errors import ConfigError
from atroposlib.text.lines import json_line
from atroposlib.wire.explore import RolloutRow

INSTALL = "pip install 'atropos-rl[analysis]'"
MODULES = {"pandas": "pandas", "polars": "polars", "arrow": "pyarrow"}
PREFIX = "reward."
_HINTS = get_type_hints(RolloutRow)
KINDS: dict[str, type] = {
    name: (get_args(kind) or (kind,))[0] for name, kind in _HINTS.items()
}


def tables_of(frame: str) -> Tables:
    """The tables of a package.

    Raises ConfigError: an unknown frame, or the package is not installed.
    """
    if frame not in MODULES:
        raise ConfigError(f"frame: one of records, iterator, {', '.join(MODULES)}")
    return Tables(frame, module_of_extra(MODULES[frame]))


def module_of_extra(name: str) -> Any:
    """The module of a package of the extra. Raises ConfigError: the package is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"a table needs {name}: {INSTALL}") from error


@dataclass(frozen=True)
class Tables:
    """Makes tables with the module of a package."""

    frame: str
    module: Any

    def table(self, block: Sequence[Record], rewards: Sequence[str] | None = None) -> Any:
        """A block of records as a table; ``rewards``: the names of all, None: of the block."""
        columns, kinds = block_columns(block, rewards)
        return getattr(self, f"_{self.frame}")(columns, kinds)

    def union(
        self, tables: list[Any], names: Sequence[str], rewards: Sequence[str] = ()
    ) -> Any:
        """All tables as one; without any an empty table of the fields ``names``."""
        if not tables:
            tables = [self.table([dict.fromkeys(names)], rewards)[:0]]
        module = self.module
        joins: dict[str, Callable[[list[Any]], Any]] = {
            "pandas": lambda parts: module.concat(parts, ignore_index=True),
            "polars": lambda parts: module.concat(parts, how="diagonal"),
            "arrow": lambda parts: module.concat_tables(parts, promote_options="default"),
        }
        return joins[self.frame](tables)

    def _pandas(self, columns: dict[str, list[Any]], kinds: dict[str, type]) -> Any:
        # Int64 has a missing value, so that ids stay whole numbers.
        types = {int: "Int64", float: "float64", str: "object"}
        return self.module.DataFrame(
            {
                name: self.module.Series(values, dtype=types[kinds[name]])
                for name, values in columns.items()
            }
        )

    def _polars(self, columns: dict[str, list[Any]], kinds: dict[str, type]) -> Any:
        types = {int: self.module.Int64, float: self.module.Float64, str: self.module.String}
        return self.module.DataFrame(
            columns, schema={name: types[kinds[name]] for name in columns}
        )

    def _arrow(self, columns: dict[str, list[Any]], kinds: dict[str, type]) -> Any:
        pyarrow = self.module
        types = {int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
        schema = pyarrow.schema([(name, types[kinds[name]]) for name in columns])
        return pyarrow.table(columns, schema=schema)


def block_columns(
    block: Sequence[Record], rewards: Sequence[str] | None = None
) -> tuple[dict[str, list[Any]], dict[str, type]]:
    """Columns of a block, and the type of each."""
    columns = {name: [record[name] for record in block] for name in block[0]}
    kinds = {name: KINDS.get(name, str) for name in columns}
    if "messages" in columns:
        columns["messages"] = [
            None if value is None else record_json(value).decode()
            for value in columns["messages"]
        ]
    if "rewards" in columns:
        named = [record or {} for record in columns.pop("rewards")]
        for name in reward_names(block) if rewards is None else rewards:
            columns[PREFIX + name] = [values.get(name) for values in named]
            kinds[PREFIX + name] = float
    return columns, kinds


def reward_names(block: Sequence[Record]) -> list[str]:
    """The names of all named rewards of records with texts, in order of their appearance."""
    return list(dict.fromkeys(name for record in block for name in record["rewards"] or ()))


def record_json(value: Any) -> bytes:
    """JSON of a record or a part of it; NaN and infinity, which JSON lacks, become null."""
    try:
        return orjson.dumps(value)
    except TypeError:  # halves of surrogate pairs, integers of more than 64 bits
        return json_line(value).encode()
