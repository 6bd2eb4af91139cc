"""Processes of a run on this machine: start, readiness, watch, restart, end.

    children    start, wait until ready, end: SIGTERM, a bound, SIGKILL
    supervisor  start order, watch, restart rules
    watchdog    ends the children of a launcher that was killed

Only processes started here are ever signalled. Used by the quickstart, the trainer's
launchers and the benchmarks; needs the standard library only.
"""

from atroposlib.processes.children import (
    Child,
    Children,
    Exit,
    Interrupted,
    ProcessSpec,
    RunFailed,
    StopRequest,
    answers,
    free_port,
    log_tail,
)
from atroposlib.processes.supervisor import RestartByHand, StopOnExit, Supervisor
