"""The service of a run without HTTP: posts, claims, admission, liveness, events, metrics."""
