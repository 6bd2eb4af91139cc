"""view-run: scored groups of a running rollout API, or of an archive, in a browser (Gradio).

view-run --tokenizer MODEL_DIR            watch: the newest group, browse back
view-run-multimodal --tokenizer DIR       the same with the images of a group
view-run --tokenizer MODEL_DIR --take     take batches in a trainer's place, ack each
view-run --archive DIR                    the groups that an ended run, process or evaluate kept
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from atroposlib.cli.collect import collecting
from atroposlib.cli.view_run.shown_groups import (
    ArchivedGroups,
    GroupSource,
    Source,
    shown_group,
)
from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import API_TOKEN, HUB, PORT, CommandParser, require, whole
from atroposlib.utils.http.serve import run_app
from atroposlib.utils.http.sockets import bind, refuse_exposure

API_TIMEOUT_S = 10.0


def main(argv: Sequence[str] | None = None, *, images: bool = False) -> int:
    """Serve the page until interrupted. Exit status 1 after an error line if it cannot start."""
    name = "view-run-multimodal" if images else "view-run"
    parser = build_parser(name, images)
    options = parser.parse_args(argv)
    by_default = options.tokenizer == parser.get_default("tokenizer")
    logs.configure(name, options.log_format, options.log_level)
    require(name, "view", "gradio")
    try:
        advice = (
            f"forward the port (ssh -L {options.port}:127.0.0.1:{options.port}), or add --tokens "
            "FILE (from run-api --tokens FILE --new-token read) and a TLS proxy, as the page "
            "itself is not encrypted"
        )
        refuse_exposure(options.host, advice, allowed=options.tokens is not None)
        with (
            bind(options.host, options.port, backlog=128) as listener,
            open_source(options, by_default) as source,
        ):
            app = page_app(name, options, source, images)
            print(f"{name} on http://{options.host}:{listener.getsockname()[1]}", flush=True)
            run_app(app, listener)
    except (AtroposError, OSError) as error:
        logs.report(name, error)
        return 1
    return 0


def build_parser(name: str, images: bool) -> CommandParser:
    """The flags of both commands."""
    parser = CommandParser(
        prog=name,
        description=f"Show scored groups of a run in a browser{', with images' * images}.",
        epilog="How to use it: docs/rollout-api.md",
        variables=(API_TOKEN, HUB),
    )
    add, count = parser.add_argument, whole(1)
    tokenizer = "Qwen/Qwen2-VL-2B-Instruct" if images else collecting.DEFAULT_TOKENIZER
    add(
        "--port",
        type=PORT,
        default=9001,
        help="of the page (%(default)s, as of atropos infer)",
    )
    add("--group-size", type=count, default=2, help="samples shown of a group (%(default)s)")
    add("--max-token-len", type=count, default=2048, help="tokens shown of each (%(default)s)")
    add("--tokenizer", default=tokenizer, help="of the model that was sampled (%(default)s)")
    add("--api-url", default="http://127.0.0.1:8000", help="rollout API (%(default)s)")
    add("--archive", metavar="DIR", help="in place of an API: as of atropos view")
    add("--host", default="127.0.0.1", help="address of the page (%(default)s)")
    add("--tokens", type=Path, metavar="FILE", help="token file of run-api: ask for a token")
    add("--take", action="store_true", help="register as trainer and take batches")
    add("--reset", action="store_true", help="with --take: wipe the run that exists")
    return parser


@contextmanager
def open_source(options: argparse.Namespace, by_default: bool) -> Iterator[Source]:
    """The groups of the API or of the archive; ``by_default``: no tokenizer was named.

    Raises:
        ConfigError: unknown tokenizer, or --take finds a run of another trainer.
        StoreLocked: the run of the archive goes on.
        AtroposError: --take, and the API does not answer.
    """
    cut = {"samples": options.group_size, "max_tokens": options.max_token_len}
    if options.archive is not None:
        from atroposlib.api.archive.load import open_explorer, place

        if options.take:
            raise ConfigError("--take is for an API: nothing is taken out of an archive")
        with open_explorer(place(options.archive), None) as (_, explorer):
            [run, *_] = explorer.runs({}).runs
            name = (by_default and run.tokenizer) or options.tokenizer
            tokenizer = collecting.tokenizer_of_flag(name)
            yield ArchivedGroups(explorer, partial(shown_group, tokenizer=tokenizer, **cut))
        return
    tokenizer = collecting.tokenizer_of_flag(options.tokenizer)
    client = RolloutClient(options.api_url, timeout_s=API_TIMEOUT_S, give_up_after_s=0)
    with closing(client):
        if options.take:
            if options.reset:
                client.reset()
            collecting.require_no_trainer(client.status(), options.api_url)
            client.register(
                collecting.registration(8 * cut["samples"], cut["max_tokens"], num_steps=69)
            )
        yield GroupSource(
            client, partial(shown_group, tokenizer=tokenizer, **cut), options.take
        )


def page_app(name: str, options: argparse.Namespace, source: Source, images: bool) -> Any:
    """The page behind its gate, as an ASGI application."""
    from fastapi import FastAPI

    from atroposlib.cli.view_run import gradio_page
    from atroposlib.cli.view_run.page_gate import page_gate

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    gradio_page.mount(app, source, name, options.group_size, images=images)
    app.middleware_stack = page_gate(app.build_middleware_stack(), options.tokens, source.take)
    return app
