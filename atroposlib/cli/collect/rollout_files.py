"""atropos data export: the rollouts of a run, with their texts, as a file for other tools.

atropos data export runs/a --to parquet                          rollouts.parquet
atropos data export runs/a --to jsonl --out low.jsonl env=math reward=0..0.2 q=sorry

Filters are those of the page, and run_id=ID chooses an earlier run. The run may go on. A file is
written block by block, so that memory does not grow with the run, and gets its name when it is
whole.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from atroposlib.api.archive.load import place
from atroposlib.api.archive.rollout_blocks import RunRollouts
from atroposlib.api.archive.rollout_tables import (
    module_of_extra,
    record_json,
    reward_names,
    tables_of,
)
from atroposlib.errors import ConfigError
from atroposlib.utils.command.parser import CommandParser
from atroposlib.utils.io import whole_file

USAGE = "RUN [--to jsonl|parquet] [--out FILE] [--no-text] [--tokenizer DIR] [NAME=VALUE ...]"
ROW_GROUP_BYTES = 32 * 2**20  # size before compression, in a parquet file


def options_and_filters(
    parser: CommandParser, argv: Sequence[str] | None
) -> tuple[argparse.Namespace, dict[str, str]]:
    """The options of a command over the stored rollouts of ``run``, and its NAME=VALUE words.

    Raises ConfigError: ``run`` is no folder.
    """
    options, words = parser.parse_known_args(argv)
    options = parser.with_log_settings(options)
    for word in words:
        if word.startswith("-") or "=" not in word:
            parser.error(f"unknown argument {word}; filters are NAME=VALUE")
    if not isinstance(options.run, Path):
        command = parser.prog.removeprefix("atropos ")
        raise ConfigError(f"{command} reads a folder: give the --data-dir of the API")
    return options, dict(text.partition("=")[::2] for text in words)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the rollouts that filters let pass."""
    parser = CommandParser(
        prog="atropos data export", description=__doc__, usage=f"%(prog)s {USAGE}"
    )
    parser.add_argument("run", type=place, help="folder of a run, or its data directory")
    parser.add_argument("--to", choices=sorted(WRITERS), default="jsonl", help="(%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="rollouts.jsonl, .parquet")
    parser.add_argument("--tokenizer", help="directory or cached name (that of the trainer)")
    parser.add_argument("--no-text", action="store_true", help="numbers and ids alone")
    options, filters = options_and_filters(parser, argv)
    run_id, text = filters.pop("run_id", None), not options.no_text

    def rollouts() -> RunRollouts:
        return RunRollouts(options.run, run_id, filters, text, options.tokenizer)

    path = options.out or Path(f"rollouts.{options.to}")
    with whole_file(path) as draft:
        count = WRITERS[options.to](rollouts, draft)
    print(f"{count} rollouts in {path}, {path.stat().st_size / 1e6:.1f} MB")
    return 0


def write_jsonl(rollouts: Callable[[], RunRollouts], path: Path) -> int:
    """Write a record a line, and return their number."""
    reader = rollouts()
    with open(path, "wb") as file:
        for block in reader.blocks():
            file.writelines(record_json(record) + b"\n" for record in block)
    return reader.count


def write_parquet(rollouts: Callable[[], RunRollouts], path: Path) -> int:
    """Write a parquet file, and return the number of its rows.

    The file names its columns at its beginning, so the named rewards are gathered in a first pass,
    which decodes no text.

    Raises ConfigError: pyarrow is missing, or a new reward came while the file was written.
    """
    tables, parquet = tables_of("arrow"), module_of_extra("pyarrow.parquet")
    rewards: list[str] = []
    if (reader := rollouts()).text:
        names = (name for block in reader.named_rewards() for name in reward_names(block))
        rewards = list(dict.fromkeys(names))
    reader, pending, size = rollouts(), list[Any](), 0
    schema = tables.union([], reader.names, rewards).schema
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for block in reader.blocks():
            if fresh := set(reward_names(block) if reader.text else ()) - {*rewards}:
                raise ConfigError(
                    f"a reward is new in this run, {min(fresh)}: export it again"
                )
            pending.append(tables.table(block, rewards))
            size += pending[-1].nbytes
            if size > ROW_GROUP_BYTES:
                writer.write_table(tables.union(pending, reader.names))
                pending, size = [], 0
        if pending:
            writer.write_table(tables.union(pending, reader.names))
    return reader.count


WRITERS: dict[str, Callable[[Callable[[], RunRollouts], Path], int]] = {
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}
