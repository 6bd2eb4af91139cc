"""atropos api backup, and atropos api restore: a copy of the queue and archive of a run.

atropos api backup runs/a /backups/a-1      also while the run goes on
atropos api restore /backups/a-1 runs/b/queue
atropos api restore /backups/a-1 postgresql://host/atropos      the move to another store
atropos api backup postgresql://host/atropos /backups/b-1       and the way back
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import apsw

from atroposlib.api.archive.load import place
from atroposlib.api.store.postgres.restored import restore_into
from atroposlib.api.store.postgres.snapshot import back_up_schema
from atroposlib.api.store.sqlite.backup import Manifest, back_up, restore
from atroposlib.errors import ConfigError, StoreError
from atroposlib.utils.command.logs import redact
from atroposlib.utils.command.parser import CommandParser

BESIDE_A_DIRECTORY = "--data-dir goes with postgresql://; a directory holds its index itself"


def main(argv: Sequence[str] | None = None) -> int:
    """Copy the queue and the archive of a run, also while its API runs."""
    parser = CommandParser(prog="atropos api backup", description=main.__doc__)
    parser.add_argument(
        "run", type=place, help="folder of a run, its data directory, or postgresql://..."
    )
    parser.add_argument("target", type=Path, help="new folder of the backup")
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="with postgresql://: data directory of an API, for its index of rollouts",
    )
    options = parser.parse_args(argv)
    of_postgres = isinstance(options.run, str)
    if options.data_dir is not None and not of_postgres:
        parser.error(BESIDE_A_DIRECTORY)
    if str(options.run).startswith(("http:", "https:")):
        raise ConfigError(
            "a backup reads files: run it on the machine of the API, with its --data-dir"
        )
    begun = time.monotonic()
    try:
        if of_postgres:
            manifest = back_up_schema(options.run, options.target, options.data_dir, _report)
        else:
            manifest = back_up(options.run, options.target, _report)
    except apsw.Error as error:
        raise StoreError(f"SQLite: {error}") from error
    print(f"{_manifest_text(manifest)}: {options.target}, in {time.monotonic() - begun:.1f} s")
    if manifest.damaged:
        print(f"{manifest.damaged} of them are damaged, in the original too", file=sys.stderr)
    print(f"next: atropos api restore {options.target} DIR")
    return 0


def restore_backup(argv: Sequence[str] | None = None) -> int:
    """Make a data directory, or a run on PostgreSQL, of a backup.

    Trainers of the original are refused by its queue.
    """
    parser = CommandParser(prog="atropos api restore", description=restore_backup.__doc__)
    parser.add_argument("backup", type=Path, help="folder that atropos api backup wrote")
    parser.add_argument(
        "target", metavar="DIR", help="new data directory, or postgresql://... without a run"
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="with postgresql://: data directory of its APIs, for the index of rollouts",
    )
    options = parser.parse_args(argv)
    to_postgres = options.target.startswith("postgresql://")
    if options.data_dir is not None and not to_postgres:
        parser.error(BESIDE_A_DIRECTORY)
    try:
        if to_postgres:
            manifest = restore_into(options.target, options.backup, options.data_dir, _report)
        else:
            manifest = restore(options.backup, Path(options.target), _report)
    except apsw.Error as error:
        raise StoreError(f"SQLite: {error}") from error
    print(f"{_manifest_text(manifest)} are in {redact(options.target)}")
    serve = "--store postgresql://..." if to_postgres else f"--data-dir {options.target}"
    print(f"next: atropos api serve {serve}")
    return 0


def _report(name: str, n_bytes: int) -> None:
    if sys.stderr.isatty():
        print(f"{name}: {n_bytes / 1e6:.1f} MB", file=sys.stderr)


def _manifest_text(manifest: Manifest) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.taken))
    return (
        f"{manifest.groups} groups of {at}, up to batch {manifest.last_batch}, "
        f"{manifest.n_bytes / 1e6:.1f} MB"
    )
