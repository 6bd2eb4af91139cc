"""Explorer: reader of the index and of the payloads, behind /explore. Blocking; for threads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from atroposlib.api.archive.certificates import BatchCertificate, batch_certificate
from atroposlib.api.archive.filters import (
    FILTERS,
    PAGING,
    Order,
    characters_of,
    filter_number,
    limit_of,
    order_of,
    require_known_filters,
    where,
)
from atroposlib.api.archive.index import Index
from atroposlib.api.archive.records import RunFacts
from atroposlib.api.archive.row_texts import (
    reported_numbers,
    stored_payloads,
    texts_of_rows,
)
from atroposlib.api.archive.run_views import RunViews, histogram_field, histogram_of
from atroposlib.api.archive.selection import SAMPLE, ChosenRows, row_kinds
from atroposlib.api.archive.token_balance import index_account
from atroposlib.api.archive.wins import Wins, wins_of
from atroposlib.api.store import Store
from atroposlib.errors import ConfigError, UnknownGroup
from atroposlib.run_status.task_history import ORDERS, TaskPage, task_page
from atroposlib.utils.command.run_folder import DATA_FOLDERS
from atroposlib.utils.tokenizers.loading import local_tokenizer
from atroposlib.utils.tokenizers.texts import exact_text, token_texts
from atroposlib.wire import explore
from atroposlib.wire.binary import unpack_columns
from atroposlib.wire.explore import RunAccount
from atroposlib.wire.group_arrays import Columns
from atroposlib.wire.images import pictures_of
from atroposlib.wire.numbers import finite_float
from atroposlib.wire.safetensors import Array

MAX_TOKENS = 16_384  # per call
DEFAULT_TOKENS = 4096
# shown characters of the prompt and of the completion in the view of a group
TEXT_CHARACTERS = 2000
SEARCH_S = 1.0  # limit of a search, whose page may then be short; ``next`` continues
TEXT_S = 0.3  # limit of reading the answers of a page
SEARCHED_ROWS = 100  # rows searched at a time
_NAMES = explore.RolloutRow.__struct_fields__
_SELECT = f"SELECT {', '.join(_NAMES)} FROM rollout"
# fields that the rows of a group share
_SHARED = ("gid", "env", "item", "group_id", "state", "batch_no", "step")


class Explorer(RunViews):
    """Answers over an index and the store whose groups it lists."""

    def __init__(
        self, index: Index, store: Store, about: Callable[[], RunFacts] | None = None
    ) -> None:
        super().__init__(index)
        self._store, self._about = store, about or (lambda: index.run)

    def of_run(self, run_id: str | None) -> Explorer:
        """Answers over an earlier run of the same data directory; without an id the current run.

        Raises:
            UnknownGroup: unknown run.
        """
        if run_id in (None, self._about().run_id):
            return self
        index = self.index.of_run(run_id)
        return self if index is self.index else Explorer(index, self._store)

    def runs(self, given: Mapping[str, str]) -> explore.Runs:
        """The runs of this data directory, the newest first."""
        require_known_filters(given)
        older = (Explorer(index, self._store) for index in self.index.older())
        return explore.Runs([self._entry(), *(run._entry(older=True) for run in older)])

    def _entry(self, older: bool = False) -> explore.RunEntry:
        about, path = self._about(), self._store.archive
        counts = "(SELECT COUNT(*) FROM rollout), (SELECT COUNT(*) FROM rollout WHERE row = 0)"
        trained = "(SELECT COUNT(*) FROM batch WHERE acked IS NOT NULL)"
        done = "batch_no IS NOT NULL AND state IN ('acked', 'committed')"
        taken = f"EXISTS (SELECT 1 FROM rollout WHERE {done})"
        [(rollouts, groups, steps, has_trained)] = self.index.read(
            f"SELECT {counts}, {trained}, {taken}"
        )
        if (
            has_trained and not steps
        ):  # the index of a PostgreSQL store is made from groups alone
            steps = None
        with closing(self.index.reader()) as reader:
            names = {msgspec.json.decode(kind)[0] for kind in row_kinds(reader)} - {None}
        return explore.RunEntry(
            run_id=about.run_id,
            path=None if path is None else str(path.parent.parent),
            live=about.live,
            state=about.state,
            steps=steps,
            groups=groups,
            rollouts=rollouts,
            bytes=None if older else self._store.stats().disk_bytes or None,
            tokenizer=about.tokenizer,
            tokenizer_found=self._decoder() is not None,
            envs=sorted({*about.envs, *names}),
            sources={name: dict(source) for name, source in about.sources.items()},
        )

    def _decoder(self) -> Any:
        name = self._about().tokenizer
        return None if name is None else local_tokenizer(name)

    # --- rollouts -------------------------------------------------------------------

    def rollouts(self, given: Mapping[str, str]) -> explore.RolloutPage:
        """A page of rows that the filters let pass.

        Raises:
            ConfigError: an unknown filter, or a value that it cannot have.
        """
        require_known_filters(given, *FILTERS, *PAGING)
        order, limit, after = order_of(given), limit_of(given), given.get("after")
        with closing(self.index.reader()) as reader:
            chosen = ChosenRows(reader, where(given))
            if text := given.get("q"):
                page = self._search(text.casefold(), chosen, order, after, limit)
            else:
                rows, last = _page(chosen, order, after, limit)
                page = explore.RolloutPage(rows, last, chosen.count())
        if characters := characters_of(given):
            rows = self._with_answers(page.rows, characters)
            return msgspec.structs.replace(page, rows=rows)
        return page

    def _with_answers(
        self, rows: Sequence[explore.ListedRow], characters: int
    ) -> list[explore.ListedRow]:
        """The rows with the beginning of their answers, read for ``TEXT_S``; later rows have none."""
        end = time.monotonic() + TEXT_S
        rows_of: dict[int, list[int]] = {}
        for row in rows:
            rows_of.setdefault(row.gid, []).append(row.row)
        answers: dict[tuple[int, int], str] = {}
        for gid, own in rows_of.items():
            if time.monotonic() > end:
                break
            groups = stored_payloads(self.index, self._store, [gid])
            places = [(gid, row) for row in own]
            texts = texts_of_rows(groups, places, self._decoder, characters)
            for place, text in zip(places, texts):
                answers[place] = (text.answer or "")[:characters]
        replace = msgspec.structs.replace
        return [replace(row, answer=answers.get((row.gid, row.row))) for row in rows]

    def histogram(self, given: Mapping[str, str]) -> explore.Histogram:
        """As of :meth:`RunViews.histogram`; with ``q`` over rows that a search finds in its time."""
        require_known_filters(given, "field", *FILTERS)
        words = given.get("q", "").casefold()
        if not words:
            return super().histogram({name: given[name] for name in given if name != "q"})
        field, order = histogram_field(given), order_of({})
        with closing(self.index.reader()) as reader:
            chosen = ChosenRows(reader, where(given))
            page = self._search(words, chosen, order, None, SAMPLE)
        values = [getattr(row, field) for row in page.rows]
        return histogram_of(field, values, sampled=page.next is not None)

    def _search(
        self, text: str, chosen: ChosenRows, order: Order, after: str | None, limit: int
    ) -> explore.RolloutPage:
        """Rows whose completions contain ``text``: read row by row, for ``SEARCH_S`` a call."""
        # the limit excludes the load of the decoder
        decoder, end = self._decoder(), time.monotonic() + SEARCH_S
        matches: list[explore.ListedRow] = []
        group: tuple[int, StoredGroup | None] = (0, None)
        while True:
            rows, after = _page(chosen, order, after, SEARCHED_ROWS)
            for row in rows:
                if group[0] != row.gid:
                    group = row.gid, self.stored_group(row.gid)
                completion = group[1] and group[1].texts(row.row, decoder, None)[1]
                if completion and text in completion.casefold():
                    matches.append(row)
                if len(matches) == limit or time.monotonic() > end:
                    counted = explore.Counted(len(matches), exact=False)
                    return explore.RolloutPage(matches, order.key(row), counted)
            if after is None:
                counted = explore.Counted(len(matches), exact=True)
                return explore.RolloutPage(matches, None, counted)

    def _rows(self, gid: int) -> list[explore.RolloutRow]:
        rows = self.index.read(f"{_SELECT} WHERE gid = ? ORDER BY row", (gid,))
        return [explore.RolloutRow(**dict(zip(_NAMES, row))) for row in rows]

    def pin(self, step: int, kept: bool = True) -> dict[str, int]:
        """Keep the groups of a step beyond the bound of the archive, or no longer."""
        sql = "SELECT DISTINCT gid FROM rollout WHERE COALESCE(step, batch_no) = ?"
        rows = self.index.read(sql, (step,)) if abs(step) < 2**63 else []
        gids = [gid for (gid,) in rows]
        self._store.pin(gids, kept)
        return {"groups": len(gids), "pinned": self._store.count_pinned(gids)}

    def batch(self, no: int, given: Mapping[str, str]) -> explore.BatchDetail:
        detail = super().batch(no, given)
        detail.pinned = self._store.count_pinned([member.gid for member in detail.members])
        return detail

    def certificate(self, no: int, given: Mapping[str, str]) -> BatchCertificate:
        """Claims about each row of a batch, as far as its stored groups prove them.

        Raises:
            UnknownGroup: the index has no batch of this number.
        """
        require_known_filters(given)
        return batch_certificate(self.index, self._store, self._about(), no)

    def account(self, given: Mapping[str, str]) -> RunAccount:
        """The balance of tokens: what servers returned, by end state.

        Raises:
            ConfigError: ``by`` is neither env, version nor step.
        """
        require_known_filters(given, "by")
        by, about = given.get("by", ""), self._about()
        if by not in ("", "env", "version", "step"):
            raise ConfigError("by: env, version or step")
        now = (
            self._store.now() if about.live else math.inf
        )  # all processes of an ended run are over
        accounts = [about.accounts[name] for name in sorted(about.accounts)]
        return index_account(self.index, accounts, now, by)

    def tasks(self, given: Mapping[str, str]) -> TaskPage:
        """Tasks by success over steps and their pools, of environments with a curriculum.

        Raises:
            ConfigError: an unknown order.
        """
        require_known_filters(given, "env", "order", "limit")
        order, folder = given.get("order", ORDERS[0]), self._about().checkpoint_dir
        if order not in ORDERS:
            raise ConfigError(f"order: one of {', '.join(ORDERS)}")
        places = [Path(folder)] if folder else []
        archive = self._store.archive
        data = None if archive is None else archive.parent.parent
        if data is not None and data.name in DATA_FOLDERS:  # its parent is a run's folder
            places += [data.parent, data.parent / "checkpoints"]
        return task_page(places, given.get("env"), order, limit_of(given))

    def wins(self, given: Mapping[str, str]) -> Wins:
        """Games against earlier versions of the policy, by version: their mean score."""
        return wins_of(self.index, self._store, given)

    # --- a group --------------------------------------------------------------------

    def group(self, gid: int, given: Mapping[str, str]) -> explore.GroupView:
        """All rows of a group side by side.

        Raises:
            UnknownGroup: neither the index nor the store has it.
        """
        require_known_filters(given)
        group = self.stored_group(gid)
        rows = self._rows(gid) if abs(gid) < 2**63 else []
        if not rows:
            raise UnknownGroup(f"group {gid} is not in the index")
        rewards = np.array([row.reward for row in rows if row.reward is not None])
        with np.errstate(over="ignore", invalid="ignore"):
            baseline, spread = (
                finite_float(float(of())) if len(rewards) else None
                for of in (rewards.mean, rewards.std)
            )
        first, decoder = rows[0], self._decoder()
        shared = {name: getattr(first, name) for name in _SHARED}
        metadata = {} if group is None else group.columns.rest_value("metadata") or {}
        return explore.GroupView(
            **shared,
            n_bytes=None if group is None else group.n_bytes,
            media=None if group is None else "safetensors",
            archived=group is not None and first.state in ("committed", "dropped"),
            baseline=baseline,
            spread=spread,
            life=self._life(first),
            rows=[self._group_row(row, metadata, group, decoder) for row in rows],
        )

    def _group_row(
        self,
        row: explore.RolloutRow,
        metadata: Mapping[str, Any],
        group: StoredGroup | None,
        decoder: Any,
    ) -> explore.GroupRow:
        own = metadata.get("rows")
        meta = own[row.row] if isinstance(own, list) and row.row < len(own) else {}
        meta = meta if isinstance(meta, dict) else {}
        texts = (None, None) if group is None else group.texts(row.row, decoder)
        return explore.GroupRow(
            **msgspec.structs.asdict(row),
            metrics=reported_numbers(meta.get("metrics")),
            timings=reported_numbers(meta.get("timings")),
            judge=None if meta.get("judge") is None else str(meta["judge"])[:TEXT_CHARACTERS],
            prompt=texts[0],
            completion=texts[1],
        )

    def _life(self, row: explore.RolloutRow) -> list[explore.LifeEvent]:
        sql = "SELECT claimed, acked FROM batch WHERE no = ?"
        rows = self.index.read(sql, (row.batch_no,)) or [(None, None)]
        times = zip(("posted", "leased", "acked"), (row.arrived, *rows[0]))
        return [explore.LifeEvent(event, at) for event, at in times if at is not None]

    # --- a row ----------------------------------------------------------------------

    def row(self, gid: int, row: int, given: Mapping[str, str]) -> explore.RowView:
        """Tokens [from, to) of a row, with the known facts of each.

        Raises:
            UnknownGroup: unknown row, or its bytes are freed.
        """
        require_known_filters(given, "from", "to")
        group = self.stored_group(gid)
        if group is None:
            raise UnknownGroup(f"the bytes of group {gid} are not kept")
        columns = group.columns
        if not 0 <= row < len(columns.seq_lens):
            raise UnknownGroup(f"group {gid} has the rows 0 .. {len(columns.seq_lens) - 1}")
        n_tokens = int(columns.seq_lens[row])
        start = filter_number("from", given.get("from", "0"), int)
        to = filter_number("to", given.get("to", str(start + DEFAULT_TOKENS)), int)
        if not 0 <= start <= to or to - start > MAX_TOKENS:
            raise ConfigError(f"from, to: ascending, at most {MAX_TOKENS} tokens apart")
        start, to = min(start, n_tokens), min(to, n_tokens)
        offset = int(columns.seq_lens[:row].sum())
        messages, decoder = columns.rest_value("messages"), self._decoder()
        shown = self._token_columns(gid, row, columns, offset, (start, to))
        if decoder is not None:
            before = columns.tokens[offset : offset + start].tolist()
            shown.text = token_texts(decoder, shown.id, before)
        return explore.RowView(
            gid=gid,
            row=row,
            n_tokens=n_tokens,
            start=start,
            to=to,
            tokenizer=None if decoder is None else self._about().tokenizer,
            messages=messages[row] if messages else None,
            images=pictures_of(columns.rest_value("images"), row) if start == 0 else [],
            metadata=columns.rest_value("metadata") or {},
            columns=shown,
        )

    def _token_columns(
        self, gid: int, row: int, columns: Columns, offset: int, span: tuple[int, int]
    ) -> explore.TokenColumns:
        """Tokens of a span of the row that begins at ``offset``, with the trainer's notes."""
        here = slice(offset + span[0], offset + span[1])
        floats = {name: values[here].tolist() for name, values in columns.floats.items()}
        shown = explore.TokenColumns(
            id=columns.tokens[here].tolist(),
            trained=columns.trained[here].astype(np.uint8).tolist(),
            logprob=floats.get("inference_logprobs"),
            version=None if columns.versions is None else columns.versions[here].tolist(),
            advantage=floats.get("advantages"),
        )
        sql = "SELECT advantages, logprobs, flags FROM note WHERE gid = ? AND row = ?"
        for noted in self.index.read(sql, (gid, row)):
            end = offset + int(columns.seq_lens[row])
            trained = columns.trained[offset:end]
            advantages, shown.trainer_logprob, flags = (
                values_in_span(data, dtype, trained, span)
                for data, dtype in zip(noted, ("<f4", "<f2", "|u1"))
            )
            shown.advantage = advantages or shown.advantage
            shown.flags = None if flags is None else [int(flag or 0) for flag in flags]
        return shown

    def stored_group(self, gid: int) -> StoredGroup | None:
        """The group, if its bytes are kept."""
        for payload in stored_payloads(self.index, self._store, [gid]).values():
            return StoredGroup(unpack_columns(payload), len(payload))
        return None


class StoredGroup:
    """A decoded group, and the size of its payload."""

    def __init__(self, columns: Columns, n_bytes: int) -> None:
        self.columns, self.n_bytes = columns, n_bytes

    def texts(
        self, row: int, decoder: Any, most: int | None = TEXT_CHARACTERS
    ) -> tuple[str | None, str | None]:
        """Prompt and completion of a row, at most ``most`` characters each.

        The completion begins at the first trained token. Without a tokenizer it is the last
        message of the assistant, if the group has messages.
        """
        columns = self.columns
        if decoder is None:
            messages = columns.rest_value("messages")
            own = messages[row] if messages else []
            turns = [m["content"] for m in own if m["role"] == "assistant"]
            return None, turns[-1][:most] if turns and isinstance(turns[-1], str) else None
        start = int(columns.seq_lens[:row].sum())
        end = start + int(columns.seq_lens[row])
        trained = np.flatnonzero(columns.trained[start:end])
        middle = start + int(trained[0]) if len(trained) else end
        prompt = columns.tokens[start:middle][:most].tolist()
        completion = columns.tokens[middle:end][:most].tolist()
        return exact_text(decoder, prompt)[:most], exact_text(decoder, completion)[:most]


def _page(
    chosen: ChosenRows, order: Order, after: str | None, limit: int
) -> tuple[list[explore.ListedRow], str | None]:
    rows = [listed_row(row) for row in chosen.page(", ".join(_NAMES), order, after, limit)]
    return rows, order.key(rows[-1]) if len(rows) == limit else None


def listed_row(row: tuple[Any, ...]) -> explore.ListedRow:
    return explore.ListedRow(**dict(zip(_NAMES, row)))


def values_in_span(
    data: bytes | None, dtype: str, trained: Array, span: tuple[int, int]
) -> list[float | None] | None:
    """Values of trained tokens at their positions in ``span`` of a row; None elsewhere."""
    if data is None or len(data) != np.dtype(dtype).itemsize * int(trained.sum()):
        return None
    placed = np.full(len(trained), np.nan)
    placed[trained] = np.frombuffer(data, dtype)
    return [None if np.isnan(value) else float(value) for value in placed[slice(*span)]]
