"""History of observed groups: a line each, for ``atropos env tasks`` and the page."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import IO, Any

from atroposlib.envs.curriculum.interface import ObservedGroup
from atroposlib.envs.rollout.groups import item_label
from atroposlib.run_status.task_history import FOLDER, OLDER
from atroposlib.text.lines import json_line
from atroposlib.utils.io import file_name_of

logger = logging.getLogger(__name__)
MAX_BYTES = 32 * 2**20  # bound of a file; two files are kept


class TaskHistory:
    """Appends lines to a file of the trainer's folder, bounded in size."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: IO[str] | None = None

    def open(self, checkpoint_dir: str, label: str) -> None:
        """Write to the folder of the trainer from now on; without a folder nothing is written."""
        self.close()
        if checkpoint_dir:
            name = file_name_of(label)
            self._path = Path(checkpoint_dir) / FOLDER / f"{name}.jsonl"

    def write(self, group: ObservedGroup, item: Any, step: int, pool: str | None) -> None:
        """Append a group. A file that cannot be written is given up, with a warning."""
        if self._path is None:
            return
        entry = {
            "step": step,
            "task": item_label(item),
            "success": group.success,
            "useful": group.is_useful,
            "tokens": group.tokens,
            "version": group.version,
            "pool": pool,
        }
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("a", encoding="utf-8")
            self._file.write(json_line(entry))
            self._file.flush()
            if self._file.tell() > MAX_BYTES:
                self._file.close()
                self._file = None
                os.replace(self._path, f"{self._path}{OLDER}")
        except OSError as error:
            logger.warning("the history of tasks %s is not written: %s", self._path, error)
            self._path = None

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
