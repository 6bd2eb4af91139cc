"""Models of transformers: what trainer and local server both know of them."""
