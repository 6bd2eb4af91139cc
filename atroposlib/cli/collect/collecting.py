"""Collect training files from environments: atropos-sft-gen and atropos-dpo-gen.

atropos-sft-gen sft.jsonl --tokenizer MODEL     {"prefix", "completion", "score"} a line
atropos-sft-gen sft.jsonl --save-messages       {"messages", "score"}
atropos-dpo-gen dpo.jsonl --tokenizer MODEL     {"prefix", "pos", "score", "neg"} a line
atropos-dpo-gen dpo.jsonl --save-messages       {"pos", "score", "neg"}, of messages

    run-api --claim--> batch -> lines of each group -> FILE, synced -> ack

The tool takes the place of a trainer. It opens a new run and rejects an API with another run,
unless ``--reset`` permits to wipe it, or the run is what a finished collection left.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from atroposlib.cli.collect.line_file import LineFile
from atroposlib.cli.collect.selection import (
    Line,
    SelectionRules,
    best_lines,
    pair_lines,
    usable_rows,
)
from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError, ConfigError
from atroposlib.utils.command import logs
from atroposlib.utils.command.parser import API_TOKEN, HUB, CommandParser, whole
from atroposlib.wire import Heartbeat, Registration, RunStatus, ScoredData

CLAIM_WAIT_S = 5.0
COUNT = whole(1)
DEFAULT_TOKENIZER = "NousResearch/DeepHermes-3-Llama-3-8B-Preview"
DONE = "done"  # phase of a heartbeat
RUN = "run_id"  # detail of a heartbeat: the run that the tool opened
LIVE_TRAINER_S = 60.0  # trainers of this package send a heartbeat every few seconds


@dataclass(frozen=True)
class CollectCommand:
    """Command; ``lines_of(group, rows, rules, tokenizer or None, rng)`` are the lines."""

    name: str
    description: str
    unit: str  # noun of the lines, for the log
    lines_of: Callable[..., list[Line]]
    limit_flag: str  # bounds the lines of a group
    min_difference: float  # defaults of flags
    tasks: int


SFT = CollectCommand(
    name="atropos-sft-gen",
    description="Save the best sequences of each group that environments send.",
    unit="sequences",
    lines_of=best_lines,
    limit_flag="--save-top-n-per-group",
    min_difference=0.0,
    tasks=64,
)
DPO = CollectCommand(
    name="atropos-dpo-gen",
    description="Save pairs of a better and a worse sequence of each group that environments send.",
    unit="pairs",
    lines_of=pair_lines,
    limit_flag="--save-n-pairs-per-group",
    min_difference=0.5,
    tasks=8,
)


def main(command: CollectCommand, argv: Sequence[str] | None = None) -> int:
    """Run the command; exit status 0 when done, 1 after an error line on stderr."""
    options = build_parser(command).parse_args(argv)
    logs.configure(command.name, options.log_format, options.log_level)
    try:
        collect(command, options)
    except (AtroposError, OSError) as error:
        logs.report(command.name, error)
        return 1
    except KeyboardInterrupt:
        logs.report(command.name, "stopped; --append-to-previous goes on")
        return 130
    return 0


sft_gen, dpo_gen = partial(main, SFT), partial(main, DPO)


def build_parser(command: CollectCommand) -> CommandParser:
    """The flags of both commands."""
    parser = CommandParser(
        prog=command.name,
        description=command.description,
        epilog="How to use it: docs/other-training.md",
        variables=(API_TOKEN, HUB),
    )
    add = parser.add_argument

    def value(flag: str, kind: Any, default: Any, about: str, **more: Any) -> None:
        add(flag, type=kind, default=default, help=f"{about} (%(default)s)", **more)

    add("filepath", type=Path, help="file of JSON lines to write")
    value("--api-url", str, "http://localhost:8000", "rollout API")
    value("--group-size", COUNT, 2, "sequences per group that environments make")
    value("--max-token-len", COUNT, 2048, "tokens of a sequence, told to environments")
    value("--tokenizer", str, DEFAULT_TOKENIZER, "of the model that was sampled")
    add("--save-messages", action="store_true", help="lines of messages instead of text")
    about = "lines of one group, at most"
    value(command.limit_flag, COUNT, 3, about, dest="max_per_group")
    value("--num-seqs-to-save", COUNT, 100, "lines to write, exactly")
    add("--allow-negative-scores", action="store_true", help="keep scores of 0 and below too")
    about = (
        "a line's score lies above the group's lowest, or its negative's, by more than this"
    )
    value("--minimum-score-diff-max-min", float, command.min_difference, about)
    about = "add to a file that exists; a collection that was cut off goes on where it was"
    add("--append-to-previous", action="store_true", help=about)
    value("--tasks-per-step", COUNT, command.tasks, "groups per batch")
    value("--seed", int, 0, "of random choices")
    about = "wipe an existing run of this API, including its queue"
    add("--reset", action="store_true", help=about)
    return parser


def collect(command: CollectCommand, options: argparse.Namespace) -> None:
    """Write ``num_seqs_to_save`` lines.

    The file and the tokenizer are checked before the first call of the API.

    Raises:
        ConfigError: the file or the tokenizer cannot be used, or a trainer owns the run.
        RolloutApiError, StaleGeneration: the API is gone, or a trainer took over. Written
            lines stay, and ``--append-to-previous`` continues.
    """
    out = LineFile(options.filepath, append=options.append_to_previous)
    tokenizer = None if options.save_messages else tokenizer_of_flag(options.tokenizer)
    rules = SelectionRules(
        options.max_per_group,
        options.allow_negative_scores,
        options.minimum_score_diff_max_min,
    )
    say = logging.getLogger(__name__).info

    with closing(RolloutClient(options.api_url, on_wait=say)) as client:
        if options.reset or is_left_by_collection(client.status()):
            client.reset()
        require_no_trainer(
            client.status(), options.api_url, out.progress.run_id if out.resumed else None
        )
        # The steps are an upper bound for environments that take their number from here.
        batch_size = options.group_size * options.tasks_per_step
        steps = 2 * options.num_seqs_to_save
        registered = client.register(registration(batch_size, options.max_token_len, steps))
        if out.resumed:
            say(f"going on after {out.progress.lines} lines; {out.cut} bytes cut")
        out.open(registered.run_id)

        def lines_of(batch_no: int, groups: Sequence[ScoredData]) -> tuple[list[Line], str]:
            lines, counts = [], Counter(groups=len(groups))
            for number, group in enumerate(groups):
                rows = usable_rows(group)
                counts["failed rollouts left out"] += len(group.tokens) - len(rows)
                if options.save_messages and group.messages is None:
                    counts["groups without messages"] += 1
                elif rows:
                    # A generator per group: a batch delivered again gives the same lines.
                    rng = random.Random(f"{options.seed}/{batch_no}/{number}")
                    lines += command.lines_of(group, rows, rules, tokenizer, rng)
            return lines, ", ".join(f"{n} {what}" for what, n in counts.items() if n)

        _fill(command, client, out, options.num_seqs_to_save, lines_of, say)
    out.finish()
    say(f"done: {out.progress.lines} {command.unit} in {out.path}")


def _fill(
    command: CollectCommand,
    client: RolloutClient,
    out: LineFile,
    wanted: int,
    lines_of: Callable[[int, Sequence[ScoredData]], tuple[list[Line], str]],
    say: Callable[[str], None],
) -> None:
    wait_s = 0.0  # a batch whose ack was lost is available at once
    reason = None
    while True:
        claimed = client.claim(wait_s=wait_s, binary=True)
        left = wanted - out.progress.lines
        if out.holds(claimed):
            client.ack(claimed)
        elif left <= 0:
            return
        elif claimed.batch is None or claimed.batch_no is None:
            if claimed.blocked_reason != reason:
                say(f"{out.progress.lines} of {wanted}; waiting: {claimed.blocked_reason}")
            reason = claimed.blocked_reason
        else:
            lines, summary = lines_of(claimed.batch_no, claimed.batch)
            out.append(lines[:left], claimed.batch_no)
            client.ack(claimed)
            kept = min(left, len(lines))
            say(
                f"{out.progress.lines} of {wanted}:"
                f" {kept} {command.unit} from batch {claimed.batch_no} ({summary})"
            )
            reason = None
        written = out.progress.lines
        client.heartbeat(
            Heartbeat(
                role="tool",
                name=command.name,
                phase=DONE if written >= wanted else "collecting",
                waiting_on=reason[:400] if reason else None,
                details={"lines": written, "wanted": wanted, RUN: out.progress.run_id},
            )
        )
        if written >= wanted:
            return
        wait_s = CLAIM_WAIT_S


def is_left_by_collection(status: RunStatus) -> bool:
    """Whether the run is that of a collection which has written all its lines."""
    return any(
        participant.role == "tool"
        and participant.phase == DONE
        and participant.details.get(RUN) == status.run_id
        for participant in status.participants
    )


def require_no_trainer(status: RunStatus, url: str, resumed: str | None = None) -> None:
    """Check that the API has no run of another trainer.

    An API is free without a registered trainer, or with the run ``resumed``, an interrupted
    run of this file, unless that run has a live trainer now. Raises ConfigError: the run
    belongs to another trainer.
    """
    lives = any(
        participant.role == "trainer"
        and participant.age_s < LIVE_TRAINER_S
        and participant.phase != DONE
        for participant in status.participants
    )
    ours = resumed is not None and status.run_id == resumed and not lives
    if status.state != "EMPTY" and not ours:
        raise ConfigError(
            f"a run is open at {url} (step {status.current_step}, {status.queue_size} groups"
            " queued) and would lose its trainer: use another API, or --reset to wipe"
            " that run and take its environments over"
        )


def registration(batch_size: int, max_token_len: int, num_steps: int) -> Registration:
    """The registration of a tool in a trainer's place, with the names of the original."""
    return Registration(
        wandb_group="test",
        wandb_project="test",
        batch_size=batch_size,
        max_token_len=max_token_len,
        checkpoint_dir="checkpoints",
        save_checkpoint_interval=10,
        starting_step=0,
        num_steps=num_steps,
    )


def tokenizer_of_flag(name: str) -> Any:
    """The tokenizer of --tokenizer. Raises ConfigError: it cannot be loaded."""
    from atroposlib.utils.tokenizers.loading import load_tokenizer_named

    try:
        return load_tokenizer_named(name)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--tokenizer {name!r} cannot be loaded: {error}") from error
