"""Trainer for kills: its book has each batch that it trained on, and where each life began.

    python -m tests.torture.kills.booked_trainer FOLDER API_URL

A checkpoint every third step. A new life goes on from the last one, and the API delivers the
batches after it again.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atroposlib.client import RolloutClient
from atroposlib.errors import RunStateError, StaleGeneration
from atroposlib.testing.tiny import char_tokenizer
from atroposlib.wire import MASKED, Registration, ScoredData
from tests.torture.kills.booked_server import VERSION

BOOK, CHECKPOINT = "trained.jsonl", "checkpoint.json"
CHECKPOINTS = "checkpoints"  # folder that environments learn about
STEPS_PER_CHECKPOINT = 3
GROUP = 4  # sequences, which are a batch


@dataclass(frozen=True)
class TrainedGroup:
    """A group of a batch."""

    env: str
    item: str
    answers: list[str]
    tokens: int  # trained


def trained_groups(folder: Path) -> list[TrainedGroup]:
    """Groups that led to the present weights: what a dead life did after its checkpoint is not."""
    steps: dict[int, list[TrainedGroup]] = {}
    book = folder / BOOK
    lines = book.read_text().split("\n")[:-1] if book.exists() else []
    for line in map(json.loads, lines):
        if "begins_after" in line:
            steps = {step: steps[step] for step in steps if step <= line["begins_after"]}
        else:
            steps[line["step"]] = [TrainedGroup(**group) for group in line["groups"]]
    return [group for step in sorted(steps) for group in steps[step]]


class BookedTrainer:
    """Claims, notes, acks, and saves."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._client = RolloutClient(url, on_wait=lambda why: None)
        self._tokenizer = char_tokenizer()
        self._step = self._batch_no = 0

    def run(self) -> None:
        while True:
            try:
                self._begin()
                while True:
                    self._train_next()
            except (RunStateError, StaleGeneration) as error:
                print(f"begins again: {error}", flush=True)

    def _begin(self) -> None:
        saved = self._folder / CHECKPOINT
        held = json.loads(saved.read_text()) if saved.exists() else {"step": 0, "batch_no": 0}
        self._step, self._batch_no = held["step"], held["batch_no"]
        registration = Registration(
            wandb_group="",
            wandb_project="",
            batch_size=GROUP,
            max_token_len=64,
            checkpoint_dir=str(self._folder / CHECKPOINTS),
            save_checkpoint_interval=0,
            starting_step=self._step,
            num_steps=10**6,
            commits=True,
            holds=self._batch_no,
        )
        self._client.register(registration)
        self._client.rewind(self._batch_no)
        self._note({"begins_after": self._step})
        self._publish()
        if self._batch_no:
            self._client.commit(self._batch_no)

    def _train_next(self) -> None:
        claimed = self._client.claim(wait_s=0.5)
        if claimed.batch is None:
            return
        if claimed.batch_no != self._batch_no:  # a batch whose ack was lost comes again
            self._step += 1
            self._batch_no = claimed.batch_no or 0
            groups = [self._group(group) for group in claimed.batch]
            self._note({"step": self._step, "groups": groups})
            self._publish()
        self._client.ack(claimed)
        if self._step % STEPS_PER_CHECKPOINT == 0:
            self._save()

    def _save(self) -> None:
        held = json.dumps({"step": self._step, "batch_no": self._batch_no})
        _replace(self._folder / CHECKPOINT, held)
        self._client.commit(self._batch_no)

    def _publish(self) -> None:
        _replace(self._folder / VERSION, f"{self._step}")
        self._client.announce_version(self._step)

    def _group(self, group: ScoredData) -> dict[str, Any]:
        sampled = [[label for label in labels if label != MASKED] for labels in group.masks]
        facts = group.metadata or {}
        return {
            "env": str(facts["env"]),
            "item": str(facts["item"]),
            "answers": [
                self._tokenizer.decode(ids, skip_special_tokens=True) for ids in sampled
            ],
            "tokens": sum(map(len, sampled)),
        }

    def _note(self, line: dict[str, Any]) -> None:
        with (self._folder / BOOK).open("a") as book:
            book.write(f"{json.dumps(line)}\n")


def _replace(path: Path, text: str) -> None:
    """Write a file that is whole at any moment."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    os.replace(partial, path)


if __name__ == "__main__":
    BookedTrainer(Path(sys.argv[1]), sys.argv[2]).run()
