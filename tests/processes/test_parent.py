"""A process that ends with its parent, also from a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

CHILD = """
import sys, time
from atroposlib.processes.parent import end_with_parent
end_with_parent(check_s=0.02)
print("watching", flush=True)
time.sleep(600)
"""
# torchrun starts its ranks so; the pipe of the child's output ends with the child.
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def test_a_rank_does_not_survive_its_torchrun():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline(), parent.stdout.readline()}
        assert b"watching\n" in lines
        os.kill(parent.pid, signal.SIGKILL)
        assert (
            parent.stdout.read() == b""
        )  # both ends of the pipe are closed: the child is gone
