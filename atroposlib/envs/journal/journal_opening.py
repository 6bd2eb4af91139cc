"""Opening of an environment's journal in the run's folder, and of the groups that it holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from atroposlib.envs.journal.journalled_rollout import LeftWork
from atroposlib.envs.journal.sample_journal import FOLDER, SampleJournal
from atroposlib.envs.rollout.filters import AcceptedGroup
from atroposlib.envs.rollout.groups import ScoredDataGroup
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.errors import InvalidGroup

logger = logging.getLogger(__name__)
GB = 10**9


def journal_folder(checkpoint_dir: str, config: BaseEnvConfig) -> Path | None:
    """The folder of journals: the configured one, else one in the trainer's; None: no journal."""
    if config.journal_gb <= 0:
        return None
    if config.journal_dir is not None:
        return Path(config.journal_dir)
    return Path(checkpoint_dir) / FOLDER if checkpoint_dir else None


async def open_journal(
    journal: SampleJournal, folder: Path, run_id: str, journal_gb: float
) -> LeftWork:
    """Open ``journal`` in ``folder``; a folder that cannot be used is logged, and leaves no work."""
    try:
        left = await asyncio.to_thread(journal.start, folder, run_id, int(journal_gb * GB))
    except OSError as error:
        logger.warning(
            "%s: no journal in %s, so a kill loses the samples of unfinished groups (%s); "
            "--env.journal_dir names a folder of this machine, --env.journal_gb 0 ends this line",
            journal.label,
            folder,
            error.strerror or error,
        )
        return LeftWork()
    if left.samples or left.groups:
        logger.info(
            "%s: an earlier life left %d finished samples, and groups of %d items to post",
            journal.label,
            left.samples,
            len(left.groups),
        )
    return left


def pack_groups(groups: Sequence[AcceptedGroup], env_id: int) -> list[bytes]:
    """The groups as they are sent, in the binary form of the wire."""
    from atroposlib.wire.binary import pack_columns  # numpy loads where it is used

    return [pack_columns(group.as_sent(env_id), compress=False) for group in groups]


def unpack_groups(packed: Sequence[bytes]) -> list[AcceptedGroup]:
    """The groups of :func:`pack_groups`, with the fields that are sent; damaged ones are logged."""
    from atroposlib.wire.binary import unpack_columns

    groups = []
    for data in packed:
        try:
            columns = unpack_columns(data)
        except InvalidGroup as error:
            logger.error("a group of the journal cannot be read: %s", error)
            continue
        keys = {"idempotency_key": columns.idempotency_key, "group_id": columns.group_id}
        groups.append(AcceptedGroup(cast(ScoredDataGroup, keys), columns))
    return groups
