"""Command line of an environment: serve, process, evaluate."""
