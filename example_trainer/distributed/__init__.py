"""Ranks, collectives and tensor shards."""
