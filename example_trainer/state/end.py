"""The end of a run, recorded by its trainer: the only sign that launchers accept.

An exit status passes other programs: srun ends with 0 when its node is lost while the trainer
lives.

    launcher    deletes the record of an earlier launch, and names the file to the trainer
    trainer     deletes it at its start, and writes it after its last step and model
    launcher    the run is over if the trainer ended with 0 and the record is there
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from atroposlib.utils.io import write_whole

VARIABLE = "ATROPOS_RUN_END"  # names the file
FILE = "ended.json"  # below <out>/launch


def forget(path: Path) -> None:
    """Delete the record of an earlier start."""
    path.unlink(missing_ok=True)


def record_end(path: Path, **facts: int | str) -> None:
    """Write the record, atomically and durably, with facts for people who read it."""
    write_whole(path, json.dumps(facts) + "\n")


def end_file() -> Path | None:
    """The file that the launcher named to this trainer."""
    text = os.environ.get(VARIABLE)
    return Path(text) if text else None
