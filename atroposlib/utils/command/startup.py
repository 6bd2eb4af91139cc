"""Variables of a launcher for the check of an environment's process at its start."""

from __future__ import annotations

# Sequences of a batch that this environment has to fill alone, with groups of its size.
FILLS_BATCHES_OF = "ATROPOS_FILLS_BATCHES_OF"
CHECK_ONLY = "ATROPOS_CHECK_ONLY"  # set: check the settings and end, without a connection
