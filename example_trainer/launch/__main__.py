"""``python -m example_trainer.launch``."""

from __future__ import annotations

import sys

from example_trainer.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
