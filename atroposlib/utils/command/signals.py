"""Signals to this process, and to none of the children that its code makes by fork.

A forked child inherits the handlers of its parent, and the pipe by which a signal wakes the
parent's event loop. Without a reset the SIGTERM by which ``multiprocessing.Pool`` ends its
workers would stop the parent, and end no worker.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

_installed: dict[int, Callable[[int, FrameType | None], None]] = {}
_ignored: set[int] = set()  # signals ignored before a handler was installed, as under nohup
_forking = (
    threading.local()
)  # its ``mask``: signals that the thread had blocked before the fork


def on_signals(handler: Callable[[int], object], *numbers: signal.Signals) -> None:
    """Call ``handler`` in the main thread with the number of each signal to this process.

    Raises:
        ValueError: this is not the main thread.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        handler(number)

    for number in numbers:
        before = signal.signal(number, handle)
        if before is signal.SIG_IGN:
            _ignored.add(number)
        _installed[number] = handle


def reset_and_raise(number: int) -> None:
    """Send this process the signal again, with the handler that Python starts with."""
    _reset(number)
    signal.raise_signal(number)


def _reset(number: int) -> None:
    if number in _ignored:
        signal.signal(number, signal.SIG_IGN)
    elif number == signal.SIGINT:
        signal.signal(number, signal.default_int_handler)
    else:
        signal.signal(number, signal.SIG_DFL)


def _hold_signals() -> None:
    """Keep signals to the child until it has its own handlers: Python would drop them."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _installed)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _reset_in_child() -> None:
    signal.set_wakeup_fd(-1)
    for number, handler in _installed.items():
        # a different handler belongs to the code of the user
        if signal.getsignal(number) is handler:
            _reset(number)
    _installed.clear()
    _release_signals()


os.register_at_fork(
    before=_hold_signals,
    after_in_parent=_release_signals,
    after_in_child=_reset_in_child,
)
