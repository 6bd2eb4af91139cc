"""The training run: connections, prefetch, heartbeat, metrics, display."""
