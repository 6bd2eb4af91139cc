"""Decisions of the queue as pure functions: no I/O, no clock, no state."""
