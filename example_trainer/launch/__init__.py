"""``atropos-launch``: start a run from one YAML file, on this machine or a SLURM cluster."""
