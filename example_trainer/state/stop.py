"""How the trainer is asked to stop."""

from __future__ import annotations

import signal
from types import FrameType


class Stopped(Exception):
    """The trainer was asked to stop, by the signal the message names."""


class StopSignal:
    """Set by a signal, read where stopping is safe: never between publish and ack."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def request(self, number: int, frame: FrameType | None = None) -> None:
        self.reason = signal.Signals(number).name

    def check(self) -> None:
        if self.reason is not None:
            raise Stopped(self.reason)
