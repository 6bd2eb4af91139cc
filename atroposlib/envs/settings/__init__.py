"""Settings of an environment and their command-line flags."""
