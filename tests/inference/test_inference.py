"""The command itself, as a real process on a free port."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys

import httpx
import pytest

from atroposlib.inference.__main__ import main
from tests.inference.helpers import WAIT_S


def test_a_process_serves_reloads_and_stops_on_a_signal(model_dir, other_dir):
    command = [sys.executable, "-m", "atroposlib.inference", "--model", str(model_dir)]
    options = ["--port", "0", "--threads", "1", "--served-model-name", "small"]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, *options], **piped) as process:
        try:
            assert f"loading {model_dir}" in process.stderr.readline()  # before torch is
            line = process.stdout.readline()  # printed when the port answers
            url = re.search(r"http://\S+", line).group()
            with httpx.Client(base_url=url, timeout=WAIT_S, trust_env=False) as http:
                body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
                chat = http.post("/v1/chat/completions", json={**body, "model": "small"})
                assert chat.status_code == 200, chat.text
                weights = {"model_path": str(other_dir), "weight_version": 2}
                assert http.post("/update_weights_from_disk", json=weights).json()["success"]
                assert http.get("/health").headers["X-Weight-Version"] == "2"
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_S)
        finally:
            process.kill()
    assert process.returncode in (0, -signal.SIGTERM)


def test_a_port_in_use_is_one_error_line_and_exit_status_1(model_dir, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["--model", str(model_dir), "--port", str(port)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"127.0.0.1:{port}" in line and "in use" in line


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "example.org"])
def test_a_non_loopback_address_needs_a_flag(host, model_dir, capsys):
    assert main(["--model", str(model_dir), "--host", host]) == 1
    assert "--allow-remote" in capsys.readouterr().err


def test_an_unloadable_model_is_one_error_line(tmp_path, capsys):
    assert main(["--model", str(tmp_path / "absent"), "--port", "0"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "absent" in line


def test_the_command_line_starts_without_loading_torch():
    code = "import sys, atroposlib.inference, atroposlib.inference.__main__; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == "False", found.stderr
