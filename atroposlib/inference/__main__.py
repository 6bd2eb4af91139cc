"""Command line of the local inference server: ``atropos-infer --model DIR --port 9001``."""

from __future__ import annotations

import argparse
import logging
import socket
from typing import TYPE_CHECKING

from atroposlib.errors import AtroposError
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import GPUS, HUB, PORT, WEIGHTS, CommandParser, require
from atroposlib.utils.http.serve import run_app
from atroposlib.utils.http.sockets import bind, refuse_exposure
from atroposlib.utils.tokenizers.loading import local_model, require_model

if TYPE_CHECKING:
    from atroposlib.inference.engine.engine import Engine

PROG = "atropos-infer"
WILDCARDS = ("0.0.0.0", "::")  # addresses that clients cannot call
BACKLOG = 2048  # connections that wait to be accepted


def main(argv: list[str] | None = None) -> int:
    """Serve until interrupted; return the exit status."""
    options = parse_args(argv)
    logs.configure(PROG, options.log_format, options.log_level)
    require(PROG, "inference", "torch", "transformers")
    try:
        advice = "it has no authentication; add --allow-remote if that is meant"
        refuse_exposure(options.host, advice, allowed=options.allow_remote)
        require_model(options.model)  # checked before torch is imported
        # Before the model is loaded, so that a taken port costs no minute.
        with bind(options.host, options.port, BACKLOG) as listener:
            logging.getLogger(__name__).info("loading %s", options.model)
            return serve(options, listener)
    except AtroposError as error:
        logs.report(PROG, error)
        return 1


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = CommandParser(prog=PROG, description=__doc__, variables=(HUB, WEIGHTS, GPUS))
    add = parser.add_argument_group("model").add_argument
    about = "model directory, hub name or smollm2 (of the quickstart)"
    add("--model", required=True, type=local_model, help=about)
    add("--served-model-name", help="name clients use (default: last part of --model)")
    add("--max-model-len", type=int, help="tokens of prompt and answer (default: the model's)")
    add("--weight-version", type=int, default=0, help="version of the first weights")
    add = parser.add_argument_group("where it listens").add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port", type=PORT, default=9001, help="0 picks a free port (default %(default)s)")
    add("--announce-to", metavar="URL", help="rollout API whose directory lists this server")
    about = "name with a dot under which others call it (repeatable; * allows all)"
    add("--allow-host", action="append", default=[], metavar="NAME", help=about)
    add("--allow-remote", action="store_true", help="permit an address other machines reach")
    add = parser.add_argument_group("resources").add_argument
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1 (default %(default)s)")
    add("--dtype", default="auto", help="auto = float32 on CPUs, bfloat16 on CUDA")
    add("--max-batch", type=int, default=512, help="sequences at once (default %(default)s)")
    about = "memory for keys and values (default: 2 on CPUs, 60 %% of what is free on CUDA)"
    add("--kv-gib", type=float, help=about)
    about = "earlier versions of the weights in memory, for requests of NAME@VERSION"
    add("--keep-versions", type=int, default=0, metavar="K", help=about)
    about = "keep versions that are multiples of it (default %(default)s)"
    add("--keep-every", type=int, default=1, metavar="N", help=about)
    add("--threads", type=int, help="CPU threads of the model (default: torch's choice)")
    add("--seed", type=int, help="of requests that bring none (default: random)")
    options = parser.parse_args(argv)
    if options.keep_versions < 0 or options.keep_every < 1:
        parser.error("--keep-versions is at least 0, and --keep-every at least 1")
    return options


def warm_up(engine: Engine, timeout_s: float = 300.0) -> None:
    """Generate two tokens, so that a model which cannot be served fails at the start."""
    from atroposlib.inference.engine.request import GenerationRequest, SamplingParams

    request = GenerationRequest(prompt_ids=[0], params=SamplingParams(max_tokens=2))
    engine.submit(request)
    request.future.result(timeout_s)


def serve(options: argparse.Namespace, listener: socket.socket) -> int:
    """Load the model and serve requests on ``listener``."""
    import torch

    from atroposlib.client.announce import start_announcing
    from atroposlib.inference.engine.core import EngineLimits
    from atroposlib.inference.engine.earlier import EarlierVersions, open_slots, slots_for
    from atroposlib.inference.engine.engine import Engine
    from atroposlib.inference.engine.served_model import load_model
    from atroposlib.inference.http.app import create_app

    if options.threads:
        torch.set_num_threads(options.threads)
    served = load_model(
        options.model,
        name=options.served_model_name,
        device=options.device,
        dtype=options.dtype,
        max_model_len=options.max_model_len,
    )
    kv_bytes = (options.kv_gib or 2) * 2**30
    if served.device.type == "cuda" and not options.kv_gib:
        kv_bytes = 0.6 * torch.cuda.mem_get_info(served.device)[0]
    engines = 1 + slots_for(options.keep_versions)
    limits = EngineLimits(
        max_batch=options.max_batch,
        kv_budget_tokens=int(kv_bytes // served.kv_bytes_per_token // engines),
    )
    shared = {"seed": options.seed, "num_threads": options.threads}
    slots = open_slots(served, limits, engines - 1, **shared)
    earlier = EarlierVersions(served.name, slots, options.keep_every)
    engine = Engine(
        served,
        limits,
        **shared,
        weight_version=options.weight_version,
        before_change=earlier.keep,
    )
    engine.start()
    warm_up(engine)
    host, port = listener.getsockname()[:2]
    print(f"serving {served.name} ({served.device}) on http://{host}:{port}", flush=True)
    if options.announce_to:
        here = host if host not in WILDCARDS else socket.gethostname()
        start_announcing(options.announce_to, f"{here}:{port}", f"http://{here}:{port}")
    names = (socket.gethostname(), options.host, *options.allow_host)
    run_app(
        create_app(engine, names, earlier), listener
    )  # requests that a pause holds do not keep it alive
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
