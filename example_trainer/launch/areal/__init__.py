"""One YAML file of AReaL as the plan of a whole run: options of all processes but the trainer."""
