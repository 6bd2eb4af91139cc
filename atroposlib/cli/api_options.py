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


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
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
    """The parser of all options, whose defaults are those of the environment now."""
    made = CommandParser(
        prog="run-api",
        description="Start the rollout API, which gives trainers exact batches of groups.",
        epilog="Every option but -v has an environment variable, named in its help; options win. "
        "Who may reach the API, and with which token: docs/security.md.",
    )
    _listening(made.add_argument_group("where it listens"))
    _keeping(made.add_argument_group("where groups are kept"))
    _admitting(made.add_argument_group("access"))
    _limiting(made.add_argument_group("limits"))
    _running(made.add_argument_group("running it"))
    return made


def _listening(group: argparse._ArgumentGroup) -> None:
    _value(group, "--host", "127.0.0.1", "address to listen on")
    _value(group, "--port", "8000", "port, 0 for any free one", type=PORT)
    _value(
        group, "--ssl-certfile", None, "certificate chain as PEM; the API then serves https"
    )
    _value(group, "--ssl-keyfile", None, "private key of the certificate as PEM")


def _keeping(group: argparse._ArgumentGroup) -> None:
    _value(
        group,
        "--store",
        "sqlite",
        "memory, sqlite (survives kill -9), or postgresql://USER:PASSWORD@HOST/DATABASE for "
        "several replicas; give a password by the variable, not on the command line",
        type=_store_name,
    )
    _value(
        group,
        "--data-dir",
        None,
        "folder of the sqlite store; what is in it is resumed (atropos-data/PORT)",
    )
    _flag(group, "--fresh", "forget what the store holds before serving")
    _value(
        group,
        "--max-store-gb",
        "16",
        "payload bytes kept until they are trained on and committed; beyond, posts wait",
        type=_positive,
    )


def _admitting(group: argparse._ArgumentGroup) -> None:
    _value(group, "--tokens", None, "file of token digests; with it every call needs a token")
    _value(
        group,
        "--new-token",
        None,
        "add a token of this scope (env, env:NAME, trainer, admin or read) to the file of "
        "--tokens, print it once, and exit",
    )
    _value(
        group, "--token-days", None, "the new token ends after so many days", type=_positive
    )
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name under which clients call this API, * for any; may be repeated "
        f"({variable_of('--allow-host')}, separated by commas)",
    )
    _flag(
        group,
        "--allow-remote",
        "listen beyond this machine without tokens or TLS: every host that reaches the port can "
        "read, write and wipe the run",
    )
    _flag(
        group,
        "--insecure-plaintext",
        "listen beyond this machine with tokens and without TLS, which exposes the tokens "
        "on the network. For use behind a TLS proxy",
    )


def _limiting(group: argparse._ArgumentGroup) -> None:
    _value(group, "--max-body-mb", "128", "largest request, inflated", type=_positive)
    _value(
        group,
        "--hold-s",
        "30",
        "seconds for which an old environment's post is held while the store is full; "
        "then it is answered 503",
        type=_positive,
    )
    _value(
        group,
        "--max-deliveries",
        "20",
        "deliveries of one batch without an ack, after which it is set aside as dead",
        type=whole(1, 10**6),
    )
    _value(
        group,
        "--max-connections",
        "2048",
        "connections served at once; more are answered 503",
        type=whole(1, 10**6),
    )


def _running(group: argparse._ArgumentGroup) -> None:
    _value(
        group,
        "--loop",
        "auto",
        "event loop; auto takes uvloop, an eighth less CPU per request, where it is installed",
        type=_one_of("auto", "uvloop", "asyncio"),
    )
    _flag(group, "--reload", "restart when the source changes, for development")


def _value(
    group: argparse._ArgumentGroup,
    flag: str,
    default: str | None,
    text: str,
    type: Callable[[str], Any] = str,
) -> None:
    shown = "" if default is None else "%(default)s; "
    choices: str | None = getattr(type, "metavar", None)
    group.add_argument(
        flag,
        type=type,
        default=os.environ.get(variable_of(flag)) or default,  # argparse converts it too
        metavar=choices,
        help=f"{text} ({shown}{variable_of(flag)})",
    )


def _flag(group: argparse._ArgumentGroup, flag: str, text: str) -> None:
    variable = variable_of(flag)
    given = os.environ.get(variable, "").lower()
    if given not in _YES + _NO:
        raise ConfigError(f"{variable} is 1 or 0, not {given!r}")
    group.add_argument(
        flag, action="store_true", default=given in _YES, help=f"{text} ({variable}=1)"
    )


def _one_of(*words: str) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"one of {', '.join(words)}, not {text!r}")
        return text

    checked.metavar = "{" + ",".join(words) + "}"  # type: ignore[attr-defined]
    return checked


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("a number above 0")
    return number


def _store_name(text: str) -> str:
    if text not in ("memory", "sqlite") and not text.startswith(
        ("postgresql://", "postgres://")
    ):
        raise argparse.ArgumentTypeError("memory, sqlite or postgresql://...")
    return text
