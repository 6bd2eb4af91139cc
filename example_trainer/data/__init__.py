"""Scored groups to rows, and rows to packed micro-batches."""
