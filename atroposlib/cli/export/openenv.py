"""atropos env openenv ENVIRONMENT: serve a function environment to clients of OpenEnv.

atropos env openenv wordle --port 8000 --env.level 2
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from atroposlib.cli import env_files
from atroposlib.errors import ConfigError
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import PORT, CommandParser
from atroposlib.utils.http.serve import run_app
from atroposlib.utils.http.sockets import LOOPBACK_HOSTS, bind

PROG = "atropos env openenv"
BACKLOG = 128


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal ends it."""
    from atroposlib.adapters.openenv_server import app_of

    parser = CommandParser(prog=PROG, description=__doc__)
    parser.add_argument("environment", metavar="ENVIRONMENT", help=env_files.USAGE)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=PORT, default=8000)
    about = "name with a dot under which others call it (repeatable)"
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help=about
    )
    parser.add_argument("--sessions", type=int, default=64, help="at a time (%(default)s)")
    parser.add_argument(
        "--idle-s", type=float, default=3600.0, help="of a session (%(default)s)"
    )
    options, words = parser.parse_known_args(argv)
    options = parser.with_log_settings(options, "warning")
    logs.configure(PROG, options.log_format, options.log_level)
    names = (*LOOPBACK_HOSTS, socket.gethostname(), options.host, *options.allow_host)
    env = environment_to_serve(options.environment, words)
    app = app_of(env, options.sessions, options.idle_s, names)
    listener = bind(options.host, options.port, BACKLOG)
    print(f"ws://{options.host}:{options.port}/ws", flush=True)
    run_app(app, listener)
    return 0


def environment_to_serve(reference: str, words: Sequence[str] = ()) -> Any:
    """The environment, without a model. Raises ConfigError: it is a class, or wrong settings."""
    from atroposlib.envs.cli import read_settings
    from atroposlib.envs.function_env import FunctionEnv
    from atroposlib.envs.runtime.creation import make_env
    from atroposlib.validation.sessions import ScriptedServer

    env_cls = env_files.load(reference)
    if not issubclass(env_cls, FunctionEnv):
        raise ConfigError(f"{reference}: only environments of @environment are served so")
    settings = read_settings(env_cls, ["process", "--env.use_wandb", "false", *words])
    server: Any = ScriptedServer()
    return make_env(env_cls, settings, server, tokenizer=object())
