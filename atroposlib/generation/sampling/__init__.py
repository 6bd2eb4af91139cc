"""Sampling parameters, sampled tokens, and resumption of aborted generations."""
