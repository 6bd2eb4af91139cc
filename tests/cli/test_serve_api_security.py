"""A real run-api with tokens, with TLS, and with everything it writes on record."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess

import httpx
import pytest

from atroposlib.api.guards.tokens import add_token
from atroposlib.cli import run_api
from atroposlib.client import AsyncRolloutClient, RolloutClient
from atroposlib.errors import Forbidden, Unauthorized
from atroposlib.wire import RegisterEnv
from tests.api.harness import group
from tests.api.processes import registration, serving

MARKER = "marker-51d0"
JOIN = RegisterEnv(max_token_length=64, desired_name="mine", weight=1.0, group_size=4)


@pytest.fixture
def issued(tmp_path):
    path = tmp_path / "tokens"
    names = ("admin", "trainer", "env:mine", "env:other", "read")
    return path, {name: add_token(path, name) for name in names}


@pytest.mark.slow
async def test_a_run_with_tokens_works_from_registration_to_ack(tmp_path, issued, monkeypatch):
    path, tokens = issued
    with serving(tmp_path / "data", "--tokens", str(path)) as (_, url):
        monkeypatch.setenv("ATROPOS_API_TOKEN", tokens["trainer"])
        trainer = RolloutClient(url)
        trainer.register(registration())
        trainer.claim(wait_s=0)  # opens the run to environments
        env = AsyncRolloutClient(url, token=tokens["env:mine"])
        env_id = (await env.register_env(JOIN)).env_id
        await env.send_groups([group(4, env_id=env_id), group(4, 2, env_id=env_id)])
        batch = trainer.claim(wait_s=5)
        assert trainer.ack(batch)
        with pytest.raises(Forbidden):
            trainer.reset()
        other = AsyncRolloutClient(url, token=tokens["env:other"])
        with pytest.raises(Forbidden):
            await other.register_env(JOIN)
        nobody = RolloutClient(url, token="atr_" + "a" * 43)
        with pytest.raises(Unauthorized):
            nobody.status()
        reader = RolloutClient(url, token=tokens["read"])
        assert reader.status().batches_acked == 1
        for client in (trainer, nobody, reader):
            client.close()
        await env.close()
        await other.close()


@pytest.mark.slow
def test_requests_with_a_foreign_host_or_origin_are_rejected(tmp_path):
    with serving(tmp_path, "--allow-host", "api.internal") as (_, url):
        with httpx.Client(base_url=url, trust_env=False) as http:
            assert http.get("/status").status_code == 200
            for host, status in {"evil.example": 421, "api.internal": 200, "": 400}.items():
                assert http.get("/status", headers={"host": host}).status_code == status
            cross = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
            assert http.get("/reset_data", headers=cross).status_code == 403
            asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
            reply = http.options("/reset_data", headers=asked)
            assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.slow
@pytest.mark.parametrize("style", ["json", "text"])
def test_the_log_contains_no_token_and_no_body_content(tmp_path, issued, style):
    path, tokens = issued
    log = tmp_path / "log"
    options = ("--tokens", str(path), "--log-level", "debug", "--log-format", style)
    with open(log, "w") as stderr:
        with serving(tmp_path / "data", *options, stderr=stderr) as (process, url):
            with httpx.Client(base_url=url, trust_env=False) as http:
                for token in (*tokens.values(), "atr_" + "b" * 43):
                    bearer = {"authorization": f"Bearer {token}", "x-more": MARKER}
                    for path_ in ("/scored_data", "/register", "/status", f"/{MARKER}"):
                        http.post(f"{path_}?q={MARKER}", content=MARKER, headers=bearer)
                        body = group(2, group_id=MARKER, masks=[[1], [1]])
                        http.post(path_, json=body, headers=bearer)
                    http.get("/status", headers=bearer)
            process.terminate()  # a request is logged behind its reply
            process.wait()
    text = log.read_text()
    assert MARKER not in text
    for token in (*tokens.values(), "b" * 43):
        assert token not in text
    assert text.count("route") == text.count("\n") == 54
    if style == "json":
        events = [json.loads(line) for line in text.splitlines()]
        assert {event["message"] for event in events} == {"request"}
        assert {event["level"] for event in events} == {"debug", "info"}


@pytest.mark.slow
def test_the_api_serves_https(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not on the path")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        + ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        + ["-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    options = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    with serving(tmp_path / "data", *options) as (_, url):
        assert url.startswith("https://")
        trusted = ssl.create_default_context(cafile=str(certificate))
        reply = httpx.get(url + "/health", verify=trusted, trust_env=False)
        assert reply.json() == {"status": "ok"}
        with pytest.raises(httpx.ConnectError):
            httpx.get(url + "/health", trust_env=False)
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(url.replace("https", "http") + "/health", trust_env=False)


@pytest.mark.parametrize("name", ["bad.pem", "missing.pem"])
def test_an_unusable_certificate_is_a_one_line_error(tmp_path, capsys, name):
    (tmp_path / "bad.pem").write_text("no certificate")
    path = str(tmp_path / name)
    argv = ["--store", "memory", "--port", "0", "--ssl-certfile", path, "--ssl-keyfile", path]
    assert run_api.main(argv) == 1
    error = capsys.readouterr().err
    assert error.startswith("run-api: --ssl-certfile") and error.count("\n") == 1
