"""Text adventures of TextWorld: worlds made from a seed, played by typed commands.

A short name of ``atroposlib/adapters/textworld.py``.
"""

from atroposlib.adapters.textworld import textworld

__all__ = ["textworld"]

if __name__ == "__main__":
    textworld.cli()
