"""A sweep: a run for each combination of settings, queued, and continued by the same command."""
