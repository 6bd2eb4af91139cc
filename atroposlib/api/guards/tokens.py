"""Token file: digests of random tokens with scopes, read again when the file changes.

A line per token, comments and empty lines allowed:

    scope[:environment]  sha256-of-the-token  [end, in seconds since 1970]

Several tokens of a scope are valid side by side, so a token is rotated by adding the
new token, moving the clients over, and deleting the old line. A token has 256 random bits:
it cannot be recovered from its digest, and a plain hash is enough.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path

from atroposlib.errors import ConfigError, TokensUnreadable, Unauthorized
from atroposlib.utils.command.logs import TOKEN_PREFIX

log = logging.getLogger(__name__)

_TOKEN_BYTES = 32
_WELL_FORMED = re.compile(r"[A-Za-z0-9._~+/-]{1,512}=*")  # what RFC 6750 calls b64token
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ENV_NAME = re.compile(r"\S{1,200}")
_JUST_WRITTEN_S = 0.1  # coarser than the clock of any file system in use


class Scope(str, Enum):
    """The permission of a token. Admin covers all; env, trainer and steer cover read."""

    ENV = "env"
    TRAINER = "trainer"
    STEER = "steer"
    ADMIN = "admin"
    READ = "read"


_COVERS = {scope: frozenset({scope, Scope.READ}) for scope in Scope}
_COVERS[Scope.ADMIN] = frozenset(Scope)


@dataclass(frozen=True, slots=True)
class Caller:
    """Permissions of the token of a request. ``scopes`` includes the covered scopes."""

    scopes: frozenset[Scope]
    env_name: str | None = None  # the only environment it is valid for; None: any


@dataclass(frozen=True, slots=True)
class Entry:
    """Line of the file."""

    caller: Caller
    digest: bytes
    ends: float | None  # seconds since 1970


class TokenFile:
    """The tokens of a file, which is read again whenever it has changed."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        """
        Raises:
            ConfigError: the file is missing, other users may read it, or a line is not a token.
        """
        self._path = path
        self._clock = clock
        try:
            entries, problems = _read(path)
        except OSError as error:
            raise ConfigError(
                f"--tokens {path}: {error.strerror}. "
                f"Begin with: run-api --tokens {path} --new-token admin"
            ) from error
        except TokensUnreadable as error:
            raise ConfigError(f"--tokens {path}: {error}") from error
        if problems:
            raise ConfigError(f"--tokens {path}: {'; '.join(problems[:3])}")
        self._entries = entries
        self._seen = self._state()

    def identify(self, token: str) -> Caller:
        """The caller with this token.

        Raises:
            Unauthorized: the token is malformed, unknown or expired.
            TokensUnreadable: the file cannot be read now.
        """
        if _WELL_FORMED.fullmatch(token) is None:
            raise Unauthorized("this is not a token")
        digest = sha256(token.encode()).digest()
        match: Entry | None = None
        # To the end, so that the duration does not depend on the match.
        for entry in self._current():
            if hmac.compare_digest(entry.digest, digest):
                match = entry
        if match is None:
            raise Unauthorized("this token is unknown")
        if match.ends is not None and self._clock() >= match.ends:
            raise Unauthorized("this token has ended")
        return match.caller

    def _current(self) -> list[Entry]:
        try:
            state = self._state()
            if state is None or state != self._seen:
                self._entries, problems = _read(self._path)
                self._seen = state
                for problem in problems:
                    log.error("token file: %s; the line is left out", problem)
        except OSError as error:
            raise TokensUnreadable(f"the token file: {error.strerror}") from error
        return self._entries

    def _state(self) -> tuple[int, ...] | None:
        """A value that changes with the file; None while the file is too young for that."""
        now = os.stat(self._path)
        if time.time() - now.st_mtime < _JUST_WRITTEN_S:
            return None
        return now.st_mtime_ns, now.st_size, now.st_ino, now.st_mode


def _read(path: Path) -> tuple[list[Entry], list[str]]:
    with open(path, encoding="utf-8", errors="replace") as file:
        _require_private(os.fstat(file.fileno()).st_mode)
        lines = file.read().splitlines()
    entries: list[Entry] = []
    problems: list[str] = []
    for number, line in enumerate(lines, 1):
        if not (words := line.partition("#")[0].split()):
            continue
        try:
            entries.append(_entry(words))
        except ValueError as error:  # the line stays out of the message
            problems.append(f"line {number}: {error}")
    return entries, problems


def _require_private(mode: int) -> None:
    if stat.S_IMODE(mode) & 0o077:
        raise TokensUnreadable("others may read or write the token file: chmod 600 it")


def _entry(words: list[str]) -> Entry:
    if len(words) not in (2, 3):
        raise ValueError("expected scope[:environment], a digest and perhaps an end")
    scope, env_name = parse_grant(words[0])
    if _DIGEST.fullmatch(words[1]) is None:
        raise ValueError("a digest is the sha256 of a token, 64 lower-case hex digits")
    if len(words) == 3 and not words[2].isdecimal():
        raise ValueError("the end is a whole number of seconds since 1970")
    ends = float(words[2]) if len(words) == 3 else None
    return Entry(Caller(_COVERS[scope], env_name), bytes.fromhex(words[1]), ends)


def parse_grant(text: str) -> tuple[Scope, str | None]:
    """``env:gsm8k`` -> (ENV, "gsm8k"); all other scopes stand alone.

    Raises:
        ConfigError: the scope is unknown, or it cannot be bound to an environment.
    """
    word, colon, name = text.partition(":")
    if word not in {scope.value for scope in Scope}:
        raise ConfigError(f"a scope is one of {', '.join(scope.value for scope in Scope)}")
    if not colon:
        return Scope(word), None
    if Scope(word) is not Scope.ENV:
        raise ConfigError("only the scope env is bound to an environment, as in env:gsm8k")
    if _ENV_NAME.fullmatch(name) is None or "#" in name:
        raise ConfigError("the name of an environment has no spaces, no # and is not empty")
    return Scope.ENV, name


def add_token(path: Path, grant: str, ends: int | None = None) -> str:
    """Append a new random token to the file, created with mode 0600; return the token.

    Raises:
        ConfigError: ``grant`` is not ``scope[:environment]``, or other users may read the file.
    """
    parse_grant(grant)
    token = TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)
    words = [grant, sha256(token.encode()).hexdigest()] + ([] if ends is None else [str(ends)])
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "a+b", buffering=0) as file:
        try:
            _require_private(os.fstat(descriptor).st_mode)
        except TokensUnreadable as error:
            raise ConfigError(f"{path}: {error}") from error
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        # A single write, so that readers and writers never see half a line.
        file.write(("\n" * torn + " ".join(words) + "\n").encode())
    return token
