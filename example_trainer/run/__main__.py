"""``python -m example_trainer.run``: the original's form of ``atropos-grpo-run``."""

import sys

from example_trainer.launch.single import main

if __name__ == "__main__":
    sys.exit(main())
