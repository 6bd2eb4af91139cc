"""Parser of all commands: their common flags, hints for unknown flags, missing extras.

--version, -v, --log-level and --log-format stand in every command; ``logs.configure`` takes
the two that were parsed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from atroposlib import __version__
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.command import logs

USAGE_ERROR = 2
INVALID_CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)")
API_TOKEN = "ATROPOS_API_TOKEN: token of the rollout API"
HUB = "HF_HOME, HF_HUB_OFFLINE=1: folder of the model hub; use only what is in it"
TRACKERS = "WANDB_API_KEY, WANDB_MODE ...: of the trackers in use"
WEIGHTS = "ATROPOS_WEIGHTS_FROM: folders that weights are loaded and copied from (any)"
GPUS = "CUDA_VISIBLE_DEVICES: GPUs of this process"
_LOGS = "ATROPOS_LOG_LEVEL, ATROPOS_LOG_FORMAT: defaults of --log-level and --log-format"


class HelpFormatter(argparse.HelpFormatter):
    """Formatter that fills a text of a single line and keeps the lines of longer texts."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text.strip():
            return super()._fill_text(text, width, indent)
        return "".join(indent + line for line in text.splitlines(keepends=True))


class CommandParser(argparse.ArgumentParser):
    """Parser with the flags of every command.

    Args:
        variables: a line for each environment variable that the command reads.
    """

    def __init__(
        self,
        *,
        variables: Iterable[str] = (),
        **options: Any,
    ) -> None:
        listed = "".join(f"\n  {line}" for line in (*variables, _LOGS))
        epilog = options.pop("epilog", "").rstrip()
        options["epilog"] = f"{epilog}\n\nenvironment variables:{listed}".lstrip()
        super().__init__(formatter_class=HelpFormatter, **options)
        self._words: Sequence[str] = ()
        add = self.add_argument
        unset = argparse.SUPPRESS
        shown = f"%(prog)s {__version__}"
        add("--version", action="version", version=shown, help="print the version")
        level: dict[str, Any] = {"dest": "log_level", "default": unset}
        about = "least level that is logged on stderr (info)"
        add("--log-level", choices=logs.LEVELS, help=about, **level)
        add("-v", action="store_const", const="debug", help="--log-level debug", **level)
        about = "lines on stderr (text)"
        add("--log-format", choices=logs.FORMATS, default=unset, help=about)

    def parse_args(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> argparse.Namespace:
        """Parse; an unknown flag ends with status 2 and the nearest known flag."""
        self._words = list(sys.argv[1:] if args is None else args)
        options, rest = self.parse_known_args(self._words, namespace)
        if rest:
            flag = rest[0].partition("=")[0]
            what = "flag" if flag.startswith("-") else "argument"
            hint = did_you_mean(flag, self.flags())
            self.error(f"unknown {what} {flag}{hint or ' (--help lists all)'}")
        return self.with_log_settings(options)

    def with_log_settings(
        self, options: argparse.Namespace, level: str = "info"
    ) -> argparse.Namespace:
        """``options`` with the environment variables, or defaults, of log flags not given."""
        for name, allowed, default in (
            ("log_level", logs.LEVELS, level),
            ("log_format", logs.FORMATS, "text"),
        ):
            value = os.environ.get(f"ATROPOS_{name.upper()}") or default
            if not hasattr(options, name) and value not in allowed:
                known = ", ".join(allowed)
                self.error(
                    f"argument --{name.replace('_', '-')}: ATROPOS_{name.upper()} is one of "
                    f"{known}, not {value!r}"
                )
            setattr(options, name, getattr(options, name, value))
        return options

    def flags(self) -> list[str]:
        below = [
            flag
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for parser in action.choices.values()
            for flag in parser.flags()
        ]
        shown = [action for action in self._actions if action.help is not argparse.SUPPRESS]
        return [*(flag for action in shown for flag in action.option_strings), *below]

    def error(self, message: str) -> NoReturn:
        """End with status 2 and an error line, in JSON where logs are."""
        words = " ".join(self._words or sys.argv[1:]).replace("=", " ")
        if "--log-format json" in words or os.environ.get("ATROPOS_LOG_FORMAT") == "json":
            logs.configure(self.prog, "json", "info")
        if choice := INVALID_CHOICE.search(message):
            message += did_you_mean(choice[1], re.split(r"[', ]+", choice[2]))
        logs.report(self.prog, f"error: {message}")
        raise SystemExit(USAGE_ERROR)

    def print_help(self, file: Any = None) -> None:
        """Print the help, to stdout unless a file is given."""
        show(self.format_help(), file)


def common_flags(prog: str, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The common flags of a command line with a different parser, and its further words."""
    ours: list[str] = []
    rest: list[str] = []
    for before, word in zip(["", *words], words):
        name = word.partition("=")[0]
        own = name in ("--version", "-v", "--log-level", "--log-format")
        (ours if own or before in ("--log-level", "--log-format") else rest).append(word)
    return CommandParser(prog=prog).parse_args(ours), rest


def whole(least: int, most: float = float("inf")) -> Callable[[str], int]:
    """Type of an option: a whole number within these bounds."""
    bounds = f"from {least}" + (f" to {most}" if most < float("inf") else "")

    def check_bounds(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"a whole number {bounds}, not {text!r}")
        return int(text)

    return check_bounds


PORT = whole(0, 65_535)


def require(process: str, extra: str, *modules: str) -> None:
    """End with status 2 and an error line if a module of an extra is not installed."""
    if names := missing(*modules):
        logs.report(process, f"needs {', '.join(names)}: pip install 'atropos-rl[{extra}]'")
        raise SystemExit(USAGE_ERROR)


def missing(*modules: str) -> list[str]:
    """Modules of ``modules`` that cannot be found; no module is imported."""

    def is_found(name: str) -> bool:
        try:
            return importlib.util.find_spec(name) is not None
        except ImportError:
            return False

    return [name for name in modules if not is_found(name)]


def show(text: str, file: Any = None) -> None:
    """Print a page; the reader (``head``) may close the pipe before its end."""
    try:
        print(text, end="", file=file, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
