"""The original's import path of :mod:`atroposlib.generation.proxy.main`."""

from atroposlib.generation.proxy.main import (
    Limits,
    create_app,
    main,
)

__all__ = [
    "Limits",
    "create_app",
    "main",
]

if __name__ == "__main__":
    main()
