"""Commands of operators: backups, batches set aside, steering of a live run."""
