"""Load on servers of the rollout API: ours, a naive API, and the bare HTTP server below both."""
