"""atropos data replay: the batches of a run once more, in their composition and order.

atropos data replay runs/a --to trainer                         into atropos-grpo, in ./replayed
atropos data replay runs/a --to trainer --from-step 40 --scores rescored.jsonl -- lr=1e-6
atropos data replay runs/a --to api --api-url http://127.0.0.1:8000    into an empty API
atropos data replay runs/a --to jsonl --out batches.jsonl       a line for each group

A trainer gets the recorded settings, the words behind -- override them, and no inference server: it
begins at the model of its settings, or at model_name=CHECKPOINT, with the seed of the run, so that
its first steps have the recorded metrics. Each batch is posted alone, when the batch before it was
claimed. Rollouts are those of the recorded policy: for a trainer that has become another policy,
by its settings or by new rewards, those of later steps are off-policy.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from atroposlib.api.archive.load import place
from atroposlib.client import AsyncRolloutClient
from atroposlib.errors import ConfigError
from atroposlib.processes.children import (
    Child,
    Children,
    ProcessSpec,
    RunFailed,
    StopRequest,
    free_port,
)
from atroposlib.text.lines import json_line
from atroposlib.travel.feeding import FeedSettings, feed, require_empty
from atroposlib.travel.recorded_batches import (
    Changes,
    RecordedBatch,
    RecordedRun,
    in_order,
)
from atroposlib.travel.recorded_settings import recorded_trainer_settings, trainer_files
from atroposlib.travel.rescore import read_scores
from atroposlib.utils.command.parser import CommandParser

# Publishers that need servers or a node of servers; without servers all are alike.
NEED_SERVERS = ("distributed", "shared_memory", "node_disk")
OFF_POLICY = (
    "rollouts of later steps are off-policy for a trainer that has become another policy"
)
ANY_POLICY = "max_logprob_mismatch=1e9"  # tokens of a version are of another policy's
POLL_S = 0.1
END_S = 3600.0  # bound of the last step and the checkpoints after it


def main(argv: Sequence[str] | None = None) -> int:
    """Replay the batches of a run; the status is that of the trainer."""
    words = list(sys.argv[1:] if argv is None else argv)
    end = words.index("--") if "--" in words else len(words)
    options, trainer_words = _parse(words[:end]), words[end + 1 :]
    if not isinstance(options.run, Path):
        raise ConfigError("data replay reads a folder: give the --data-dir of the API")
    if trainer_words and options.to != "trainer":
        raise ConfigError("words behind -- are those of a trainer: --to trainer")
    scores = read_scores(options.scores) if options.scores else None
    changes = Changes(scores, options.keep_old)
    with RecordedRun(options.run, options.run_id, options.from_step or 0) as run:
        batches = list(in_order(run.batches, options.order, options.seed))
        if options.to == "jsonl":
            count = write_lines(run, batches, changes, options.out or Path("batches.jsonl"))
            print(
                f"{count} groups of {len(batches)} batches in {options.out or 'batches.jsonl'}"
            )
            return 0
        replay = Replay(run, batches, FeedSettings(changes, options.timeout))
        if options.to == "trainer":
            folder = options.out or Path("replayed")
            first_words = [] if is_exact(options, trainer_words) else [ANY_POLICY]
            words = [*first_words, *trainer_words]
            try:
                return replay.into_trainer(folder, trainer_files(options.run), words)
            except RunFailed as failed:
                print(failed.tail, file=sys.stderr)
                raise
        return replay.into_api(options.api_url, options.out or Path("replayed"))


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = CommandParser(prog="atropos data replay", description=__doc__)
    add = parser.add_argument
    add("run", type=place, help="folder of a run, or its data directory")
    add(
        "--to",
        choices=("trainer", "api", "jsonl"),
        required=True,
        help="what gets the batches",
    )
    add("--from-step", type=int, metavar="A", help="the first step (the first of the run)")
    add("--scores", type=Path, metavar="FILE", help="new rewards, a file of data rescore")
    add(
        "--keep-old",
        action="store_true",
        help="rows without a new reward keep the recorded one",
    )
    add("--order", choices=("recorded", "shuffled"), default="recorded", help="(%(default)s)")
    add("--seed", type=int, default=0, help="of --order shuffled (%(default)s)")
    add("--api-url", metavar="URL", help="an empty API (--to api: one is started without it)")
    add("--out", type=Path, metavar="PATH", help="folder (replayed); --to jsonl: file")
    add(
        "--timeout", type=float, default=3600.0, metavar="S", help="of each wait (%(default)s)"
    )
    add("--run-id", help="an earlier run of the directory")
    return parser.parse_args(words)


def is_exact(options: argparse.Namespace, trainer_words: Sequence[str]) -> bool:
    """Whether the policy of the trainer stays that of the recorded run.

    Then the trainer still compares its logprobs with those of each token's sampler.
    """
    changed = options.scores or options.from_step or options.order != "recorded"
    return not changed and not trainer_words


def write_lines(
    run: RecordedRun, batches: Sequence[RecordedBatch], changes: Changes, path: Path
) -> int:
    """Write a line for each group, batch after batch; return their number."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for batch in batches:
            for group in run.groups(batch, changes):
                about = {**(group.metadata or {}), "step": batch.step, "batch_no": batch.no}
                group = msgspec.structs.replace(group, metadata=about)
                file.write(json_line(msgspec.to_builtins(group)))
                count += 1
    return count


class Replay:
    """Batches on their way into an API, and the processes that it starts."""

    def __init__(
        self, run: RecordedRun, batches: Sequence[RecordedBatch], settings: FeedSettings
    ) -> None:
        self._run, self._batches, self._settings = run, batches, settings
        self._stop = StopRequest()

    def into_api(self, api_url: str | None, folder: Path) -> int:
        """Feed the API of a URL, or an API that it starts, until the last batch is claimed."""
        with ExitStack() as stack:
            if api_url is None:
                children = stack.enter_context(self._children(folder))
                api_url = self._start_api(children)
                print(f"rollout API for a trainer: {api_url}", flush=True)
            self._feed(api_url, self._stop.check)
        print(f"{len(self._batches)} batches were claimed; {OFF_POLICY}")
        return 0

    def into_trainer(self, folder: Path, files: Sequence[Path], words: Sequence[str]) -> int:
        """Train on the batches in ``folder``; return the status of the trainer."""
        folder = folder.resolve()
        if (folder / "checkpoints").exists():
            raise ConfigError(
                f"{folder} has checkpoints of a trainer: name another --out folder"
            )
        with self._children(folder) as children:
            api_url = self._start_api(children)
            command = trainer_command(api_url, folder, files, len(self._batches), words)
            trainer = children.start(ProcessSpec("trainer", command, {}, Path.cwd()))
            print(f"trainer: {trainer.log}", flush=True)
            self._feed(api_url, lambda: self._require_running(trainer))
            status = asyncio.run(self._end_of(trainer))
        print(f"{len(self._batches)} batches were trained on in {folder}; {OFF_POLICY}")
        return status

    def _children(self, folder: Path) -> Children:
        self._stop.listen()
        return Children(folder / "logs", self._stop)

    def _start_api(self, children: Children) -> str:
        """An API in memory on this machine."""
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        argv = (sys.executable, "-m", "atroposlib.cli.run_api", "--store", "memory")
        spec = ProcessSpec(
            "api", (*argv, "--port", str(port)), {}, Path.cwd(), health_url=f"{url}/health"
        )
        children.start(spec)
        children.wait_ready(["api"])
        return url

    def _feed(self, api_url: str, check: Callable[[], None]) -> None:
        settings = replace(self._settings, check=check)

        async def run() -> None:
            async with AsyncRolloutClient(api_url) as client:
                await require_empty(client, api_url)
                await feed(client, self._run, self._batches, settings)

        asyncio.run(run())

    def _require_running(self, trainer: Child) -> None:
        self._stop.check()
        if (ended := trainer.exit()) is not None:
            raise trainer.failure(f"the trainer ended before the last batch ({ended})")

    async def _end_of(self, trainer: Child) -> int:
        """The status of the trainer, within ``END_S``."""
        left_s = END_S
        while (ended := trainer.exit()) is None:
            self._stop.check()
            if left_s <= 0:
                raise trainer.failure(f"the trainer did not end within {END_S:g} s")
            await asyncio.sleep(POLL_S)
            left_s -= POLL_S
        if ended.returncode:
            raise trainer.failure(f"the trainer failed ({ended})")
        return ended.returncode


def trainer_command(
    api_url: str, folder: Path, files: Sequence[Path], steps: int, words: Sequence[str]
) -> tuple[str, ...]:
    """The command of a trainer without servers, trackers and evaluations.

    Args:
        files: recorded settings.
        words: override all others.
    """
    own: dict[str, Any] = {
        "atropos_url": api_url,
        "inference_urls": "[]",
        "save_path": folder / "checkpoints",
        "log_dir": folder,
        "metrics_path": "null",
        "training_steps": steps,
        "trackers": "[]",
        "use_wandb": "false",
        "eval_command": "null",
    }
    if recorded_trainer_settings(files).get("weight_publisher") in NEED_SERVERS:
        own["weight_publisher"] = "disk"
    configs = [word for file in files for word in ("--config", str(file))]
    overrides = [f"{name}={value}" for name, value in own.items()]
    return (sys.executable, "-m", "example_trainer.grpo", *configs, *overrides, *words)
