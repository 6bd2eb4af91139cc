"""Command line of the proxy: refusals, and a whole process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import httpx
import pytest

from atroposlib.generation.proxy.main import main
from tests.generation.proxy.proxy_kit import tool_tokenizer


def test_an_open_proxy_for_other_machines_needs_an_explicit_flag(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("ATROPOS_PROXY_TOKEN", raising=False)
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({"model_name": "m", "servers": []}))
    arguments = ["--config", str(config)]
    assert main([*arguments, "--host", "0.0.0.0"]) == 1
    assert "--allow-remote" in capsys.readouterr().err
    assert main([*arguments, "--host", "0.0.0.0", "--allow-remote"]) == 1
    assert "at least one" in capsys.readouterr().err
    monkeypatch.setenv("ATROPOS_PROXY_TOKEN", "secret")
    assert main([*arguments, "--host", "0.0.0.0"]) == 1
    assert "at least one" in capsys.readouterr().err
    assert main(["--config", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err


def test_a_server_framework_is_imported_after_the_arguments_are_parsed():
    heavy = "{'fastapi', 'pydantic', 'starlette'}"
    code = f"import sys, {main.__module__}; print({heavy} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "set()\n"


@pytest.mark.slow
def test_the_proxy_runs_as_a_process_and_ends_on_a_signal(tmp_path):
    tool_tokenizer().save_pretrained(tmp_path / "tokenizer")
    names = {"model_name": "m", "tokenizer_name": str(tmp_path / "tokenizer")}
    servers = [{"base_url": "http://127.0.0.1:1/v1"}]
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({**names, "servers": servers}))
    module = "atroposlib.generation.proxy.main"
    command = [sys.executable, "-m", module, "--config", str(config), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        url = line.split()[-1]
        assert line == f"proxy of m on {url}\n"
        health = httpx.get(f"{url}/health", timeout=600).json()
        assert (health["model"], health["servers"]) == ("m", 1)
        assert httpx.post(f"{url}/sessions/create", json={}).status_code == 200
        taken = [*command[:-1], url.rpartition(":")[2]]
        clash = subprocess.run(taken, capture_output=True, text=True, timeout=600)
        assert (clash.returncode, "cannot listen" in clash.stderr) == (1, True)
        process.terminate()
        assert process.wait(600) in (0, -signal.SIGTERM)
