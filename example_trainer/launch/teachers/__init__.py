"""Teachers of a run: servers of fixed weights that the launcher starts for environments."""
