"""Start, watch and end the processes of one run; nothing else is ever signalled.

    children   start, wait until ready, end: SIGTERM, a bound, SIGKILL
    watchdog   ends them when the one who started them was killed

Shared by the quickstart and by the trainer's launchers; needs the standard library only.
"""

from atroposlib.processes.children import (
    Child,
    Children,
    Exit,
    Interrupted,
    ProcessSpec,
    RunFailed,
    StopRequest,
    free_port,
    log_tail,
)

__all__ = [
    "Child",
    "Children",
    "Exit",
    "Interrupted",
    "ProcessSpec",
    "RunFailed",
    "StopRequest",
    "free_port",
    "log_tail",
]
