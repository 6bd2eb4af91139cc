"""Rollouts of a run in blocks of records, so that memory does not grow with the run.

index --a block of rows--> payloads of their groups --> texts --> records
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import orjson

from atroposlib.api.archive.filters import (
    FILTERS,
    Order,
    envs_called,
    require_known_filters,
    where,
)
from atroposlib.api.archive.index import Index
from atroposlib.api.archive.row_texts import RowTexts, stored_payloads, texts_of_rows
from atroposlib.api.archive.selection import ChosenRows, row_kinds
from atroposlib.api.store.sqlite import DATABASE
from atroposlib.api.store.sqlite.segment_payloads import OpenPayloads
from atroposlib.errors import ConfigError
from atroposlib.utils.tokenizers.loading import local_tokenizer, tokenizer_of_run
from atroposlib.wire.explore import RolloutRow

NUMBERS = tuple(RolloutRow.__struct_fields__)
METADATA = "metadata"
TEXTS = tuple(name for name in RowTexts._fields if name != METADATA)
BLOCK_ROWS = 1024
BLOCK_GROUPS = 64  # groups whose bytes are in memory together
Record = dict[str, Any]
OLDEST_FIRST = Order("gid", descending=False)


class RunRollouts:
    """The rollouts of a run that filters let pass, the oldest first.

    Args:
        folder: data directory of the run's API; the run may go on meanwhile.
        run_id: an earlier run of the directory.
        filters: as of GET /explore/rollouts; ``q``, words of the answer, needs ``text``.
        text: records have the fields ``TEXTS`` too.
        metadata: records with texts have the metadata of their environment too.
        groups: ids of the groups to read; None: of all.
        tokenizer: directory or cached name; None: that of the run's trainer.

    Raises:
        ConfigError: no index is there, a filter has another value, or the texts cannot be read.
        UnknownGroup: the directory has no run ``run_id``.
    """

    def __init__(
        self,
        folder: Path,
        run_id: str | None,
        filters: Mapping[str, str],
        text: bool = False,
        tokenizer: str | None = None,
        metadata: bool = False,
        groups: Collection[int] | None = None,
    ) -> None:
        require_known_filters(filters, *(FILTERS if text else FILTERS[:-1]))
        self._where, self._words = where(filters), filters.get("q", "").casefold()
        indexes = folder.glob("archive/**/index.sqlite")
        path = max(indexes, key=lambda file: file.stat().st_mtime, default=None)
        if path is None:
            raise ConfigError(
                f"{folder} has no archive/index.sqlite: give the folder of a run, or a --data-dir "
                "of run-api"
            )
        self.index = Index(path, read_only=True).of_run(run_id)
        if "env" in filters:
            self._where = self._where.of_envs(self._envs_called(filters["env"]))
        self.database = folder / DATABASE
        if text and not self.database.is_file():
            raise ConfigError(
                f"{folder} has no {DATABASE}, so no texts are here: those of PostgreSQL are read by "
                "`atropos view postgresql://... --data-dir DIR`"
            )
        noted = tokenizer_of_run(self.index.run.tokenizer, folder)
        self.text, self.tokenizer = text, tokenizer or noted
        self.count = 0  # rollouts so far
        self._groups = groups
        self._texts = (*TEXTS, METADATA) if metadata else TEXTS

    def _envs_called(self, name: str) -> list[str]:
        """The environments of a name, or with a number that the API added to it."""
        with closing(self.index.reader()) as reader:
            known = {
                env for env, *_ in map(orjson.loads, row_kinds(reader)) if env is not None
            }
        envs = envs_called(name, sorted(known))
        if known and not envs:
            listed = ", ".join(sorted(known))
            raise ConfigError(f"env={name}: no rollouts of it in this run, only of {listed}")
        return envs

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of a record."""
        return (*NUMBERS, *self._texts) if self.text else NUMBERS

    def blocks(self) -> Iterator[list[Record]]:
        """Records, at most ``BLOCK_ROWS`` at a time.

        Raises ConfigError: texts are tokens only, and the tokenizer is not on this machine.
        """
        for block in self._blocks(decoding=True):
            block = [record for record in block if self._has_words(record)]
            self.count += len(block)
            if block:
                yield block

    def named_rewards(self) -> Iterator[list[Record]]:
        """Records as of :meth:`blocks`, or more, without the texts that only tokens have."""
        return self._blocks(decoding=False)

    def _blocks(self, decoding: bool) -> Iterator[list[Record]]:
        columns, after = ", ".join(NUMBERS), None
        with ExitStack() as stack:
            chosen = ChosenRows(stack.enter_context(closing(self.index.reader())), self._where)
            payloads = None
            if self.text:
                payloads = stack.enter_context(closing(OpenPayloads(self.database)))
            while True:
                rows = chosen.page(columns, OLDEST_FIRST, after, BLOCK_ROWS)
                block = [dict(zip(NUMBERS, row)) for row in rows if self._is_wanted(row[0])]
                if payloads is not None:
                    self._add_texts(block, payloads, decoding)
                yield block
                if len(rows) < BLOCK_ROWS:
                    return
                after = OLDEST_FIRST.key(RolloutRow(**dict(zip(NUMBERS, rows[-1]))))

    def _is_wanted(self, gid: int) -> bool:
        return self._groups is None or gid in self._groups

    def _has_words(self, record: Record) -> bool:
        return not self._words or self._words in (record["answer"] or "").casefold()

    def _add_texts(self, block: list[Record], payloads: OpenPayloads, decoding: bool) -> None:
        def decoder() -> Any:
            if not decoding:
                return None
            tokenizer = None if self.tokenizer is None else local_tokenizer(self.tokenizer)
            if tokenizer is None:
                raise ConfigError(self._no_decoder())
            return tokenizer

        gids = list(dict.fromkeys(record["gid"] for record in block))
        for at in range(0, len(gids), BLOCK_GROUPS):
            wanted = set(gids[at : at + BLOCK_GROUPS])
            records = [record for record in block if record["gid"] in wanted]
            groups = stored_payloads(self.index, payloads, wanted)
            places = [(record["gid"], record["row"]) for record in records]
            for record, texts in zip(records, texts_of_rows(groups, places, decoder)):
                record.update((name, getattr(texts, name)) for name in self._texts)

    def _no_decoder(self) -> str:
        name = self.tokenizer
        missing = f"is not on this machine ({name})" if name else "is not known"
        return (
            f"no messages were kept, and the tokenizer of the run {missing}: name its folder"
        )
