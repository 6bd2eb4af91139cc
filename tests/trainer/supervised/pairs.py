"""Pairs to train on, and the metrics that a run wrote."""

from __future__ import annotations

import json

from tests.trainer.rows import row


def metrics(tmp_path):
    return [
        json.loads(line) for line in (tmp_path / "logs/metrics.jsonl").read_text().splitlines()
    ]


PAIRS = [
    [
        row([5, 6, 7], list(range(8, 9 + n)), f"{n}"),
        row([5, 6, 7], list(range(9, 11 + n)), f"{n}"),
    ]
    for n in (1, 3, 5, 8)
]
