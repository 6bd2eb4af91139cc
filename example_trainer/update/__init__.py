"""Optimizer steps: loss sums, gradient, clipped step."""
