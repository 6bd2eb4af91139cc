"""view-run-multimodal: :mod:`atroposlib.cli.view_run` with the images of a group."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from atroposlib.cli import view_run


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the page until interrupted."""
    return view_run.main(argv, images=True)


if __name__ == "__main__":
    sys.exit(main())
