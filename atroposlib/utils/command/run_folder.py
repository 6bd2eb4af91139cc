"""Names in the folder of a run: launchers write there, and every command that reads a run looks there."""

from __future__ import annotations

DATA_FOLDER = "queue"  # of the rollout API
# Quickstarts of earlier releases kept the same data in the second.
DATA_FOLDERS = (DATA_FOLDER, "api")
METRICS = "metrics.jsonl"
