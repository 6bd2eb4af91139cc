from __future__ import annotations

import signal
import subprocess
import sys

from atroposlib.processes import watchdog


def test_process_groups_that_were_not_ended_are_left():
    assert watchdog.groups_left(["+12\n", "+13\n", "-12\n", "+14\n", "+1\n", "+0", "-"]) == [
        13,
        14,
    ]


def test_a_process_group_that_ignores_sigterm_is_killed(tmp_path):
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('ignoring', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    watchdog.end_groups([process.pid], grace_s=0.1)
    assert process.wait(timeout=600) == -signal.SIGKILL
    process.stdout.close()
