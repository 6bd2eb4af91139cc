"""Load on servers of the rollout API: ours, a naive one, and the bare HTTP server below both."""
