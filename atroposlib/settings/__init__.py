"""Settings of every command: YAML files, their merger, flags, sentences of errors."""
