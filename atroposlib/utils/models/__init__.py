"""Models of transformers: code shared by trainer and local server."""
