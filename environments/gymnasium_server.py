"""Gymnasium environments shown as text and played turn by turn.

A short name of ``atroposlib/adapters/gymnasium.py``.
"""

from atroposlib.adapters.gymnasium import gymnasium

__all__ = ["gymnasium"]

if __name__ == "__main__":
    gymnasium.cli()
