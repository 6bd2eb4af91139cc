"""Load on rollout APIs: ours, a naive API, and the bare HTTP server below both."""
