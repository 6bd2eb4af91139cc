"""In-place weight updates of the local server."""
