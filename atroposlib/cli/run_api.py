"""run-api: start the rollout API.

run-api                                 127.0.0.1:8000, kept in ./atropos-data/8000
run-api --store memory                  nothing outlives the process
run-api --data-dir runs/a --port 8001   resume what was in runs/a, if anything
"""

from __future__ import annotations

import argparse
import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from atroposlib.errors import AtroposError, ConfigError

_GRACE_S = 5  # a claim may wait 30 s for a batch; a shutdown does not


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal comes. Exit status 1: it could not start, and one line said why."""
    options = _parser().parse_args(argv)
    try:
        _serve(options)
        return 0
    except (AtroposError, OSError) as error:
        print(f"run-api: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run-api",
        description="Start the rollout API, which gives trainers exact batches of groups.",
        epilog="Every option has an environment variable, named in its help; options win.",
    )
    env = os.environ.get
    parser.add_argument(
        "--host",
        default=env("ATROPOS_HOST", "127.0.0.1"),
        help="address to listen on (%(default)s; ATROPOS_HOST)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=env("ATROPOS_PORT", "8000"),
        help="port, 0 for any free one (%(default)s; ATROPOS_PORT)",
    )
    parser.add_argument(
        "--store",
        choices=["memory", "sqlite"],
        default=env("ATROPOS_STORE", "sqlite"),
        help="where groups are kept: sqlite survives kill -9 (%(default)s; ATROPOS_STORE)",
    )
    parser.add_argument(
        "--data-dir",
        default=env("ATROPOS_DATA_DIR"),
        help="folder of the sqlite store; what is in it is resumed "
        "(atropos-data/PORT; ATROPOS_DATA_DIR)",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        default=_flag("ATROPOS_FRESH"),
        help="forget what the store holds before serving (ATROPOS_FRESH=1)",
    )
    parser.add_argument(
        "--allow-remote",
        action="store_true",
        default=_flag("ATROPOS_ALLOW_REMOTE"),
        help="listen beyond this machine. There are no tokens yet: whoever reaches the port "
        "can read, write and wipe the run (ATROPOS_ALLOW_REMOTE=1)",
    )
    parser.add_argument(
        "--reload",
        action="store_true",
        default=_flag("ATROPOS_RELOAD"),
        help="restart when the source changes, for development (ATROPOS_RELOAD=1)",
    )
    return parser


def _flag(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in ("1", "true", "yes")


def _serve(options: argparse.Namespace) -> None:
    _require_loopback(options.host, options.allow_remote)
    with _listen(options.host, options.port) as listener:
        _serve_on(listener, options)


def _serve_on(listener: socket.socket, options: argparse.Namespace) -> None:
    import uvicorn  # after the options are read: --help should not wait for it

    host, port = listener.getsockname()[:2]
    data_dir = Path(options.data_dir or f"atropos-data/{port}")
    shown = f"[{host}]" if ":" in host else host
    place = data_dir if options.store == "sqlite" else "memory only"
    if options.reload:
        listener.close()  # the reloader's children bind, and open the store, for themselves
        os.environ["ATROPOS_STORE"] = options.store
        os.environ["ATROPOS_DATA_DIR"] = str(data_dir)
        uvicorn.run(
            "atroposlib.api.server:create_app_from_environment",
            factory=True,
            host=options.host,
            port=port,
            reload=True,
        )
        return
    from atroposlib.api.server import create_app
    from atroposlib.api.store import open_store

    store = open_store(options.store, data_dir)
    if options.fresh:
        store.reset()
    app = create_app(store)
    listener.listen()  # from the next line on a client may call; it waits, it is not refused
    print(f"rollout API on http://{shown}:{port}, {place}", flush=True)
    if (resumed := app.state.service.resumed()) is not None:
        print(f"resumed {resumed} (--fresh forgets it)", flush=True)
    config = uvicorn.Config(
        app, access_log=False, log_level="warning", timeout_graceful_shutdown=_GRACE_S
    )
    uvicorn.Server(config).run(sockets=[listener])


def _require_loopback(host: str, allow_remote: bool) -> None:
    if host == "localhost" or allow_remote:
        return
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise ConfigError(
            f"--host {host} is reachable from other machines and the API has no tokens yet: "
            "add --allow-remote if that is meant"
        )


def _listen(host: str, port: int) -> socket.socket:
    """Bind before anything else, so that a taken port is one line and not a traceback."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is taken: stop its owner or choose another --port"
            ) from error
        raise
    return listener


if __name__ == "__main__":
    sys.exit(main())
