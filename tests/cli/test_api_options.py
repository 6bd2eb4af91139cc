"""Options of run-api: meaning, sources, and rejection at the start."""

from __future__ import annotations

import re
import stat

import pytest

from atroposlib.api.common.records import MAX_DELIVERIES
from atroposlib.api.guards.body import DEFAULT_LIMITS
from atroposlib.api.guards.tokens import Scope, TokenFile
from atroposlib.api.server import HOLD_S
from atroposlib.api.store import DEFAULT_MAX_BYTES
from atroposlib.cli import api_options, run_api, serve_api
from atroposlib.utils.command.logs import FORMATS, LEVELS
from tests.api.processes import without_variables

__all__ = ["without_variables"]
pytestmark = pytest.mark.usefixtures("without_variables")


def flags():
    return [
        action.option_strings[-1]
        for action in api_options.parser()._actions
        if action.option_strings[-1] not in ("--help", "--version", "-v")
    ]


def test_every_option_has_a_help_text_and_an_environment_variable(capsys):
    with pytest.raises(SystemExit):
        run_api.main(["--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert len(flags()) == 24
    for flag in flags():
        assert flag in words
        assert re.search(rf"\b{api_options.variable_of(flag)}\b", words), flag


def test_the_defaults_equal_those_of_the_configured_modules():
    options = api_options.parse_args([])
    assert (options.host, options.port, options.store) == ("127.0.0.1", 8000, "sqlite")
    assert options.max_body_mb * 2**20 == DEFAULT_LIMITS.post_bytes
    assert options.max_store_gb * 2**30 == DEFAULT_MAX_BYTES
    assert options.hold_s == HOLD_S
    assert options.max_deliveries == MAX_DELIVERIES
    assert options.log_format in FORMATS and options.log_level in LEVELS


def test_options_default_to_their_environment_variables(without_variables):
    for name, value in {
        "PORT": "8123",
        "STORE": "memory",
        "HOLD_S": "1.5",
        "FRESH": "yes",
        "RELOAD": "0",
        "TOKENS": "",
        "ALLOW_HOST": "a, b",
    }.items():
        without_variables.setenv(f"ATROPOS_{name}", value)
    options = api_options.parse_args(["--allow-host", "c"])
    assert (options.host, options.port, options.store) == ("127.0.0.1", 8123, "memory")
    assert options.hold_s == 1.5 and options.fresh and not options.reload
    assert options.tokens is None and sorted(options.allow_host) == ["a", "b", "c"]
    assert api_options.parse_args(["--port", "9"]).port == 9


# --- network access ---------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org", ""])
def test_listening_beyond_this_machine_needs_tokens(capsys, host):
    assert run_api.main(["--host", host]) == 1
    error = capsys.readouterr().err
    assert "--tokens FILE" in error and "--allow-remote" in error


def test_tokens_over_a_network_need_tls_or_a_flag(capsys, tmp_path):
    assert run_api.main(["--host", "0.0.0.0", "--tokens", str(tmp_path / "t")]) == 1
    error = capsys.readouterr().err
    assert "--ssl-certfile" in error and "--insecure-plaintext" in error


@pytest.mark.parametrize(
    "more",
    [
        ["--host", "127.0.0.1"],
        ["--host", "localhost"],
        ["--host", "::1"],
        ["--host", "127.3.2.1"],
        ["--host", "0.0.0.0", "--allow-remote"],
        ["--host", "0.0.0.0", "--tokens", "t", "--insecure-plaintext"],
        ["--host", "0.0.0.0", "--tokens", "t", "--ssl-certfile", "c", "--ssl-keyfile", "k"],
        ["--host", "0.0.0.0", "--tokens", "t", "--allow-remote"],
    ],
)
def test_safe_or_explicitly_allowed_addresses_are_accepted(more):
    serve_api.require_protection(api_options.parse_args(more))


def test_a_certificate_without_a_key_is_rejected(capsys):
    assert run_api.main(["--ssl-certfile", "c"]) == 1
    assert "come together" in capsys.readouterr().err


def test_the_host_header_is_checked_unless_tokens_protect_a_remote_api():
    def allowed(*argv):
        return serve_api.allowed_hosts(api_options.parse_args(argv))

    assert {"localhost", "127.0.0.1", "[::1]"} <= set(allowed())
    assert "evil.example" not in allowed()
    assert "api.local" in allowed("--allow-host", "api.local")
    assert "localhost" in allowed("--tokens", "t")
    assert "localhost" in allowed("--host", "0.0.0.0", "--allow-remote")
    assert allowed("--host", "0.0.0.0", "--tokens", "t") is None
    assert "x" in allowed("--host", "0.0.0.0", "--tokens", "t", "--allow-host", "x")


def test_the_first_line_shows_the_address_and_the_store_without_a_password():
    def line(*argv, host="127.0.0.1"):
        options = api_options.parse_args(["--data-dir", "runs/a", *argv])
        return serve_api._first_line(options, host, 8001)

    page = "http://127.0.0.1:8001/ui/"
    assert line() == f"rollout API on http://127.0.0.1:8001, runs/a; page {page}"
    assert line("--store", "memory", host="::1").startswith(
        "rollout API on http://[::1]:8001, memory only; "
    )
    url = "postgresql://me:secret@db:5432/runs"
    assert ", postgresql://[redacted]@db:5432/runs; " in line("--store", url)
    assert line("--ssl-certfile", "c", "--ssl-keyfile", "k").split()[3].startswith("https://")


# --- tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize("grant", ["env", "env:gsm8k", "trainer", "admin", "read"])
def test_a_new_token_is_printed_once_and_kept_as_a_digest(capsys, tmp_path, grant):
    path = tmp_path / "secrets" / "tokens"
    assert run_api.main(["--tokens", str(path), "--new-token", grant]) == 0
    out, err = capsys.readouterr()
    token = out.strip()
    assert Scope(grant.partition(":")[0]) in TokenFile(path).identify(token).scopes
    assert token not in err and token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_new_token_may_have_an_expiry(capsys, tmp_path):
    path = tmp_path / "tokens"
    argv = ["--tokens", str(path), "--new-token", "read", "--token-days", "2"]
    assert run_api.main(argv) == 0
    ends = int(path.read_text().split()[2])
    now = path.stat().st_mtime
    assert abs(ends - now - 2 * 86_400) < 60


@pytest.mark.parametrize(
    "argv, told",
    [
        (["--new-token", "admin"], "--tokens FILE"),
        (["--tokens", "t", "--new-token", "boss"], "a scope is one of"),
        (["--tokens", "t", "--new-token", "admin:x"], "only the scope env"),
        (["--tokens", "missing"], "--new-token admin"),
    ],
)
def test_an_error_about_tokens_is_one_line(capsys, tmp_path, without_variables, argv, told):
    without_variables.chdir(tmp_path)
    assert run_api.main(["--store", "memory", "--port", "0", *argv]) == 1
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1
