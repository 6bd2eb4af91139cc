"""The end of a run, recorded by its trainer: the only sign that launchers accept.

An exit status passes other programs: srun ends with 0 when its node is lost while the trainer
lives.

    launcher    deletes the record of an earlier launch, and names the file to the trainer
    trainer     deletes it at its start, and writes it after its last step and model
    launcher    the run is over if the trainer ended with 0 and the record is there

A second file beside the record says that every environment has ended: the trainer takes the batches
that are left, and then ends as after its last step. On a cluster a folder has a file for each
environment that has ended, and the last one writes the second file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from atroposlib.utils.io import write_whole

VARIABLE = "ATROPOS_RUN_END"  # names the file
FILE = "ended.json"  # below <out>/launch
NO_MORE_GROUPS = "no-more-groups"  # name of a file beside FILE
ENDED = "environments-ended"  # folder in that of FILE


def forget(path: Path) -> None:
    """Delete the record of an earlier start."""
    path.unlink(missing_ok=True)


def expect_groups(path: Path) -> None:
    """Delete what an earlier launch wrote about environments that have ended."""
    for old in (path.with_name(NO_MORE_GROUPS), *path.with_name(ENDED).glob("*")):
        old.unlink(missing_ok=True)


def note_environment(path: Path, name: str) -> None:
    """Note that an environment of the run has ended."""
    write_whole(path.with_name(ENDED) / name, "")


def has_environment_ended(path: Path, name: str) -> bool:
    return (path.with_name(ENDED) / name).exists()


def environments_ended(path: Path) -> int:
    """The number of environments that have ended."""
    return len([*path.with_name(ENDED).glob("[!.]*")])


def expect_no_groups(path: Path) -> None:
    """Tell the trainer of the record ``path`` that every environment has ended."""
    write_whole(path.with_name(NO_MORE_GROUPS), "every environment has ended\n")


def ended_step(path: Path) -> int | None:
    """Return the last step of a run by its record; None without a readable record."""
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def record_end(path: Path, **facts: int | str) -> None:
    """Write the record, atomically and durably, with facts for people who read it."""
    write_whole(path, json.dumps(facts) + "\n")


def end_file() -> Path | None:
    """The file that the launcher named to this trainer."""
    text = os.environ.get(VARIABLE)
    return Path(text) if text else None


def have_environments_ended() -> bool:
    """Whether the launcher of this trainer says that every environment has ended."""
    path = end_file()
    return path is not None and path.with_name(NO_MORE_GROUPS).exists()
