"""Archives opened for reading: the explorer of a directory or file, and rows as records."""

from __future__ import annotations

import fileinput
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from atroposlib.api.archive.explorer import Explorer
from atroposlib.api.archive.index import Index
from atroposlib.api.archive.indexer import Indexer
from atroposlib.api.archive.records import RunFacts
from atroposlib.api.archive.rollout_blocks import RunRollouts
from atroposlib.api.archive.rollout_tables import tables_of
from atroposlib.api.codec.json import read_json_group, stored_form
from atroposlib.api.decisions.run_state import run_of
from atroposlib.api.store import Store
from atroposlib.api.store.postgres import PostgresStore
from atroposlib.api.store.sql.run import LoadRun
from atroposlib.api.store.sqlite import DATABASE, SqliteStore
from atroposlib.errors import ConfigError, InvalidGroup
from atroposlib.utils.command.run_folder import DATA_FOLDERS
from atroposlib.utils.tokenizers.loading import tokenizer_of_run
from atroposlib.wire.safetensors import MalformedBody

log = logging.getLogger(__name__)

EVERYTHING = 2**62  # bytes: reading frees nothing
PUT_GROUPS = 64  # lines of a file at a time
SAMPLES = "samples.jsonl"  # file of evaluate; its transcripts hold the same with tokens


def load_rollouts(
    run: str | Path,
    frame: Literal["records", "iterator", "pandas", "polars", "arrow"] = "records",
    run_id: str | None = None,
    text: bool = False,
    tokenizer: str | None = None,
    **filters: str,
) -> Any:
    """The rollouts of a run, running or ended: a list of dicts, oldest first.

    Args:
        run: the folder of a run, or the data directory of its rollout API.
        frame: ``pandas``, ``polars`` or ``arrow`` for a table of that package (extra
            ``analysis``); ``iterator`` for dicts in bounded memory.
        run_id: an earlier run of the directory, as ``atropos archive ls`` names it.
        text: with ``prompt``, ``answer``, ``messages`` (if they were kept), ``rewards`` by name,
            and ``agent``. In a table each named reward is a column ``reward.NAME``, and messages
            are JSON.
        tokenizer: directory or cached name, for runs without messages; None: the trainer's.
        filters: as of GET /explore/rollouts: ``reward="0.5..1"``, ``env="math_1"`` (``env="math"``
            stands for every number that the API added to the name); with ``text``
            also ``q="words of the answer"``.

    Raises:
        ConfigError: no index is there, a filter has another value, the package of ``frame`` is
            not installed, or texts need a tokenizer that is not here.
        UnknownGroup: the directory has no run ``run_id``.
    """
    tables = None if frame in ("records", "iterator") else tables_of(frame)
    rollouts = RunRollouts(Path(place(str(run))), run_id, filters, text, tokenizer)
    if tables is not None:
        return tables.union(
            [tables.table(block) for block in rollouts.blocks()], rollouts.names
        )
    records = (record for block in rollouts.blocks() for record in block)
    return records if frame == "iterator" else list(records)


def place(word: str) -> Path | str:
    """An argument of a command as a path, or as the URL of a store.

    The folder of a run, as its launcher prints it, stands for the data directory in it.
    """
    if word.startswith("postgresql://"):
        return word
    folder = Path(word)
    inside = (folder / name for name in DATA_FOLDERS)
    return next((path for path in inside if (path / DATABASE).is_file()), folder)


@contextmanager
def open_explorer(
    run: Path | str,
    tokenizer: str | None,
    kept_bytes: int = EVERYTHING,
    again: bool = False,
    index: Path | None = None,
) -> Iterator[tuple[Store, Explorer]]:
    """The store and the explorer of a data directory, or of files of groups.

    Args:
        run: a path, or the URL of a PostgreSQL store, whose run may be active.
        index: data directory of an API over that URL; None: an index in memory is made.

    Raises:
        StoreLocked: the run of the directory is active.
        ConfigError: there is neither a run nor a group.
    """
    if isinstance(run, str):
        if kept_bytes != EVERYTHING:
            raise ConfigError("prune of PostgreSQL: start its API with a smaller --archive-gb")
        with closing(PostgresStore(run, data_dir=index)) as store:
            yield from _store_and_explorer(store, tokenizer, again)
    elif (run / DATABASE).is_file():
        with closing(SqliteStore(run, archive_bytes=kept_bytes, convert=stored_form)) as store:
            yield from _store_and_explorer(store, tokenizer, again)
    elif files := (
        [run] if run.is_file() else sorted(set(run.glob("*.jsonl")) - {run / SAMPLES})
    ):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            with closing(SqliteStore(place, EVERYTHING, synchronous="OFF")) as store:
                put_files(store, files)
                yield from _store_and_explorer(store, tokenizer)
    else:
        raise ConfigError(
            f"{run} is neither a data directory ({DATABASE}) nor a file of groups"
        )


def _store_and_explorer(
    store: Store, tokenizer: str | None, again: bool = False
) -> Iterator[tuple[Store, Explorer]]:
    facts = RunFacts.of(run_of(store.ask(LoadRun())))
    if tokenizer is None and store.archive is not None:
        tokenizer = tokenizer_of_run(facts.tokenizer, store.archive)
    facts = replace(facts, state=None, tokenizer=tokenizer or facts.tokenizer)
    indexer = Indexer(Index(store.archive), store)
    try:
        indexer.complete(again)
        yield store, Explorer(indexer.index, store, lambda: facts)
    finally:
        indexer.close()


def put_files(store: SqliteStore, paths: Sequence[Path]) -> None:
    """Put the groups of .jsonl files into ``store``; lines without a group are counted."""
    odd, revision = 0, store.ask(LoadRun()).revision
    with fileinput.input(paths, mode="rb") as file:
        while lines := list(islice(file, PUT_GROUPS)):
            groups = []
            for line in lines:
                try:
                    groups.append(read_json_group(line))
                except (InvalidGroup, MalformedBody):
                    odd += 1
            if groups:
                store.put(groups, revision, lambda buffer, size: (), doubt=False)
    names = ", ".join(map(str, paths))
    if odd:
        log.warning("%s: %d lines are no scored group", names, odd)
    if not store.kept_gids(0, 1):
        raise ConfigError(f"{names}: no scored group: process and evaluate write such files")
