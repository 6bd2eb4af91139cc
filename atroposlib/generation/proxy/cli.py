"""Command line of the managed-server proxy."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from atroposlib.errors import AtroposError, ConfigError
from atroposlib.generation.proxy.app import create_app
from atroposlib.generation.proxy.config import Setup, tokenizer_of
from atroposlib.generation.proxy.sessions import Limits
from atroposlib.utils.http_server import bind, is_loopback

TOKEN_VARIABLE = "ATROPOS_PROXY_TOKEN"
DEFAULT_PORT = 9100
BACKLOG = 2048


def main(argv: list[str] | None = None) -> int:
    """Serve until interrupted; returns the exit status."""
    options = parse_args(argv)
    try:
        serve(options)
    except AtroposError as error:
        print(f"managed_server_proxy: {error}", file=sys.stderr)
        return 1
    return 0


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m atroposlib.generation.proxy.main",
        description="Gives any agent a base_url and its owner the tokens.",
        epilog=f"The admin token is read from {TOKEN_VARIABLE}.",
    )
    limits = Limits()
    add = parser.add_argument
    add("--config", type=Path, required=True, help="JSON: model_name and servers")
    add(
        "--port",
        type=int,
        default=DEFAULT_PORT,
        help="0 picks a free one (default %(default)s)",
    )
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add(
        "--allow-remote",
        action="store_true",
        help="permit an address other machines reach without an admin token",
    )
    add(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name with a dot that this proxy is called by; may be repeated",
    )
    add("--max-sessions", type=int, default=limits.max_sessions, help="default %(default)s")
    add(
        "--idle-s",
        type=float,
        default=limits.idle_s,
        help="seconds after which a session nobody uses is closed (default %(default)s)",
    )
    add("--log-level", default="warning", choices=["debug", "info", "warning", "error"])
    return parser.parse_args(argv)


def serve(options: argparse.Namespace) -> None:
    """
    Raises:
        ConfigError: a setting cannot be used.
    """
    import uvicorn

    admin_token = os.environ.get(TOKEN_VARIABLE) or None
    refuse_open_proxy(options.host, admin_token, options.allow_remote)
    setup = Setup.read(options.config)
    with bind(options.host, options.port, BACKLOG) as listener:  # before the tokenizer loads
        app = create_app(
            setup.manager(),
            tokenizer_of(setup),
            setup.model_name,
            admin_token=admin_token,
            limits=Limits(max_sessions=options.max_sessions, idle_s=options.idle_s),
            allowed_hosts=options.allow_host,
        )
        host, port = listener.getsockname()[:2]
        print(f"proxy of {setup.model_name} on http://{host}:{port}", flush=True)
        config = uvicorn.Config(
            app,
            log_level=options.log_level,
            access_log=False,
            timeout_graceful_shutdown=5,  # a waiting stream would keep it up
        )
        uvicorn.Server(config).run(sockets=[listener])


def refuse_open_proxy(host: str, admin_token: str | None, allow_remote: bool) -> None:
    """
    Raises:
        ConfigError: other machines could use the proxy, and nothing asks who they are.
    """
    if admin_token is None and not allow_remote and not is_loopback(host):
        raise ConfigError(
            f"--host {host} can be reached by other machines: set {TOKEN_VARIABLE}, or add "
            "--allow-remote on a network where everybody may do everything"
        )
