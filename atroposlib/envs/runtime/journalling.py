"""Beginning of an environment's journal in a run, and the work that its earlier lives left."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from atroposlib.envs.journal.sample_journal import FOLDER, LeftWork
from atroposlib.envs.rollout.filters import AcceptedGroup
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.errors import InvalidGroup

logger = logging.getLogger(__name__)
GB = 10**9


def journal_folder(checkpoint_dir: str, journal_dir: str | None) -> Path | None:
    """The folder of journals: the configured one, else one in the trainer's; None: no folder."""
    if journal_dir is not None:
        return Path(journal_dir)
    return Path(checkpoint_dir) / FOLDER if checkpoint_dir else None


async def open_journal(runtime: EnvRuntime) -> None:
    """Open the journal in the run's folder, and go on with what earlier lives left.

    Groups are posted again under their keys, before the position in the data is read: an item
    whose groups cannot be posted is still open.
    """
    config, run = runtime.config, runtime.joined_run
    folder = journal_folder(run.checkpoint_dir, config.journal_dir)
    if folder is None or config.journal_gb <= 0:
        return
    limit_bytes = int(config.journal_gb * GB)
    run_id = run.registration.run_id
    try:
        left = await asyncio.to_thread(runtime.journal.start, folder, run_id, limit_bytes)
    except OSError as error:
        logger.warning(
            "%s: no journal in %s, so a kill loses the samples of unfinished groups (%s); "
            "--env.journal_dir names a folder of this machine, --env.journal_gb 0 ends this line",
            runtime.label(),
            folder,
            error.strerror or error,
        )
        return
    await _post_left(runtime, left)
    place = runtime.go_on_from(left)
    if place is not None:
        runtime.journal.note_place(place.next_place, place.open_places)
    if left.samples or left.groups:
        logger.info(
            "%s: an earlier life left %d finished samples, and groups of %d items, now posted",
            runtime.label(),
            left.samples,
            len(left.groups),
        )


async def _post_left(runtime: EnvRuntime, left: LeftWork) -> None:
    sender, run_id = runtime.sender, runtime.joined_run.registration.run_id
    if sender is None:
        return
    for name, packed in left.groups:
        try:
            groups = [AcceptedGroup.unpacked(data) for data in packed]
        except InvalidGroup as error:
            logger.error("a group of the journal cannot be read: %s", error)
        else:
            await sender.send(groups, None, run_id)
        runtime.journal.end_left(name)
