"""``python -m atroposlib.quickstart``."""

from __future__ import annotations

import sys

from atroposlib.quickstart.cli import main

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before the launcher listens: nothing was started yet
        sys.exit(130)
