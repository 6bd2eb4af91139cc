"""An app on a real socket, in a thread of the test: :mod:`atroposlib.testing.serving`."""

from __future__ import annotations

from atroposlib.testing.serving import WAIT_S, serve_in_thread as served

__all__ = ["WAIT_S", "served"]
