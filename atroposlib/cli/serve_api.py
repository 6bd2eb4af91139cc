"""Serve the rollout API: exposure rules, sockets, limits and signals of run-api."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from atroposlib.api.archive.index import EXTRA_BYTES
from atroposlib.api.guards.busy import BusyReplies
from atroposlib.api.guards.slow_clients import SlowClientProtocol
from atroposlib.api.guards.tokens import TokenFile
from atroposlib.api.server import create_app
from atroposlib.api.store import open_store
from atroposlib.api.store.sql.run import reset_run
from atroposlib.cli.api_options import parse_args, variable_of
from atroposlib.errors import ConfigError
from atroposlib.utils.command import logs
from atroposlib.utils.http.gate import require_gate
from atroposlib.utils.http.sockets import LOOPBACK_HOSTS, bind, is_loopback, refuse_exposure

INDEX_SHARE = 8  # 1/8 of the archive: samples of drops, indexes of earlier runs
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_GRACE_S = 5  # limit for replies being sent; waiting calls return at once
SWITCH_S = 0.0005
_LEAST_CONNECTIONS = 4
_SPARE_FILES = 128  # files in addition to connections: store, logs, threads


def serve(options: argparse.Namespace) -> None:
    """Serve until a signal.

    Raises:
        ConfigError: an option cannot be used; the message names it and the reason.
        AtroposError: the store cannot be opened.
    """
    require_protection(options)
    _require_certificate(options)
    with bind(options.host, options.port) as listener:
        host, port = listener.getsockname()[:2]
        options.data_dir = options.data_dir or f"atropos-data/{port}"
        if options.reload:
            listener.close()  # the reloader's children bind, and open the store, themselves
            print(_first_line(options, host, port), flush=True)
            _serve_reloading(options, port)
            return
        app = build_app(options)
        config = uvicorn.Config(
            require_gate(app), **_settings(options, app.state.service.busy)
        )
        server = ApiServer(config, app)
        # Threads that parse large posts hold the interpreter for 5 ms at a time by default, and the
        # event loop needs it several times per request.
        sys.setswitchinterval(SWITCH_S)
        gc.freeze()  # a full collection of the imports holds the event loop for 50 ms
        with server.signals():
            # A client may call from the next line on; its call waits, unrefused.
            listener.listen(config.backlog)
            print(_first_line(options, host, port), flush=True)
            if (resumed := app.state.service.resumed()) is not None:
                print(f"resumed {resumed} (--fresh forgets it)", flush=True)
            server.run(sockets=[listener])


# --- exposure ---------------------------------------------------------------------------


def require_protection(options: argparse.Namespace) -> None:
    """Raise ConfigError if a remote machine would reach an open API, or tokens in the clear."""
    if is_loopback(options.host) or options.allow_remote:
        return
    advice = (
        "add --tokens FILE (see --new-token), or --allow-remote to permit every call to every "
        "host that reaches it"
    )
    refuse_exposure(options.host, advice, allowed=options.tokens is not None)
    if options.ssl_certfile is None and not options.insecure_plaintext:
        raise ConfigError(
            f"--host {options.host} would carry tokens in the clear: add --ssl-certfile and "
            "--ssl-keyfile, or --insecure-plaintext behind a TLS proxy"
        )


def _require_certificate(options: argparse.Namespace) -> None:
    if options.ssl_certfile is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:  # no prompt for a password: the process may have no terminal
        context.load_cert_chain(options.ssl_certfile, options.ssl_keyfile, password="")
    except OSError as error:
        raise ConfigError(
            f"--ssl-certfile {options.ssl_certfile}, --ssl-keyfile {options.ssl_keyfile}: "
            f"no certificate and its key as PEM without a password ({error})"
        ) from error


def allowed_hosts(options: argparse.Namespace) -> list[str] | None:
    """Names that the Host header may contain; None for any.

    A web page that rebinds its name has no token, so a remote API with tokens allows any name.
    """
    if not is_loopback(options.host) and options.tokens is not None and not options.allow_host:
        return None
    return [*LOOPBACK_HOSTS, socket.gethostname(), options.host, *options.allow_host]


# --- the app and its server -------------------------------------------------------------


def build_app(options: argparse.Namespace) -> FastAPI:
    """The application with its store, from the options."""
    tokens = None if options.tokens is None else TokenFile(Path(options.tokens))
    archive_bytes = 0 if options.archive == "off" else int(options.archive_gb * 2**30)
    index_bytes = archive_bytes // INDEX_SHARE
    store = open_store(
        options.store,
        Path(options.data_dir),
        max_bytes=int(options.max_store_gb * 2**30),
        archive_bytes=archive_bytes - index_bytes,
    )
    if options.fresh:
        store.do(reset_run)
    return create_app(
        store,
        tokens=tokens,
        allowed_hosts=allowed_hosts(options),
        max_body_bytes=int(options.max_body_mb * 2**20),
        hold_s=options.hold_s,
        max_deliveries=options.max_deliveries,
        index_bytes=index_bytes or EXTRA_BYTES,
    )


def app_from_environment() -> ASGIApp:
    """App factory of uvicorn's reloader, whose children get the environment only."""
    options = parse_args([])
    logs.configure("run-api", options.log_format, options.log_level)
    return require_gate(build_app(options))


def _settings(options: argparse.Namespace, busy: BusyReplies) -> dict[str, Any]:
    requests, sockets = _connections(options.max_connections)
    limits = replace(SlowClientProtocol.limits, sockets=sockets)
    return {
        "loop": options.loop,
        "http": type("ApiProtocol", (SlowClientProtocol,), {"limits": limits, "busy": busy}),
        "ws": "none",
        "lifespan": "on",
        "log_config": None,
        "access_log": False,
        "proxy_headers": False,  # no decision depends on the address of a caller
        "server_header": False,
        "limit_concurrency": requests,
        "timeout_keep_alive": SlowClientProtocol.limits.idle_s,
        "timeout_graceful_shutdown": _GRACE_S,
        "ssl_certfile": options.ssl_certfile,
        "ssl_keyfile": options.ssl_keyfile,
    }


def _connections(wanted: int) -> tuple[int, int]:
    """Requests at once, and sockets, within the limit of open files.

    Beyond the limit accept() fails in a busy loop, so sockets stay below it: four for each
    request, since a refusal needs a socket too.

    Raises:
        ConfigError: too few for any request to be answered.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 4 * wanted + _SPARE_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    sockets = min(needed, soft) - _SPARE_FILES
    possible = min(wanted, sockets * 4 // 5)
    if possible < _LEAST_CONNECTIONS:
        raise ConfigError(
            f"{max(possible, 0)} connections are too few: --max-connections is {wanted}, and "
            f"{soft} open files are allowed (ulimit -n), of which {_SPARE_FILES} are spare"
        )
    return possible, sockets


def _serve_reloading(options: argparse.Namespace, port: int) -> None:
    for name, value in vars(options).items():
        if value not in (None, False):
            text = ",".join(value) if isinstance(value, list) else str(value)
            os.environ[variable_of(name)] = "1" if value is True else text
    os.environ["ATROPOS_FRESH"] = "0"  # a reload keeps the store
    # The watcher logs every change of any file, also of the log of this command.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    uvicorn.run(
        "atroposlib.cli.serve_api:app_from_environment",
        factory=True,
        host=options.host,
        port=port,
        reload=True,
        # The children are given the settings by pickle, which takes no class made in a function.
        **{**_settings(options, BusyReplies()), "http": SlowClientProtocol},
    )


class ApiServer(uvicorn.Server):
    """First signal: let waiting calls return and replies finish. Second signal: exit now.

    Signals are handled from :meth:`signals` on, because a signal during the start must close the
    store as well.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    @contextmanager
    def signals(self) -> Iterator[None]:
        before = {sig: signal.signal(sig, self.handle_exit) for sig in _SIGNALS}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield  # uvicorn would raise the signals again at the end, which is a failure status

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)  # the store survives a kill
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.service.context.stop_waiting()
        await super().shutdown(sockets)


def _first_line(options: argparse.Namespace, host: str, port: int) -> str:
    """The line from which tools read the address."""
    scheme = "https" if options.ssl_certfile else "http"
    shown = f"[{host}]" if ":" in host else host
    places = {"sqlite": str(options.data_dir), "memory": "memory only"}
    place = places.get(options.store) or logs.redact(options.store)
    url = f"{scheme}://{shown}:{port}"
    return f"rollout API on {url}, {place}; page {url}/ui/"
