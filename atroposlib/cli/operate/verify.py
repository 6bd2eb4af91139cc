"""atropos verify: repeat the certificate of the batches of a run from what it has stored.

atropos verify runs/a                          every batch in the archive
atropos verify runs/a --batch 7 --json         a batch, a JSON document
atropos verify runs/a --batch 7 --model DIR    and scores some of its rows again
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from atroposlib.api.archive.certificates import BatchCertificate, stored_rows
from atroposlib.api.archive.explorer import Explorer
from atroposlib.api.archive.load import open_explorer, place
from atroposlib.api.store import Store
from atroposlib.certificate.claims import CLAIMS, SealedRow, Value
from atroposlib.certificate.rescoring import (
    ROUNDING_NATS,
    comparable_rows,
    rescore_rows,
    saved_version,
)
from atroposlib.errors import ConfigError
from atroposlib.utils.command.parser import CommandParser

VALUES = [value.value for value in Value]
SHOWN_REFUTATIONS = 20
RESCORED_ROWS = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Check each row of a run's batches: what is proved, declared, absent or refuted."""
    parser = CommandParser(prog="atropos verify", description=main.__doc__)
    parser.add_argument(
        "run", type=place, help="folder of an ended run, or its data directory"
    )
    parser.add_argument("--batch", type=int, help="number of a batch; without it all batches")
    parser.add_argument("--model", type=Path, help="stored weights that score some rows again")
    parser.add_argument(
        "--weights-version", type=int, help="of --model, if its files do not name it"
    )
    parser.add_argument("--rows", type=int, default=RESCORED_ROWS, help="rows for --model")
    parser.add_argument("--json", action="store_true", help="print JSON, a batch a line")
    options = parser.parse_args(argv)
    counts: dict[str, Counter[str]] = {}
    refutations: list[str] = []
    with open_explorer(options.run, None) as (store, explorer):
        numbers = batch_numbers(explorer) if options.batch is None else [options.batch]
        if options.model is not None:
            version = (
                saved_version(options.model)
                if options.weights_version is None
                else options.weights_version
            )
            rows = comparable_rows(_rows_of(explorer, store, numbers), version)
            refutations += rescored_lines(
                options.model, version, list(islice(rows, options.rows))
            )
        for no in numbers:
            batch = explorer.certificate(no, {})
            for name, values in batch.counts.items():
                counts.setdefault(name, Counter()).update(values)
            refutations += refutations_of(batch)
            if options.json:
                print(msgspec.json.encode(batch).decode())
    if not options.json:
        print(table_of(counts))
    for line in refutations[:SHOWN_REFUTATIONS]:
        print(line, file=sys.stderr)
    if len(refutations) > SHOWN_REFUTATIONS:
        print(f"and {len(refutations) - SHOWN_REFUTATIONS} more", file=sys.stderr)
    return int(bool(refutations))


def _rows_of(explorer: Explorer, store: Store, numbers: Sequence[int]) -> Iterator[SealedRow]:
    """The stored rows of batches, one group in memory at a time."""
    for no in numbers:
        for member in explorer.batch(no, {}).members:
            rows = stored_rows(store, member.gid)
            yield from rows if isinstance(rows, list) else ()


def rescored_lines(model: Path, version: int, rows: Sequence[SealedRow]) -> list[str]:
    """A line for each row that the weights score otherwise; prints the mean of all.

    Raises:
        ConfigError: no row can be compared with these weights.
    """
    if not rows:
        raise ConfigError(
            f"no stored row was sampled by version {version} alone with neutral parameters: choose"
            " another --batch, or the weights of another version"
        )
    rescored = rescore_rows(model, rows)
    tokens = sum(result.tokens for result in rescored)
    mean = sum(result.mean * result.tokens for result in rescored) / max(1, tokens)
    print(
        f"{len(rows)} rows of version {version}, {tokens} tokens scored again: {mean:.2g} nats"
        " per token on average",
        file=sys.stderr,
    )
    return [
        f"version {version}, a row of {len(result.row.tokens)} tokens: logprobs lie"
        f" {result.mean:.2g} nats per token from those of {model}, at most {ROUNDING_NATS:g}"
        for result in rescored
        if result.mean > ROUNDING_NATS
    ]


def batch_numbers(explorer: Explorer) -> list[int]:
    """Numbers of the batches in the index, ascending."""
    sql = "SELECT DISTINCT batch_no FROM rollout WHERE batch_no IS NOT NULL ORDER BY batch_no"
    return [no for (no,) in explorer.index.read(sql)]


def refutations_of(batch: BatchCertificate) -> list[str]:
    """A line for each refuted claim."""
    return [
        f"batch {batch.no}, group {row.gid}, row {row.row}: {name}: {row.why.get(name, '')}"
        for row in batch.rows
        for name, value in row.claims.items()
        if value == Value.REFUTED.value
    ]


def table_of(counts: dict[str, Counter[str]]) -> str:
    """Rows by claim and value, as text."""
    lines = [f"{'claim':14}" + "".join(f"{value:>10}" for value in VALUES)]
    for name in CLAIMS:
        if name in counts:
            cells = "".join(f"{counts[name][value]:>10}" for value in VALUES)
            lines.append(f"{name:14}{cells}   {CLAIMS[name]}")
    return "\n".join(lines)
