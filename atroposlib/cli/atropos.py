"""The command ``atropos``: nouns and verbs over every command of the package.

A subcommand's module is imported when it runs, so that ``atropos --help`` stays fast. The words
after a subcommand are the words of the old command, which stays: ``atropos train grpo`` is
``atropos-grpo``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version as installed

import click

from atroposlib import __version__, name_clash
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.command import logs
from atroposlib.utils.command.distribution import NAME
from atroposlib.utils.command.parser import USAGE_ERROR

FILE_TRAINERS = "example_trainer.supervised.commands"
# Subcommand -> (module:function of its words, line of help).
COMMANDS = {
    "quickstart": (
        "example_trainer.quickstart.__main__:main",
        "Train a small model here, now.",
    ),
    "api serve": ("atroposlib.cli.run_api:main", "Start the rollout API (run-api)."),
    "api status": ("atroposlib.run_status.top:once", "State of a run, and what it waits for."),
    "api dead": ("atroposlib.cli.operate.dead:main", "Batches that were set aside."),
    "api steer": (
        "atroposlib.cli.operate.steer:main",
        "Weights, pauses and limits of a live run.",
    ),
    "api backup": ("atroposlib.cli.operate.backup:main", "Copy queue and archive of a run."),
    "api restore": (
        "atroposlib.cli.operate.backup:restore_backup",
        "A data directory of a backup.",
    ),
    "why": ("atroposlib.run_status.why:main", "Why a run waits, and what to do."),
    "top": ("atroposlib.run_status.top:main", "The run as a live table."),
    "ui": ("atroposlib.workbench.command_line:ui", "All runs below a folder on one page."),
    "view": ("atroposlib.cli.view:view", "Page of an ended run, or of a file of groups."),
    "archive": ("atroposlib.cli.view:archive", "Groups that a run keeps after training."),
    "verify": (
        "atroposlib.cli.operate.verify:main",
        "Certificate of the batches of a run.",
    ),
    "account": (
        "atroposlib.cli.operate.print_account:main",
        "Where the tokens of a run went.",
    ),
    "env new": ("atroposlib.cli.env_new:main", "Write the package of a new environment."),
    "env try": ("atroposlib.cli.env_try:main", "Print a few rollouts of an environment."),
    "env run": (
        "atroposlib.cli.env_files:run_environment",
        "serve, process or evaluate an environment.",
    ),
    "env list": ("atroposlib.cli.env_files:print_list", "List the environments at hand."),
    "env validate": (
        "atroposlib.cli.env_validate:run_and_exit",
        "Check an environment, without a model.",
    ),
    "env export": ("atroposlib.cli.export:main", "Write a package for another library."),
    "env info": ("atroposlib.cli.env_files:print_info", "Package, card and settings of one."),
    "env tasks": (
        "atroposlib.cli.operate.env_tasks:main",
        "Tasks of a run by success over steps; pools over time.",
    ),
    "env openenv": ("atroposlib.cli.export.openenv:main", "Serve one to clients of OpenEnv."),
    "eval": ("atroposlib.cli.env_files:evaluate", "Evaluate a model in an environment."),
    "train grpo": ("example_trainer.cli:main", "GRPO and its relatives (atropos-grpo)."),
    "train sft": (f"{FILE_TRAINERS}:sft", "Fine-tune on texts (atropos-sft)."),
    "train dpo": (f"{FILE_TRAINERS}:dpo", "Train on pairs (atropos-dpo)."),
    "train rm": (f"{FILE_TRAINERS}:reward_model", "Train a reward model (atropos-rm)."),
    "loss new": ("atroposlib.cli.env_new:write_loss", "Write the package of a loss."),
    "infer": ("atroposlib.inference.__main__:main", "Serve a model (atropos-infer)."),
    "data sft": (
        "atroposlib.cli.collect.collecting:sft_gen",
        "Collect texts (atropos-sft-gen).",
    ),
    "data dpo": (
        "atroposlib.cli.collect.collecting:dpo_gen",
        "Collect pairs (atropos-dpo-gen).",
    ),
    "data export": (
        "atroposlib.cli.collect.rollout_files:main",
        "Rollouts of a run, with texts, as parquet or JSON lines.",
    ),
    "data wins": (
        "atroposlib.cli.collect.wins:main",
        "Games against earlier versions, by version.",
    ),
    "data rescore": (
        "atroposlib.travel.rescore:main",
        "Another reward over the rollouts of a run.",
    ),
    "data replay": (
        "atroposlib.travel.replay:main",
        "Batches of a run once more, to a trainer or an API.",
    ),
    "run": (
        "example_trainer.launch.__main__:main",
        "All processes of one file: local, slurm, k8s, ray.",
    ),
    "run diff": (
        "atroposlib.workbench.command_line:run_diff",
        "Two runs: settings, code, curves, tasks.",
    ),
    "chat": ("atroposlib.inference.chat:main", "Talk to a model directory."),
}
NOUNS = {
    "api": "Rollout API",
    "env": "Environments",
    "train": "Trainers",
    "data": "Training data",
    "loss": "Losses",
}


def fail(problem: object, status: int) -> None:
    logs.report("error", problem)
    raise SystemExit(status)


class Group(click.Group):
    """Commands in the order of the table; an unknown word gets its nearest match."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)  # alone: the page fits a terminal

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            hint, known = did_you_mean(args[0], self.commands), ", ".join(self.commands)
            fail(
                f"{ctx.command_path}: unknown {args[0]!r}{hint} (one of {known})", USAGE_ERROR
            )
        return super().resolve_command(ctx, args)


class Existing(click.Command):
    """A subcommand whose words, ``--help`` included, are read by the function of ``target``.

    A first word in ``verbs`` goes to the function named there.
    """

    def __init__(self, name: str, target: str, about: str) -> None:
        super().__init__(name, short_help=about, add_help_option=False)
        self.target = target
        self.verbs: dict[str, str] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return []

    def invoke(self, ctx: click.Context) -> None:
        target, words = self.target, ctx.args
        if words and words[0] in self.verbs:
            target, words = self.verbs[words[0]], words[1:]
        module, _, function = target.partition(":")
        status = 130
        try:
            status = getattr(import_module(module), function)(words) or 0
        except (AtroposError, OSError) as error:
            fail(error, USAGE_ERROR if isinstance(error, ConfigError) else 1)
        except KeyboardInterrupt:
            pass
        ctx.exit(status)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="atropos", message="%(prog)s %(version)s")
def cli() -> None:
    """Reinforcement learning of language models. Each command has --help."""


for _words, (_target, _about) in COMMANDS.items():
    _first, _, _verb = _words.partition(" ")
    if _verb and _first not in cli.commands:
        _verbs = [words.split()[1] for words in COMMANDS if words.startswith(f"{_first} ")]
        cli.add_command(Group(_first, help=f"{NOUNS[_first]}: {', '.join(_verbs)}."))
    _parent = cli.commands[_first] if _verb else cli
    if isinstance(_parent, Existing):
        _parent.verbs[_verb] = _target
        continue
    assert isinstance(_parent, click.Group)
    _parent.add_command(Existing(_verb or _first, _target, _about))


@cli.command()
def version() -> None:
    """Versions of this installation."""
    if problem := name_clash():
        logs.report("warning", problem)
    print(f"{NAME} {__version__}\npython {sys.version.split()[0]}")
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


def main(argv: Sequence[str] | None = None) -> None:
    """Run the subcommand of ``argv``; exits with its status."""
    cli(None if argv is None else list(argv), prog_name="atropos")


if __name__ == "__main__":
    main()
