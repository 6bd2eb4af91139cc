"""Variables that a launcher gives to the process of an environment."""

from __future__ import annotations

# Sequences of a batch that this environment has to fill alone, with groups of its size.
FILLS_BATCHES_OF = "ATROPOS_FILLS_BATCHES_OF"
SEAT = "ATROPOS_SEAT"  # place in the plan, the same for each life of the process
CHECK_ONLY = "ATROPOS_CHECK_ONLY"  # set: check the settings and end, without a connection
