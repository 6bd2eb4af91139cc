"""A group of two sequences for tests."""

from __future__ import annotations


def group(scores=(0.0, 1.0), **more):
    n = len(scores)
    return {
        "tokens": [[1, 5, 9]] * n,
        "masks": [[-100, -100, 9]] * n,
        "scores": list(scores),
        **more,
    }
