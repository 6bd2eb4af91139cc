"""Procedural tasks of the reasoning-gym package, scored by the package.

A short name of ``atroposlib/adapters/reasoning_gym.py``.
"""

from atroposlib.adapters.reasoning_gym import reasoning_gym

__all__ = ["reasoning_gym"]

if __name__ == "__main__":
    reasoning_gym.cli()
