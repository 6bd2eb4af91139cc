"""File of accepted groups, each of which is in it once over the lives of an environment."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from atroposlib.envs.rollout.groups import plain

# In each line of the original's files, null where a group has none.
ALWAYS_WRITTEN = (
    "ref_logprobs",
    "overrides",
    "group_overrides",
    "distill_token_ids",
    "distill_logprobs",
)
TAIL_BYTES = 64 * 2**20  # more than the groups that an environment finishes and has not sent


class GroupFile:
    """The jsonl file of accepted groups; each line is handed to the system before the group is sent.

    The first group opens it, so that a run without groups leaves no empty file.
    """

    def __init__(self, wanted: str) -> None:
        self.path, self._earlier = free_path(Path(wanted))
        self._file: BinaryIO | None = None
        self._written: set[str] = set()  # keys in the file of the earlier life

    def follow_earlier(self, rollouts: Collection[str]) -> None:
        """Leave out groups of ``rollouts`` that the earlier life wrote and did not send."""
        if rollouts and self._earlier is not None:
            keys = keys_at_end(self._earlier)
            self._written = {key for key in keys if key.rsplit("-", 1)[0] in rollouts}

    def write(self, group: Mapping[str, Any]) -> None:
        """Append a group."""
        if group.get("idempotency_key") in self._written:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("xb")
        self._file.write(msgspec.json.encode(group, enc_hook=_json_form) + b"\n")
        self._file.flush()

    def write_with_absent(self, group: Mapping[str, Any]) -> None:
        """Append a group; fields that the original's files always have are null if absent."""
        self.write({**dict.fromkeys(ALWAYS_WRITTEN), **group})

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file is not None:
            self._file.close()


def _json_form(value: Any) -> Any:
    """Values of fields that only the file holds: values without a JSON form become their repr."""
    known = plain(value)
    return repr(value) if known is value else known


def free_path(wanted: Path) -> tuple[Path, Path | None]:
    """``wanted``, or the first of ``<stem>_1``, ``<stem>_2`` ... that does not exist; and the
    last that does."""
    path, number, last = wanted, itertools.count(1), None
    while path.exists():
        last = path
        path = wanted.with_name(f"{wanted.stem}_{next(number)}{wanted.suffix}")
    return path, last


class _Keyed(msgspec.Struct):
    """The key of a line; the other fields are not decoded."""

    idempotency_key: str | None = None


def keys_at_end(path: Path) -> Iterator[str]:
    """Keys of the last groups of a file, which are within :data:`TAIL_BYTES` of its end."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        for line in file:
            try:
                key = msgspec.json.decode(line, type=_Keyed).idempotency_key
            except msgspec.MsgspecError:  # the rest of a line at the begin, or torn by a kill
                continue
            if key is not None:
                yield key
