"""``python -m atroposlib.inference``."""

from atroposlib.inference.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
