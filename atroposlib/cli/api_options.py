"""Options of run-api: command line, ATROPOS_* variables, defaults."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator

from atroposlib.errors import ConfigError
from atroposlib.settings.fields import add_flag, flag_of, validate_as
from atroposlib.settings.merge import Settings, merge
from atroposlib.utils.command.parser import CommandParser

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# First option of each group of the help.
TITLES = {
    "host": "where it listens",
    "store": "where groups are kept",
    "tokens": "access",
    "max_body_mb": "limits",
    "loop": "running it",
}


class ApiOptions(BaseModel):
    """Every option of run-api; each is also a flag and an environment variable."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65_535, description="port, 0 for any free one")
    ssl_certfile: str | None = Field(
        None, description="certificate chain as PEM; the API then serves https"
    )
    ssl_keyfile: str | None = Field(None, description="private key of the certificate as PEM")
    store: str = Field(
        "sqlite",
        description="memory, sqlite (survives kill -9), or postgresql://USER:PASSWORD@HOST/DATABASE"
        " for several replicas; give a password by the variable, not on the command line",
    )
    data_dir: str | None = Field(
        None,
        description="folder of the sqlite store; what is in it is resumed (atropos-data/PORT)",
    )
    fresh: bool = Field(False, description="forget what the store holds before serving")
    max_store_gb: Positive = Field(
        16,
        description="payload bytes kept until they are trained on and committed; beyond, posts wait",
    )
    archive: Literal["on", "off"] = Field(
        "on", description="keep groups after training, for the explorer (sqlite, postgresql)"
    )
    archive_gb: Positive = Field(
        8,
        description="payload bytes kept after training; beyond, and on a full disk, the oldest go"
        " first",
    )
    tokens: str | None = Field(
        None, description="file of token digests; with it every call needs a token"
    )
    new_token: str | None = Field(
        None,
        description="add a token of this scope (env, env:NAME, trainer, admin or read) to the file"
        " of --tokens, print it once, and exit",
    )
    token_days: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="the new token ends after so many days"
    )
    allow_host: list[str] = Field(
        [],
        description="a further name under which clients call this API, * for any; may be repeated",
    )
    allow_remote: bool = Field(
        False,
        description="listen beyond this machine without tokens or TLS: every host that reaches the"
        " port can read, write and wipe the run",
    )
    insecure_plaintext: bool = Field(
        False,
        description="listen beyond this machine with tokens and without TLS, which exposes the"
        " tokens on the network. For use behind a TLS proxy",
    )
    max_body_mb: Positive = Field(128, description="largest request, inflated")
    hold_s: Positive = Field(
        30,
        description="seconds for which an old environment's post is held while the store is full;"
        " then it is answered 503",
    )
    max_deliveries: int = Field(
        20,
        ge=1,
        le=10**6,
        description="deliveries of one batch without an ack, after which it is set aside as dead",
    )
    max_connections: int = Field(
        2048,
        ge=1,
        le=10**6,
        description="requests served at once; more are answered 503, posts before other calls",
    )
    loop: Literal["auto", "uvloop", "asyncio"] = Field(
        "auto",
        description="event loop; auto takes uvloop, an eighth less CPU per request, where it is"
        " installed",
    )
    reload: bool = Field(False, description="restart when the source changes, for development")

    @field_validator("store")
    @classmethod
    def _require_store(cls, name: str) -> str:
        addresses = ("postgresql://", "postgres://")
        if name not in ("memory", "sqlite") and not name.startswith(addresses):
            raise ValueError("should be memory, sqlite or postgresql://...")
        return name


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """All options: the command line, then ATROPOS_* variables, then defaults."""
    command_line = parser()
    options = command_line.parse_args(argv)
    values = {name: os.environ.get(variable_of(name)) for name in ApiOptions.model_fields}
    variables = {name: text for name, text in values.items() if text}
    flags = {name: text for name, text in vars(options).items() if name in values}
    words = [word.strip() for word in variables.pop("allow_host", "").split(",")]
    flags["allow_host"] = [*flags.get("allow_host", ()), *filter(None, words)]
    settings = merge(
        Settings(variables, {name: variable_of(name) for name in variables}),
        Settings(flags, {name: flag_of(name) for name in flags}),
    )
    try:
        vars(options).update(vars(validate_as(ApiOptions, settings)))
    except ConfigError as error:
        command_line.error(str(error))
    if bool(options.ssl_certfile) != bool(options.ssl_keyfile):
        raise ConfigError("--ssl-certfile and --ssl-keyfile come together")
    return options


def variable_of(flag: str) -> str:
    """``--data-dir`` -> ``ATROPOS_DATA_DIR``."""
    return "ATROPOS_" + flag.removeprefix("--").replace("-", "_").upper()


def parser() -> CommandParser:
    """The parser of all options; its namespace holds only options of the command line, as text."""
    made = CommandParser(
        prog="run-api",
        description="Start the rollout API, which gives trainers exact batches of groups.",
        epilog="Every option but -v has an environment variable, named in its help; options win. "
        "Who may reach the API, and with which token: docs/security.md.",
        argument_default=argparse.SUPPRESS,
    )
    for name, field in ApiOptions.model_fields.items():
        if name in TITLES:
            group = made.add_argument_group(TITLES[name])
        note, options = variable_of(name), dict[str, Any]()
        if field.annotation is bool:
            note, options = f"{note}=1", {"action": "store_true"}
        elif name == "allow_host":
            note, options = f"{note}, separated by commas", {"action": "append", "nargs": None}
        add_flag(group, name, field, note=note, **options)
    return made
