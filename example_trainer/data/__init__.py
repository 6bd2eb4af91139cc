"""Scored groups to rows, packs and micro-batches."""

from example_trainer.data.packing import pack_ffd

__all__ = ["pack_ffd"]
