"""The original's import path of atropos-sft-gen, a command of ``cli.collect``."""

import sys

from atroposlib.cli.collect.collecting import sft_gen as main

if __name__ == "__main__":
    sys.exit(main())
