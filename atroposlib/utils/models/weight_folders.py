"""Folders that an inference server loads and copies weights from.

``ATROPOS_WEIGHTS_FROM`` lists these folders; launchers set it to where the trainer of the run
publishes. Without it a server takes any directory of a model: a server started by hand knows
no run.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

VARIABLE = "ATROPOS_WEIGHTS_FROM"
NODE_VARIABLE = "ATROPOS_NODE_DIR"


def node_folder() -> Path:
    """The folder of this user for copies on the node's own disk."""
    place = Path(os.environ.get(NODE_VARIABLE) or tempfile.gettempdir())
    return place / f"atropos-weights-{os.getuid()}"


def require_weight_folder(directory: str) -> None:
    """Reject a directory outside of the folders of ``ATROPOS_WEIGHTS_FROM`` and of the node.

    Raises:
        PermissionError: the message names the folders.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return
    folders = [Path(part).resolve() for part in named.split(os.pathsep) if part]
    path = Path(directory).resolve()  # links are followed
    if not any(path.is_relative_to(folder) for folder in (*folders, node_folder().resolve())):
        raise PermissionError(f"{directory} is in none of the folders of {VARIABLE}: {named}")
