"""Options of run-api: command line, ATROPOS_* variables, defaults."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.utils.command.parser import PORT, CommandParser, whole

_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """All options: the command line, then ATROPOS_* variables, then defaults."""
    options = parser().parse_args(argv)
    words = os.environ.get(variable_of("--allow-host"), "").split(",")
    options.allow_host += [word.strip() for word in words if word.strip()]
    if bool(options.ssl_certfile) != bool(options.ssl_keyfile):
        raise ConfigError("--ssl-certfile and --ssl-keyfile come together")
    return options


def variable_of(flag: str) -> str:
    """``--data-dir`` -> ``ATROPOS_DATA_DIR``."""
    return "ATROPOS_" + flag.removeprefix("--").replace("-", "_").upper()


def parser() -> CommandParser:
    """The parser of all options, with defaults from the current environment variables."""
    made = CommandParser(
        prog="run-api",
        description="Start the rollout API, which gives trainers exact batches of groups.",
        epilog="Every option but -v has an environment variable, named in its help; options win. "
        "Who may reach the API, and with which token: docs/security.md.",
    )
    for title, options in OPTIONS.items():
        add = made.add_argument_group(title).add_argument
        for flag, kind, default, about in options:
            add(flag, **_settings(variable_of(flag), kind, default, about))
    return made


def _settings(variable: str, kind: Any, default: str | None, about: str) -> dict[str, Any]:
    """The arguments of ``add_argument`` for a line of the table."""
    value = os.environ.get(variable, "")
    if kind is list:
        about = f"{about} ({variable}, separated by commas)"
        return {"action": "append", "default": [], "metavar": "NAME", "help": about}
    if kind is bool:
        if value.lower() not in _YES + _NO:
            raise ConfigError(f"{variable} is 1 or 0, not {value.lower()!r}")
        is_set = value.lower() in _YES
        return {"action": "store_true", "default": is_set, "help": f"{about} ({variable}=1)"}
    shown = "" if default is None else "%(default)s; "
    return {
        "type": kind,
        "default": value or default,  # argparse converts it too
        "metavar": getattr(kind, "metavar", None),
        "help": f"{about} ({shown}{variable})",
    }


def _one_of(*words: str) -> Callable[[str], str]:
    def check_value(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"one of {', '.join(words)}, not {text!r}")
        return text

    check_value.metavar = "{" + ",".join(words) + "}"  # type: ignore[attr-defined]
    return check_value


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("a number above 0")
    return number


def _store_name(text: str) -> str:
    addresses = ("postgresql://", "postgres://")
    if text not in ("memory", "sqlite") and not text.startswith(addresses):
        raise argparse.ArgumentTypeError("memory, sqlite or postgresql://...")
    return text


COUNT = whole(1, 10**6)
LOOPS = _one_of("auto", "uvloop", "asyncio")
# Group of the help -> (flag, type, default, meaning); a bool is a switch, a list may be repeated.
OPTIONS: dict[str, tuple[tuple[str, Any, str | None, str], ...]] = {
    "where it listens": (
        ("--host", str, "127.0.0.1", "address to listen on"),
        ("--port", PORT, "8000", "port, 0 for any free one"),
        ("--ssl-certfile", str, None, "certificate chain as PEM; the API then serves https"),
        ("--ssl-keyfile", str, None, "private key of the certificate as PEM"),
    ),
    "where groups are kept": (
        (
            "--store",
            _store_name,
            "sqlite",
            "memory, sqlite (survives kill -9), or postgresql://USER:PASSWORD@HOST/DATABASE for "
            "several replicas; give a password by the variable, not on the command line",
        ),
        (
            "--data-dir",
            str,
            None,
            "folder of the sqlite store; what is in it is resumed (atropos-data/PORT)",
        ),
        ("--fresh", bool, None, "forget what the store holds before serving"),
        (
            "--max-store-gb",
            _positive,
            "16",
            "payload bytes kept until they are trained on and committed; beyond, posts wait",
        ),
        (
            "--archive",
            _one_of("on", "off"),
            "on",
            "keep groups after training, for the explorer (sqlite, postgresql)",
        ),
        (
            "--archive-gb",
            _positive,
            "8",
            "payload bytes kept after training; beyond, and on a full disk, the oldest go first",
        ),
    ),
    "access": (
        ("--tokens", str, None, "file of token digests; with it every call needs a token"),
        (
            "--new-token",
            str,
            None,
            "add a token of this scope (env, env:NAME, trainer, admin or read) to the file of "
            "--tokens, print it once, and exit",
        ),
        ("--token-days", _positive, None, "the new token ends after so many days"),
        (
            "--allow-host",
            list,
            None,
            "a further name under which clients call this API, * for any; may be repeated",
        ),
        (
            "--allow-remote",
            bool,
            None,
            "listen beyond this machine without tokens or TLS: every host that reaches the port "
            "can read, write and wipe the run",
        ),
        (
            "--insecure-plaintext",
            bool,
            None,
            "listen beyond this machine with tokens and without TLS, which exposes the tokens on "
            "the network. For use behind a TLS proxy",
        ),
    ),
    "limits": (
        ("--max-body-mb", _positive, "128", "largest request, inflated"),
        (
            "--hold-s",
            _positive,
            "30",
            "seconds for which an old environment's post is held while the store is full; then "
            "it is answered 503",
        ),
        (
            "--max-deliveries",
            COUNT,
            "20",
            "deliveries of one batch without an ack, after which it is set aside as dead",
        ),
        (
            "--max-connections",
            COUNT,
            "2048",
            "requests served at once; more are answered 503, posts before other calls",
        ),
    ),
    "running it": (
        (
            "--loop",
            LOOPS,
            "auto",
            "event loop; auto takes uvloop, an eighth less CPU per request, where it is installed",
        ),
        ("--reload", bool, None, "restart when the source changes, for development"),
    ),
}
