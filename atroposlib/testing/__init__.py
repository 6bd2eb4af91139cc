"""Fakes for tests of environments and trainers, and a tiny model with random weights."""
