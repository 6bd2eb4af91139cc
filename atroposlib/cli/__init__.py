"""Console commands; each module has a ``main`` that pyproject names."""
