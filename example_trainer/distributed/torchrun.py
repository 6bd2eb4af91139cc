"""``torchrun`` whose exit status is that of the rank that failed first.

python -m example_trainer.distributed.torchrun --standalone --nproc-per-node 2 -m example_trainer.grpo

torchrun ends with 1 whatever a rank ended with. A launcher then starts a trainer again that ended
by a wrong setting (status 2), which ends the same way.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(argv: Sequence[str] | None = None) -> int:
    """Run torchrun with ``argv``; its status, of a failed rank the rank's, of a signal 1."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        run.main(words)
    except ChildFailedError as failed:
        _, first = failed.get_first_failure()
        logging.getLogger(__name__).error("%s", failed)
        return max(1, first.exitcode)
    return 0


if __name__ == "__main__":
    sys.exit(main())
