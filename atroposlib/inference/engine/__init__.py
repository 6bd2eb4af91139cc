"""Generation loop of the local server: scheduler, batch, KV cache, sampling."""
