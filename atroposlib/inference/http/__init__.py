"""HTTP surface of the local server."""
