"""A YAML file of AReaL as the plan of a run: options of all processes but the trainer."""
