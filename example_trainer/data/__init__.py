"""Scored groups to rows, packs and micro-batches."""
