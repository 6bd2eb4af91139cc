"""Small state of an environment, such as its place in a data set, beside the trainer's.

    <checkpoint_dir>/env_checkpoints/<name in the run>/step-<n>.json

A restarted environment gets a new name in the run (``gsm8k_1`` after ``gsm8k_0``), so it
looks for the newest checkpoint of any name its own name could have had.
"""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_STEP_FILE = re.compile(r"step-(\d+)\.json")


def _directory(checkpoint_dir: str, run_name: str) -> Path:
    # The name comes from the rollout API: it may not lead out of the directory.
    safe = re.sub(r"[^\w.-]", "_", run_name).lstrip(".") or "env"
    return Path(checkpoint_dir) / "env_checkpoints" / safe


def save(checkpoint_dir: str, run_name: str, step: int, data: dict[str, Any]) -> Path:
    """Write ``data`` whole or not at all, and return its path."""
    path = _directory(checkpoint_dir, run_name) / f"step-{step}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data), encoding="utf-8")
    os.replace(partial, path)
    return path


def newest(checkpoint_dir: str, run_name: str, step: int) -> tuple[int, dict[str, Any]] | None:
    """The newest checkpoint not later than ``step``: its step and its data."""
    own = _directory(checkpoint_dir, run_name)
    stem = re.sub(r"_\d+$", "", own.name)
    found: list[tuple[int, bool, Path]] = []
    if not own.parent.is_dir():
        return None
    for directory in own.parent.iterdir():
        if re.fullmatch(re.escape(stem) + r"(_\d+)?", directory.name) is None:
            continue
        for path in directory.iterdir():
            match = _STEP_FILE.fullmatch(path.name)
            if match and int(match[1]) <= step:
                found.append((int(match[1]), directory == own, path))
    if not found:
        return None
    at, _, path = max(found)
    loaded = json.loads(path.read_text(encoding="utf-8"))
    logger.info("environment state of step %d read from %s", at, path)
    return at, dict(loaded)


def restore(target: object, data: dict[str, Any], protected: frozenset[str]) -> None:
    """Set the attributes that ``target`` already has; never its machinery.

    A checkpoint directory is shared, so a key in it may not reach a method, a private
    attribute or one of ``protected``.
    """
    for name, value in data.items():
        if name.startswith("_") or name in protected or name not in vars(target):
            logger.warning("environment state: %r is not an attribute to restore", name)
        else:
            setattr(target, name, value)
