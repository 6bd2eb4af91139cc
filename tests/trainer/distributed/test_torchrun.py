"""Exit status of ranks through torchrun, with real processes."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending, status",
    [("sys.exit(0)", 0), ("sys.exit(2)", 2), ("os.kill(os.getpid(), 9)", 1), ("1 / 0", 1)],
)
def test_the_status_is_that_of_the_failed_rank_and_of_a_killed_rank_1(
    tmp_path, ending, status
):
    script = tmp_path / "rank.py"
    script.write_text(f"import os, sys\nif os.environ['RANK'] == '1':\n    {ending}\n")
    words = ["--standalone", "--nproc-per-node", "2", str(script)]
    argv = [sys.executable, "-m", "example_trainer.distributed.torchrun", *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == status, done.stderr
