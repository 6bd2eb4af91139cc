"""The original's import path of atropos-dpo-gen, a command of ``cli.collect``."""

import sys

from atroposlib.cli.collect.collecting import dpo_gen as main

if __name__ == "__main__":
    sys.exit(main())
