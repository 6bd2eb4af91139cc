"""Checkpoints of an environment's small state, for example its position in a data set.

    <checkpoint_dir>/env_checkpoints/<name in the run>/step-<n>.json

A restarted environment gets a new name in the run (``gsm8k_1`` after ``gsm8k_0``), and its step
is seldom the step of a checkpoint. So the newest checkpoint up to its step is read, under the
current or an earlier name.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from numbers import Number
from pathlib import Path
from typing import Any

from atroposlib.envs.rollout.groups import plain
from atroposlib.utils.io import whole_file

logger = logging.getLogger(__name__)

_STEP_FILE = re.compile(r"step-(\d+)\.json")
CURRICULUM = "_curriculum"  # key of the runtime's part, in addition to the environment's
_PLAIN = (Number, str, list, dict, tuple, set, frozenset)


def _directory(checkpoint_dir: str, run_name: str) -> Path:
    # The name comes from the rollout API: it must not lead out of the directory.
    safe = re.sub(r"[^\w.-]", "_", run_name).lstrip(".") or "env"
    return Path(checkpoint_dir) / "env_checkpoints" / safe


def save(checkpoint_dir: str, run_name: str, step: int, data: dict[str, Any]) -> Path:
    """Write ``data`` atomically and return its path."""
    path = _directory(checkpoint_dir, run_name) / f"step-{step}.json"
    replace_text(path, json.dumps(plain(data)))
    return path


def replace_text(path: Path, text: str) -> None:
    """Write ``text`` atomically, and the folder of ``path`` if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def newest(checkpoint_dir: str, run_name: str, step: int) -> dict[str, Any] | None:
    """The newest data saved at or before ``step``; an unreadable file is skipped.

    Of two files of the same step, the file under the current name is read.
    """
    own = _directory(checkpoint_dir, run_name)
    saves = [(at, path.parent == own, path) for at, path in _candidates(own) if at <= step]
    for at, _, path in sorted(saves, reverse=True):
        try:
            loaded = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            logger.warning("environment state %s cannot be read: %s", path, error)
            continue
        if isinstance(loaded, dict):
            logger.info("environment state of step %d read from %s", at, path)
            return loaded
        logger.warning("environment state %s is not a mapping", path)
    return None


def _candidates(own: Path) -> Iterator[tuple[int, Path]]:
    stem = re.sub(r"_\d+$", "", own.name)
    if not own.parent.is_dir():
        return
    for directory in own.parent.iterdir():
        if directory.is_dir() and re.fullmatch(re.escape(stem) + r"(_\d+)?", directory.name):
            for path in directory.iterdir():
                if match := _STEP_FILE.fullmatch(path.name):
                    yield int(match[1]), path


def restore(target: object, data: dict[str, Any]) -> None:
    """Set the attributes of ``target`` that hold plain data; log a warning for other keys.

    A checkpoint directory is shared, so its keys must not replace a method, a private
    attribute, a live object or an attribute of the runtime.
    """
    for name, value in data.items():
        if name.startswith("_") or not _holds_data(target, name):
            logger.warning("environment state: %r is not an attribute to restore", name)
        else:
            setattr(target, name, value)


def _holds_data(target: object, name: str) -> bool:
    """Whether ``name`` is data of the instance, or a default of its class."""
    for place in (target, *type(target).__mro__):
        if name in vars(place):
            current = vars(place)[name]
            return current is None or isinstance(current, _PLAIN)
    return False
