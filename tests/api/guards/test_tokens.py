"""The token file: only its current content is valid."""

from __future__ import annotations

import logging
import os
import stat
from hashlib import sha256

import pytest

from atroposlib.api.guards.tokens import Caller, Scope, TokenFile, add_token, parse_grant
from atroposlib.errors import ConfigError, TokensUnreadable, Unauthorized

ENV_SCOPES = frozenset({Scope.ENV, Scope.READ})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens"


def write(path, *lines):
    path.write_text("".join(line + "\n" for line in lines))
    path.chmod(0o600)
    return path


def line(token, grant="read", *ends):
    return " ".join([grant, sha256(token.encode()).hexdigest(), *map(str, ends)])


def test_a_new_token_is_stored_as_a_digest_in_a_file_only_its_owner_can_read(path):
    token = add_token(path, "env:gsm8k")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == line(token, "env:gsm8k") + "\n"
    assert token not in path.read_text()
    assert len(token) == len("atr_") + 43  # 256 bits in base64


def test_new_tokens_are_distinct(path):
    assert len({add_token(path, "read") for _ in range(20)}) == 20


@pytest.mark.parametrize(
    "grant, caller",
    [
        ("env", Caller(ENV_SCOPES)),
        ("env:gsm8k", Caller(ENV_SCOPES, "gsm8k")),
        ("env:a:b", Caller(ENV_SCOPES, "a:b")),
        ("trainer", Caller(frozenset({Scope.TRAINER, Scope.READ}))),
        ("admin", Caller(frozenset(Scope))),
        ("read", Caller(frozenset({Scope.READ}))),
    ],
)
def test_a_token_covers_its_scope_and_the_implied_scopes(path, grant, caller):
    token = add_token(path, grant)
    assert TokenFile(path).identify(token) == caller


@pytest.mark.parametrize(
    "token", ["", " ", "short", "a" * 600, "tök", "atr_\n", "a b", "=", "Bearer x"]
)
def test_an_unknown_token_is_refused(path, token):
    add_token(path, "admin")
    with pytest.raises(Unauthorized):
        TokenFile(path).identify(token)


def test_a_digest_is_not_a_token(path):
    add_token(path, "admin")
    with pytest.raises(Unauthorized, match="this token is unknown"):
        TokenFile(path).identify(path.read_text().split()[1])


def test_a_token_expires_at_its_exact_second(path):
    now = 1000.0
    write(path, line("t" * 20, "read", 1001))
    tokens = TokenFile(path, lambda: now)
    tokens.identify("t" * 20)
    now = 1001.0
    with pytest.raises(Unauthorized, match="ended"):
        tokens.identify("t" * 20)


def test_rotation_needs_no_restart_and_both_tokens_are_valid_meanwhile(path):
    old = add_token(path, "trainer")
    tokens = TokenFile(path)
    new = add_token(path, "trainer")
    assert tokens.identify(old) == tokens.identify(new)
    write(path, line(new, "trainer"))
    tokens.identify(new)
    with pytest.raises(Unauthorized):
        tokens.identify(old)


def test_a_file_replaced_within_one_tick_of_the_file_clock_is_reloaded(path):
    write(path, line("a" * 20))
    tokens = TokenFile(path)
    tokens.identify("a" * 20)
    before = path.stat()
    path.write_text(line("b" * 20) + "\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    tokens.identify("b" * 20)


def test_an_unchanged_token_file_is_read_once(path, monkeypatch):
    write(path, line("a" * 20))
    os.utime(path, (1000, 1000))
    tokens = TokenFile(path)
    monkeypatch.setattr("builtins.open", None)  # opening a file fails
    for _ in range(3):
        tokens.identify("a" * 20)


def test_comments_and_empty_lines_are_allowed(path):
    write(path, "# ours", "", "   ", line("a" * 20) + "  # the laptop")
    TokenFile(path).identify("a" * 20)


@pytest.mark.parametrize(
    "bad",
    [
        "admin",
        "admin 12",
        "root " + "0" * 64,
        "trainer:x " + "0" * 64,
        "env: " + "0" * 64,
        "read " + "0" * 64 + " soon",
        "read " + "0" * 64 + " -1",
        "read " + "0" * 64 + " 1 2",
        "read " + "A" * 64,
    ],
)
def test_an_invalid_line_fails_the_start_and_is_not_quoted(path, bad):
    write(path, line("a" * 20), bad)
    with pytest.raises(ConfigError, match="line 2") as refused:
        TokenFile(path)
    assert "0" * 64 not in str(refused.value)


def test_an_invalid_line_added_later_is_skipped_and_logged(path, caplog):
    write(path, line("a" * 20))
    tokens = TokenFile(path)
    write(path, "oops", line("b" * 20))
    with caplog.at_level(logging.ERROR):
        tokens.identify("b" * 20)
    assert "line 1" in caplog.text and "oops" not in caplog.text
    with pytest.raises(Unauthorized):
        tokens.identify("a" * 20)


def test_the_error_of_a_missing_token_file_names_the_command_that_creates_it(path):
    with pytest.raises(ConfigError, match="--new-token admin"):
        TokenFile(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_token_file_that_other_users_can_read_or_write_is_rejected(path, mode):
    write(path, line("a" * 20)).chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        TokenFile(path)
    with pytest.raises(ConfigError, match="chmod 600"):
        add_token(path, "admin")


def test_no_token_is_valid_while_the_file_is_missing_or_open_to_others(path):
    write(path, line("a" * 20))
    tokens = TokenFile(path)
    path.chmod(0o644)
    with pytest.raises(TokensUnreadable):
        tokens.identify("a" * 20)
    path.rename(path.with_suffix(".away"))
    with pytest.raises(TokensUnreadable):
        tokens.identify("a" * 20)
    write(path, line("a" * 20))
    tokens.identify("a" * 20)


def test_a_token_is_appended_on_a_new_line(path):
    path.write_text(line("a" * 20))
    path.chmod(0o600)
    token = add_token(path, "read", ends=2**40)
    tokens = TokenFile(path)
    tokens.identify("a" * 20)
    tokens.identify(token)


@pytest.mark.parametrize("grant", ["", "boss", "env:", "env:a b", "env:#", "admin:x", "Env"])
def test_a_grant_is_a_scope_or_an_environment(grant):
    with pytest.raises(ConfigError):
        parse_grant(grant)
