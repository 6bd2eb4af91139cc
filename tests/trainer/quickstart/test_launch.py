from __future__ import annotations

import io
import socket

from rich.console import Console

from example_trainer.quickstart import launch
from example_trainer.quickstart.recipes import Options, ServingEngine


def test_a_failed_preflight_exits_with_2_and_starts_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(launch.StopRequest, "listen", lambda self: None)
    console = Console(file=io.StringIO(), width=200)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        options = Options("tiny", ServingEngine.LOCAL, 0, tmp_path / "out", server_port=port)
        assert launch.quickstart(options, console) == 2
    lines = console.file.getvalue().splitlines()
    assert lines == [f"quickstart: --port {port} cannot be used: Address already in use"]
    assert not (tmp_path / "out" / "logs").exists()
