"""Names in the folder of a run: launchers write there, and every command that reads a run looks there."""

from __future__ import annotations

# The data directory of the rollout API; quickstarts of earlier releases named it "api".
DATA_FOLDER = "queue"
DATA_FOLDERS = (DATA_FOLDER, "api")
METRICS = "metrics.jsonl"
