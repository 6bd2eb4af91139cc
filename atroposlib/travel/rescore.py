"""atropos data rescore: another reward over the rollouts of a run, and what it changes.

atropos data rescore runs/a --reward fixed.py
atropos data rescore runs/a --reward fixed.py:exact --items tasks.jsonl --step 10..20
atropos data rescore runs/a --reward math_verify --env math --sample 500 --jobs 4

The reward is FILE.py:NAME (NAME: reward), MODULE:NAME or a registered name, plain or async. Its
arguments are found by their names: completion, prompt, messages, item, env, metadata, reward (the
old one) and other facts, entries of the metadata, and the columns of --items, whose lines have the
task as id. A first argument completions gets a list, as of TRL. Advantages are those of the
estimator in the run's settings.

The archive is not changed. rescored.jsonl has a line for each rollout, which
`atropos data replay RUN --scores rescored.jsonl` trains on; rescored.html is the report.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from atroposlib.api.archive.load import place
from atroposlib.api.archive.rollout_blocks import Record, RunRollouts
from atroposlib.api.archive.rollout_tables import module_of_extra
from atroposlib.errors import ConfigError
from atroposlib.text.lines import json_line, json_lines
from atroposlib.travel.comparison import Rescored, add_advantages, compare
from atroposlib.travel.recorded_settings import advantage_settings, run_folder, trainer_files
from atroposlib.travel.rescore_report import report_lines, report_page
from atroposlib.travel.scoring import ScoringProcesses
from atroposlib.travel.scoring_process import RewardOutcome
from atroposlib.travel.stored_reward import (
    load_stored_reward,
    require_arguments,
    values_of,
)
from atroposlib.utils.command.parser import CommandParser, whole
from atroposlib.utils.io import whole_file

LARGEST = 20  # disagreements with texts
NO_TEXT = "no text"  # failure: the bytes of the rollout are freed
COLUMNS = {
    "gid": "gid",
    "row": "row",
    "env": "env",
    "item": "item",
    "step": "step",
    "batch_no": "batch_no",
    "old_reward": "old",
    "new_reward": "new",
    "old_advantage": "old_advantage",
    "new_advantage": "new_advantage",
    "failure": "failure",
    "failure_text": "failure_text",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Score the rollouts of a run again, and write and print the comparison."""
    options = _parse(argv)
    if not isinstance(options.run, Path):
        raise ConfigError("data rescore reads a folder: give the --data-dir of the API")
    files = [options.trainer_config] if options.trainer_config else trainer_files(options.run)
    settings = advantage_settings(files)
    filters = {
        name: value
        for name, value in (("env", options.env), ("step", options.step))
        if value is not None
    }
    groups = None
    if options.sample is not None:
        groups = sampled_groups(options.run, options.run_id, filters, options.sample)
    rollouts = RunRollouts(
        options.run, options.run_id, filters, True, options.tokenizer, True, groups
    )
    columns = task_columns(options.items) if options.items else {}
    rescoring = Rescoring(options.reward, options.jobs, options.timeout, columns)
    rescoring.run(record for block in rollouts.blocks() for record in block)
    add_advantages(rescoring.rows, settings)
    comparison = compare(rescoring.rows, LARGEST)
    source = ", ".join(map(str, files)) or "no settings are recorded: default"
    name = run_folder(options.run).name
    notes = [
        f"{len(rescoring.rows)} rollouts of {name}, reward {options.reward}",
        f"advantage {settings.advantage} ({source})",
    ]
    print("\n".join(report_lines(comparison, notes)))
    write_rows(rescoring.rows, options.out)
    title = f"{name}: {options.reward}"
    options.html.write_bytes(report_page(comparison, rescoring.texts, title, notes))
    print(f"{options.out} has a line for each rollout, {options.html} is the report")
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = CommandParser(prog="atropos data rescore", description=__doc__)
    add = parser.add_argument
    add("run", type=place, help="folder of a run, or its data directory")
    add("--reward", required=True, help="FILE.py:NAME, MODULE:NAME or a registered name")
    add("--env", help="rollouts of this environment")
    add("--step", metavar="A..B", help="rollouts of these steps of the trainer")
    add(
        "--sample",
        type=whole(1),
        metavar="N",
        help="N groups, drawn at random with a fixed seed",
    )
    add("--jobs", type=whole(1), default=1, metavar="K", help="processes (%(default)s)")
    add("--timeout", type=_seconds, default=10.0, help="s of a rollout (%(default)s)")
    add("--items", type=Path, metavar="FILE", help="JSON lines of tasks: id, and columns")
    add(
        "--trainer-config",
        type=Path,
        metavar="FILE",
        help="settings of the advantage (the run's)",
    )
    add("--tokenizer", help="directory or cached name (that of the trainer)")
    add("--run-id", help="an earlier run of the directory")
    about = "rows, .jsonl or .parquet (%(default)s)"
    add("--out", type=Path, default=Path("rescored.jsonl"), metavar="FILE", help=about)
    about = "report (%(default)s)"
    add("--html", type=Path, default=Path("rescored.html"), metavar="FILE", help=about)
    return parser.parse_args(argv)


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e6:
        raise argparse.ArgumentTypeError("more than 0 s")
    return number


def sampled_groups(
    run: Path, run_id: str | None, filters: Mapping[str, str], count: int
) -> Collection[int]:
    """Ids of ``count`` groups with rollouts that filters let pass, the same at each call."""
    blocks = RunRollouts(run, run_id, filters).blocks()
    gids = sorted({record["gid"] for block in blocks for record in block})
    return set(random.Random(0).sample(gids, min(count, len(gids))))


def task_columns(path: Path) -> dict[str, dict[str, Any]]:
    """Columns of the tasks in a file, by the id of the task.

    Raises ConfigError: the file cannot be read, or a line has no id.
    """
    try:
        lines = json_lines(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--items {path}: {error}: a JSON object in each line") from error
    items: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(lines, 1):
        if not isinstance(line, dict) or "id" not in line:
            raise ConfigError(f"--items {path}: task {number} has no id")
        items[str(line["id"])] = {name: value for name, value in line.items() if name != "id"}
    return items


@dataclass
class Rescoring:
    """Rollouts with both rewards, and the texts of the largest disagreements."""

    reward: str
    jobs: int
    timeout_s: float
    columns: Mapping[str, Mapping[str, Any]]  # task columns, by id
    rows: list[Rescored] = field(default_factory=list)
    _largest: list[tuple[float, int, Record]] = field(default_factory=list)  # a heap

    def run(self, records: Iterator[Record]) -> None:
        """Score all records; ``rows`` are in their order.

        Raises ConfigError: there is no such reward, or it needs what a run does not hold.
        """
        reward = load_stored_reward(self.reward)
        first = next(records, None)
        if first is None:
            return
        require_arguments(reward, values_of(first, self.columns))
        with ScoringProcesses(self.reward, self.jobs, self.timeout_s) as processes:
            for record, outcome in processes.scores(self._work(chain([first], records))):
                self._add(record, outcome)
        self.rows.sort(key=lambda row: (row.gid, row.row))

    @property
    def texts(self) -> dict[tuple[int, int], Record]:
        """Records of the largest disagreements, by group and row."""
        return {(record["gid"], record["row"]): record for *_, record in self._largest}

    def _work(self, records: Iterator[Record]) -> Iterator[tuple[Record, dict[str, Any]]]:
        for record in records:
            if record["answer"] is None and record["messages"] is None:
                self._add(record, RewardOutcome(0, None, NO_TEXT, "its bytes are freed"))
            else:
                yield record, values_of(record, self.columns)

    def _add(self, record: Record, outcome: RewardOutcome) -> None:
        row = rescored_row(record, outcome)
        self.rows.append(row)
        if row.old is None or row.new is None:
            return
        # Of equal differences the first rollout is kept, as in the comparison.
        key = (abs(row.new - row.old), -(row.gid * 2**20 + row.row))
        entry = (*key, record)
        if len(self._largest) < LARGEST:
            heapq.heappush(self._largest, entry)
        elif key > self._largest[0][:2]:
            heapq.heapreplace(self._largest, entry)


def rescored_row(record: Record, outcome: RewardOutcome) -> Rescored:
    """A record with the outcome of its new reward."""
    group_id = record["group_id"]
    return Rescored(
        gid=record["gid"],
        row=record["row"],
        env=record["env"],
        item=record["item"],
        step=record["step"],
        batch_no=record["batch_no"],
        prompt_id=record["gid"] if group_id is None else (record["env"], group_id),
        old=record["reward"],
        new=outcome.score,
        failure=outcome.kind,
        failure_text=outcome.text,
        n_trained=record["n_trained"],
        finish_reason=record["finish_reason"],
    )


def write_rows(rows: Sequence[Rescored], path: Path) -> None:
    """Write a line for each rollout, as JSON or parquet by the name of the file."""
    records = [{name: getattr(row, own) for name, own in COLUMNS.items()} for row in rows]
    with whole_file(path) as draft:
        if path.suffix == ".parquet":
            table = module_of_extra("pyarrow").Table.from_pylist(records)
            module_of_extra("pyarrow.parquet").write_table(table, draft)
        else:
            draft.write_text("".join(map(json_line, records)), encoding="utf-8")


def read_scores(path: Path) -> dict[tuple[int, int], float | None]:
    """New rewards by group and row, of a file of :func:`write_rows`.

    Raises ConfigError: the file cannot be read, or has other columns.
    """
    try:
        if path.suffix == ".parquet":
            records = module_of_extra("pyarrow.parquet").read_table(path).to_pylist()
        else:
            records = [
                json.loads(line) for line in path.read_text("utf-8").split("\n") if line
            ]
        return {(row["gid"], row["row"]): row["new_reward"] for row in records}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--scores {path}: {error}: a file of `atropos data rescore` is expected"
        ) from error
