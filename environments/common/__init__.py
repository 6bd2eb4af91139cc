"""Bases and helpers of several environments."""
