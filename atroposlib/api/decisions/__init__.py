"""What to do next, as pure functions: no I/O, no clock, no state of their own."""
