"""atropos view, and atropos archive: what an ended run sampled.

atropos view runs/a                     the page of a run, from its folder
atropos view data/larger.jsonl          of the groups that process wrote
atropos view evals/now                  of the transcripts that evaluate wrote
atropos view runs/a --export worst.html env=math reward=0..0.5
atropos view outputs/rollouts           of another trainer: verl, slime, miles, prime-rl, NeMo, ATIF
atropos archive ls runs/a               groups, batches and bytes that are kept
atropos archive pin runs/a 120          keep the groups of a step beyond --archive-gb
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from atroposlib.api.archive.explorer import MAX_TOKENS, Explorer
from atroposlib.api.archive.filters import FILTERS, MAX_LIMIT, require_known_filters
from atroposlib.api.archive.load import EVERYTHING, open_explorer, place
from atroposlib.api.archive.run_views import MAX_KEYS
from atroposlib.api.store import Store
from atroposlib.api.store.sql.put import MarkReplies
from atroposlib.api.store.sqlite import DATABASE
from atroposlib.api.web.errors_http import page_response
from atroposlib.errors import ConfigError, CorruptPayload, UnknownGroup
from atroposlib.frontend.dumps import Dump, read_dump
from atroposlib.frontend.jsonl2html import dump_page
from atroposlib.ui.export import EXPORT_BYTES, Kept, exported_page
from atroposlib.utils.command.parser import PORT, CommandParser
from atroposlib.utils.http.gate import Gate
from atroposlib.utils.http.serve import serve_page
from atroposlib.utils.http.web_pages import page_checks
from atroposlib.utils.tokenizers.loading import local_tokenizer
from atroposlib.wire.explore import BatchDetail, BatchPage, BatchView

READ_GROUPS = 200  # groups that verify reads at a time


def view(argv: Sequence[str] | None = None) -> int:
    """Serve the page of an ended run, or of a file of groups, until Ctrl-C; or export it."""
    parser = CommandParser(prog="atropos view", description=view.__doc__)
    about = "a run, its data directory or postgresql://..., or a file or folder of groups or a dump"
    parser.add_argument("run", type=place, help=about)
    about = "with postgresql://...: that of its API, whose index has what the trainer reported"
    parser.add_argument("--data-dir", type=Path, help=about)
    parser.add_argument("--tokenizer", help="directory or cached name (that of the trainer)")
    parser.add_argument("--port", type=PORT, default=8010, help="0: any (%(default)s)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument(
        "--export",
        nargs="+",
        metavar=("FILE", "NAME=VALUE"),
        help="write one .html instead, of the rollouts that filters of the page let pass",
    )
    options = parser.parse_args(argv)
    if (dump := dump_of(options.run)) is not None:
        view_dump(options.run, dump, options)
        return 0
    with open_explorer(options.run, options.tokenizer, index=options.data_dir) as (
        _,
        explorer,
    ):
        if options.export is None:
            serve(explorer, options.port, options.open)
        else:
            file, *filters = options.export
            wanted = dict(text.partition("=")[::2] for text in filters)
            kept = select_rollouts(explorer.of_run(wanted.pop("run_id", None)), wanted)
            Path(file).write_bytes(exported_page(kept))
            print(f"{kept['note']} in {file}")
    return 0


def dump_of(run: Path | str) -> Dump | None:
    """The dump of another trainer at a path; None for runs and groups of this package."""
    if isinstance(run, str) or (run / DATABASE).is_file():
        return None
    return read_dump(run)


def view_dump(path: Path, dump: Dump, options: Namespace) -> None:
    """Serve the page of a dump until Ctrl-C; or export it.

    Raises ConfigError: filters, which the page of a dump has itself, or no tokenizer is here.
    """
    tokenizer = None
    if options.tokenizer is not None:
        tokenizer = local_tokenizer(options.tokenizer)
        if tokenizer is None:
            raise ConfigError(f"the tokenizer {options.tokenizer} is not on this machine")
    page = exported_page(dump_page(path, dump, tokenizer))
    if options.export is None:
        serve_page(page_app(page), options.port, options.open, "/")
        return
    file, *filters = options.export
    if filters:
        raise ConfigError("the export of a dump has no filters: the page itself has them")
    Path(file).write_bytes(page)
    print(f"{len(dump.groups)} groups of {dump.format} in {file}")


def page_app(page: bytes) -> ASGIApp:
    """An app with a single page, behind the checks of host and site."""

    async def show(_: Request) -> Response:
        return Response(page, media_type="text/html; charset=utf-8")

    return Gate(Starlette(routes=[Route("/", show)]), page_checks(page_response))


def select_rollouts(
    explorer: Explorer, filters: Mapping[str, str], max_bytes: int = EXPORT_BYTES
) -> dict[str, Any]:
    """The rollouts that the filters let pass with their groups and tokens, up to a size.

    Raises:
        ConfigError: an unknown filter or value, or no rollout passes.
    """
    require_known_filters(filters, *FILTERS, "sort")
    kept, curves = Kept(max_bytes), explorer.curves({})
    batches: dict[int, BatchDetail] = {}
    page = explorer.rollouts({**filters, "limit": str(MAX_LIMIT)})
    counted = page.counted
    while not kept.full:
        for row in page.rows:
            known = f"groups/{row.gid}" in kept
            if not known and not kept.add(_group(explorer, row.gid)):
                break
            kept.append(row)
            with suppress(UnknownGroup):
                if row.batch_no is not None and row.batch_no not in batches:
                    batches[row.batch_no] = explorer.batch(row.batch_no, {})
        if page.next is None:
            break
        page = explorer.rollouts({**filters, "limit": str(MAX_LIMIT), "after": page.next})
    if not kept.rollouts:
        problem = f"no rollout to export: {kept.n_bytes} of {max_bytes} bytes found"
        raise ConfigError(problem)
    keys = ",".join(curves.keys[:MAX_KEYS])
    newest_first: list[BatchView] = [batches[no] for no in sorted(batches, reverse=True)]
    kept.put({f"batches/{no}": batch for no, batch in batches.items()})
    kept.put({"batches": BatchPage(newest_first, None), "runs": explorer.runs({})})
    kept.put({"curves": explorer.curves({"keys": keys})})
    kept.put({"tasks": explorer.tasks({}), "wins": explorer.wins({})})
    of = f"{'' if counted.exact else 'over '}{counted.n}"
    return kept.page_data(of, "narrow the filters")


def _group(explorer: Explorer, gid: int) -> dict[str, object]:
    """Replies about a group and the tokens of its rows; without rows whose bytes are freed."""
    group = explorer.group(gid, {})
    replies: dict[str, object] = {f"groups/{gid}": group}
    for row in group.rows:
        with suppress(UnknownGroup):
            shown = explorer.row(gid, row.row, {"to": str(MAX_TOKENS)})
            replies[f"groups/{gid}/rows/{row.row}"] = shown
    return replies


def archive(argv: Sequence[str] | None = None) -> int:
    """Look after the groups that a data directory keeps. The run must have ended."""
    parser = CommandParser(prog="atropos archive", description=archive.__doc__)
    parser.add_argument("verb", choices=("ls", "pin", "unpin", "prune", "verify", "reindex"))
    parser.add_argument(
        "run", type=place, help="data directory or postgresql://... of the API"
    )
    parser.add_argument("number", nargs="?", help="pin, unpin: a step; prune: GB to keep")
    options = parser.parse_args(argv)
    if (options.verb in ("pin", "unpin", "prune")) != (options.number is not None):
        parser.error("pin or unpin DIR STEP, prune DIR GB, or ls, verify, reindex DIR")
    try:
        number = float(options.number or 0)
    except ValueError:
        parser.error(f"a number is expected, not {options.number!r}")
    kept_bytes = int(number * 2**30) if options.verb == "prune" else EVERYTHING
    again = options.verb == "reindex"
    with open_explorer(options.run, None, kept_bytes, again) as (store, explorer):
        if options.verb in ("pin", "unpin"):
            pinned = explorer.pin(int(number), options.verb == "pin")
            if not pinned["groups"]:
                raise ConfigError(f"no group of step {number:.0f} is here: atropos archive ls")
            print(
                f"{pinned['pinned']} of {pinned['groups']} groups of step {number:.0f} are pinned"
            )
        elif options.verb == "prune":
            before = store.stats().disk_bytes
            store.do(MarkReplies())  # any commit frees what exceeds the bound
            print(f"{before - store.stats().disk_bytes} bytes are freed")
        elif options.verb == "verify":
            damaged = list(_damaged_groups(store))
            print("\n".join([f"group {gid} is damaged" for gid in damaged] or ["all sound"]))
            return int(bool(damaged))
        else:
            for run in explorer.runs({}).runs:
                trained = "an unknown number of" if run.steps is None else run.steps
                size = "" if run.bytes is None else f", {run.bytes} bytes of all runs"
                print(
                    f"run {run.run_id or 'none'}: {run.rollouts} rollouts in {run.groups} "
                    f"groups, {trained} batches trained, environments: "
                    f"{', '.join(run.envs) or 'none'}{size}"
                )
    return 0


def serve(explorer: Explorer, port: int, browser: bool) -> None:
    """Serve the page of a run on loopback until a signal."""
    from atroposlib.api.server import create_view

    serve_page(create_view(explorer), port, browser, "/ui/")


def _damaged_groups(store: Store) -> Iterator[int]:
    after = 0
    while gids := store.kept_gids(after, READ_GROUPS):
        for gid in gids:
            try:
                store.read([gid], retired=True)
            except CorruptPayload:
                yield gid
        after = gids[-1]
