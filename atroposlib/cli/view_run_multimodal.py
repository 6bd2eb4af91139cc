"""view-run-multimodal: :mod:`atroposlib.cli.view_run` with the images of a group."""

import sys
from functools import partial

from atroposlib.cli import view_run

main = partial(view_run.main, images=True)

if __name__ == "__main__":
    sys.exit(main())
