"""atropos view, and atropos archive: what an ended run sampled.

atropos view runs/a/api                 the page of a data directory
atropos view data/larger.jsonl          of the groups that process wrote
atropos archive ls runs/a/api           groups, batches and bytes that are kept
atropos archive pin runs/a/api 120      keep the groups of a step beyond --archive-gb
"""

from __future__ import annotations

import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

import msgspec

from atroposlib.api.archive.explorer import Explorer, RunFacts
from atroposlib.api.archive.index import Index
from atroposlib.api.archive.indexer import Indexer
from atroposlib.api.codec.json import read_json_group
from atroposlib.api.common.records import RunRecord
from atroposlib.api.store.sqlite import DATABASE, SqliteStore
from atroposlib.errors import ConfigError, CorruptPayload, InvalidGroup
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import PORT, CommandParser
from atroposlib.utils.http_server import bind
from atroposlib.wire.safetensors import MalformedBody

EVERYTHING = 2**62  # bytes: looking frees nothing
PUT_GROUPS = 64  # lines of a file at a time
READ_GROUPS = 200  # of verify at a time


def view(argv: Sequence[str] | None = None) -> int:
    """Serve the page of an ended run, or of a file of groups, until Ctrl-C."""
    parser = CommandParser(prog="atropos view", description=view.__doc__)
    parser.add_argument("run", type=Path, help="data directory of the API, or a .jsonl file")
    parser.add_argument("--tokenizer", help="directory or cached name (that of the trainer)")
    parser.add_argument("--port", type=PORT, default=8010, help="0: any (%(default)s)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    options = parser.parse_args(argv)
    with explored(options.run, options.tokenizer) as (_, explorer):
        serve(explorer, options.port, options.open)
    return 0


def archive(argv: Sequence[str] | None = None) -> int:
    """Look after the groups that a data directory keeps. The run must have ended."""
    parser = CommandParser(prog="atropos archive", description=archive.__doc__)
    parser.add_argument("verb", choices=("ls", "pin", "prune", "verify", "reindex"))
    parser.add_argument("run", type=Path, help="data directory of the API")
    parser.add_argument("number", nargs="?", help="pin: a step; prune: GB to keep")
    options = parser.parse_args(argv)
    if (options.verb in ("pin", "prune")) != (options.number is not None):
        parser.error("pin DIR STEP, prune DIR GB, or ls, verify, reindex DIR")
    try:
        number = float(options.number or 0)
    except ValueError:
        parser.error(f"a number is expected, not {options.number!r}")
    kept_bytes = int(number * 2**30) if options.verb == "prune" else EVERYTHING
    again = options.verb == "reindex"
    with explored(options.run, None, kept_bytes, again) as (store, explorer):
        if options.verb == "pin":
            gids = explorer.groups_of_step(int(number))
            store.pin(gids)
            print(f"{len(gids)} groups of step {int(number)} are pinned")
        elif options.verb == "prune":
            before = store.stats().disk_bytes
            store.mark()  # any commit frees what exceeds the bound
            print(f"{before - store.stats().disk_bytes} bytes are freed")
        elif options.verb == "verify":
            damaged = list(_damaged(store))
            print("\n".join([f"group {gid} is damaged" for gid in damaged] or ["all sound"]))
            return int(bool(damaged))
        else:
            [run] = explorer.runs({}).runs
            print(
                f"run {run.run_id[:8] or 'none'}: {run.rollouts} rollouts in {run.groups} "
                f"groups, {run.steps} batches trained, {run.bytes or 0} bytes, "
                f"environments: {', '.join(run.envs) or 'none'}"
            )
    return 0


@contextmanager
def explored(
    run: Path, tokenizer: str | None, kept_bytes: int = EVERYTHING, again: bool = False
) -> Iterator[tuple[SqliteStore, Explorer]]:
    """The store and the explorer of a data directory, or of a file of groups.

    Raises:
        StoreLocked: the run goes on.
        ConfigError: there is neither a run nor a group.
    """
    if (run / DATABASE).is_file():
        with closing(SqliteStore(run, archive_bytes=kept_bytes)) as store:
            yield from _explored(store, tokenizer, again)
    elif run.is_file():
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            with closing(SqliteStore(place, EVERYTHING, synchronous="OFF")) as store:
                put_file(store, run)
                yield from _explored(store, tokenizer)
    else:
        raise ConfigError(
            f"{run} is neither a data directory ({DATABASE}) nor a file of groups"
        )


def _explored(
    store: SqliteStore, tokenizer: str | None, again: bool = False
) -> Iterator[tuple[SqliteStore, Explorer]]:
    body = store.load().body
    record = RunRecord() if body is None else msgspec.json.decode(body, type=RunRecord)
    names = {env.env_id: env.wandb_name for env in record.envs}
    trainer = None if record.trainer is None else record.trainer.tokenizer
    facts = RunFacts(record.run_id, tokenizer=tokenizer or trainer, envs=(*names.values(),))
    indexer = Indexer(Index(store.archive), store, names.get)
    try:
        indexer.complete(again)
        yield store, Explorer(indexer.index, store, lambda: facts)
    finally:
        indexer.close()


def put_file(store: SqliteStore, path: Path) -> None:
    """Put the groups of a .jsonl file into a store of its own; other lines are counted."""
    odd, revision = 0, store.load().revision
    with open(path, "rb") as file:
        while lines := list(islice(file, PUT_GROUPS)):
            groups = []
            for line in lines:
                try:
                    groups.append(read_json_group(line))
                except (InvalidGroup, MalformedBody):
                    odd += 1
            if groups:
                store.put(groups, revision, lambda buffer, size: (), doubt=False)
    if odd:
        logs.report("warning", f"{path}: {odd} lines are no scored group")
    if not store.kept(0, 1):
        raise ConfigError(f"{path} has no scored group: process writes such files")


def serve(explorer: Explorer, port: int, browser: bool) -> None:
    """Serve the page on loopback until a signal."""
    import uvicorn

    from atroposlib.api.server import create_view

    with bind("127.0.0.1", port, backlog=128) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/ui/"
        print(f"view on {address} (Ctrl-C ends it)", flush=True)
        if browser:
            webbrowser.open(address)
        config = uvicorn.Config(create_view(explorer), log_config=None, access_log=False)
        uvicorn.Server(config).run(sockets=[listener])


def _damaged(store: SqliteStore) -> Iterator[int]:
    after = 0
    while gids := store.kept(after, READ_GROUPS):
        for gid in gids:
            try:
                store.read([gid], retired=True)
            except CorruptPayload:
                yield gid
        after = gids[-1]
