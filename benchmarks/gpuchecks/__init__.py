"""Checks of gpu.py: one module per subject, one function per check."""
