"""``atropos-launch``: start a run from a YAML file, on this machine or a cluster."""
