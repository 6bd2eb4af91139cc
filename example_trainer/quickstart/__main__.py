"""Command line of the quickstart: ``python -m atroposlib.quickstart --model tiny``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import GPUS, PORT, CommandParser, whole
from example_trainer.quickstart.recipes import Options, ServingEngine, Settings

PROG = "atropos-quickstart"


def parse_args(argv: Sequence[str] | None = None) -> Options:
    parser = CommandParser(
        prog=PROG,
        description="Start every part of a run, train a small model and write a report.",
        epilog="--env.NAME VALUE, --trainer.NAME VALUE: other settings of these two (CONFIG.md)",
        variables=("ATROPOS_CACHE: folder of provided models (~/.cache/atropos)", GPUS),
    )
    add = parser.add_argument
    add("--model", default="smollm2", help="smollm2, tiny or a model directory (%(default)s)")
    add("--engine", default="local", choices=[engine.value for engine in ServingEngine])
    add(
        "--dtype",
        default="auto",
        choices=["auto", "float32", "bfloat16"],
        help="auto: bfloat16 where the processor is fast in it",
    )
    add("--seed", type=int, default=0, help="of the data, the sampling and the trainer")
    add("--out", type=absolute, help="directory of the run (runs/quickstart-<model>-<time>)")
    add("--steps", type=whole(1), help="optimizer steps (as the model's recipe says)")
    add("--groups", type=whole(1), help="groups of samples per step (as the recipe says)")
    own = "your environment, with its own group_size and max_token_length"
    add("--environment", type=absolute, metavar="FILE", help=own)
    about = "open the page of the run in a browser"
    add("--open", dest="browser", action="store_true", help=about)
    add("--no-live", dest="live", action="store_false", help="one line per step, no live view")
    add(
        "--restart-grace",
        dest="restart_grace_s",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds in which a dead API or environment may be restarted (%(default)s)",
    )
    add("--api-port", type=PORT, default=0, help="of the rollout API (0: any free one)")
    add("--port", dest="server_port", type=PORT, default=0, help="of the inference server")
    words, passed_on = split_words(sys.argv[1:] if argv is None else argv)
    args = vars(parser.parse_args(words)) | passed_on
    logs.configure(PROG, args.pop("log_format"), args.pop("log_level"))
    args["engine"] = ServingEngine(args["engine"])
    args["numbered"] = args["out"] is None
    args["out"] = args["out"] or default_out(args["model"]).absolute()
    return Options(**args)


def split_words(words: Sequence[str]) -> tuple[list[str], dict[str, Settings]]:
    """Words of the quickstart; ``--env.NAME VALUE`` and ``--trainer.NAME VALUE`` apart."""
    rest, namespaces = list(words), dict[str, Settings]()
    for process in ("env", "trainer"):
        prefix, pairs = f"--{process}.", list[tuple[str, str]]()
        while flags := [i for i, word in enumerate(rest) if word.startswith(prefix)]:
            name, equals, value = rest.pop(flags[0]).removeprefix(prefix).partition("=")
            value = value if equals or flags[0] == len(rest) else rest.pop(flags[0])
            pairs.append((name, value))
        namespaces[f"{process}_settings"] = tuple(pairs)
    return rest, namespaces


def absolute(path: str) -> Path:
    return Path(path).absolute()


def default_out(model: str) -> Path:
    name = Path(model).name or "model"
    return Path("runs") / f"quickstart-{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def main(argv: Sequence[str] | None = None) -> int:
    options = parse_args(argv)
    # Imported after parsing, so that --help is fast.
    from example_trainer.quickstart.launch import quickstart

    return quickstart(options)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # the launcher handles no signals yet: no process was started
        sys.exit(130)
