"""The command ``atropos``: nouns and verbs over every command of the package.

A subcommand's module is imported when it runs, so that ``atropos --help`` stays fast. The words
after a subcommand are those of the old command, which stays: ``atropos train grpo`` is
``atropos-grpo``.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from atroposlib import __version__
from atroposlib.errors import AtroposError, ConfigError

# Subcommand -> (module:function of its words, one line of help).
COMMANDS = {
    "quickstart": ("atroposlib.quickstart.__main__:main", "Train a small model here, now."),
    "api serve": ("atroposlib.cli.run_api:main", "Start the rollout API (run-api)."),
    "api status": ("atroposlib.cli.api_status:main", "State of a run, and what it waits for."),
    "env new": ("atroposlib.cli.env_new:main", "Write the package of a new environment."),
    "env try": ("atroposlib.cli.env_try:main", "Print a few rollouts of an environment."),
    "env run": ("atroposlib.cli.env_files:run", "serve, process or evaluate an environment."),
    "env list": ("atroposlib.cli.env_files:show", "List the environments at hand."),
    "eval": ("atroposlib.cli.env_files:evaluate", "Evaluate a model in an environment."),
    "train grpo": ("example_trainer.grpo:main", "GRPO and its relatives (atropos-grpo)."),
    "train sft": ("example_trainer.supervised.sft:main", "Fine-tune on texts (atropos-sft)."),
    "train dpo": ("example_trainer.supervised.dpo:main", "Train on pairs (atropos-dpo)."),
    "train rm": (
        "example_trainer.supervised.reward_model:main",
        "Train a reward model (atropos-rm).",
    ),
    "infer": ("atroposlib.inference.__main__:main", "Serve a model (atropos-infer)."),
    "data sft": ("atroposlib.cli.sft_gen:main", "Collect texts (atropos-sft-gen)."),
    "data dpo": ("atroposlib.cli.dpo_gen:main", "Collect pairs (atropos-dpo-gen)."),
    "run": (
        "example_trainer.launch.__main__:main",
        "All processes of one file, local or slurm.",
    ),
    "chat": ("atroposlib.inference.chat:main", "Talk to a model directory."),
}
GROUPS = {
    "api": "The rollout API: serve, status.",
    "env": "Environments: new, try, run, list.",
    "train": "Trainers: grpo, sft, dpo, rm.",
    "data": "Training data from rollouts: sft, dpo.",
}
# Package that an extra installs -> that extra, by the subcommand's first word.
EXTRAS = {"train": "train", "run": "train", "quickstart": "quickstart"}
OF_EXTRAS = frozenset({"torch", "transformers", "peft", "accelerate", "gguf", "math_verify"})


class Group(click.Group):
    """Commands in the order of the table; an unknown word gets its nearest match."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in self.commands and not word.startswith("-"):
            near = difflib.get_close_matches(word, self.commands, 1, 0.5)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            known = ", ".join(self.commands)
            raise click.UsageError(f"unknown command {word!r}{hint}: one of {known}", ctx)
        return super().resolve_command(ctx, args)


class Existing(click.Command):
    """A subcommand whose words, ``--help`` included, are read by the function of ``target``."""

    def __init__(self, name: str, target: str, about: str) -> None:
        super().__init__(name, short_help=about, add_help_option=False)
        self.target = target

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return []

    def invoke(self, ctx: click.Context) -> None:
        module, _, function = self.target.partition(":")
        noun = ctx.command_path.split()[1]
        try:
            status = getattr(import_module(module), function)(ctx.args)
        except ModuleNotFoundError as error:
            package = (error.name or "").split(".")[0]
            if package not in OF_EXTRAS:
                raise
            extra = EXTRAS.get(noun, "inference")
            fail(f"{ctx.command_path} needs {package}: pip install 'atroposlib[{extra}]'", 1)
        except ConfigError as error:
            fail(str(error), 2)
        except (AtroposError, OSError) as error:
            fail(str(error), 1)
        except KeyboardInterrupt:
            status = 130
        ctx.exit(int(status or 0))


def fail(text: str, status: int) -> None:
    print(f"error: {text}", file=sys.stderr)
    raise SystemExit(status)


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 90},
    epilog="Each command has --help. Example: atropos env new wordle",
)
@click.version_option(__version__, prog_name="atroposlib", message="%(prog)s %(version)s")
def cli() -> None:
    """Reinforcement learning of language models in environments of your own."""


@cli.command(short_help="Versions of this installation.")
def version() -> None:
    """Versions of this installation."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    print(f"atroposlib {__version__}")
    print(f"python {sys.version.split()[0]}")
    for name in ("torch", "transformers", "vllm"):
        try:
            print(f"{name} {installed(name)}")
        except PackageNotFoundError:
            print(f"{name} is not installed")


@cli.command(short_help="Completion of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script: eval "$(atropos completion bash)" in ~/.bashrc."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(cli, {}, "atropos", "_ATROPOS_COMPLETE")
    print(made.source_template % made.source_vars())


def _add_existing() -> None:
    groups: dict[str, Any] = {}
    for words, (target, about) in COMMANDS.items():
        first, _, verb = words.partition(" ")
        parent = cli
        if verb:
            if first not in groups:
                groups[first] = Group(first, help=GROUPS[first])
                cli.add_command(groups[first])
            parent = groups[first]
        parent.add_command(Existing(verb or first, target, about))
    for name in ("version", "completion"):  # at the end of the list
        cli.commands[name] = cli.commands.pop(name)


_add_existing()


def main(argv: Sequence[str] | None = None) -> None:
    """Run the subcommand of ``argv``; exits with its status."""
    cli(None if argv is None else list(argv), prog_name="atropos")


if __name__ == "__main__":
    main()
