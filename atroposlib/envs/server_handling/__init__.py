"""Clients of inference servers: routing, slots, retries, and token-exact sequences."""
