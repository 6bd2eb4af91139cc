"""Checks of gpu.py: a module per subject, a function per check."""
