"""End of a process with its parent, whatever ends the parent.

torchrun puts each rank into a session of its own, so a signal to the launcher's process group
misses the ranks. A rank without its torchrun would train on against its successor.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

logger = logging.getLogger(__name__)
CHECK_S = 0.5


def end_with_parent(check_s: float = CHECK_S) -> threading.Thread:
    """Kill this process within ``check_s`` of the end of its parent; returns the watching thread.

    SIGKILL, because a rank that saves or waits in a collective would hold its device while its
    successor loads; what it leaves is what any ``kill -9`` leaves. The parent-death signal of
    Linux would come with the end of the *thread* that started this process, and nowhere else.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(check_s)
        logger.error("the parent process (pid %d) has ended: this process ends too", parent)
        os.kill(os.getpid(), signal.SIGKILL)

    thread = threading.Thread(target=watch, name="parent", daemon=True)
    thread.start()
    return thread
