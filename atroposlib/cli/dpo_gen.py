"""atropos-dpo-gen: collect pairs of a better and a worse answer from environments.

atropos-dpo-gen dpo.jsonl --tokenizer MODEL     {"prefix", "pos", "score", "neg"} a line
atropos-dpo-gen dpo.jsonl --save-messages       {"pos", "score", "neg"}, of messages

``score`` is that of the better one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from atroposlib.cli import collecting
from atroposlib.cli.selection import SelectionRules, answers_of, pairs
from atroposlib.wire import ScoredData


def lines_of(
    group: ScoredData,
    rows: Sequence[int],
    rules: SelectionRules,
    tokenizer: Any,
    rng: random.Random,
) -> list[collecting.Line]:
    """Lines of one group, best positive first; of ``rows`` only, those that did not fail."""
    scores = [group.scores[g] for g in rows]
    prefix, answers = answers_of(group, rows, tokenizer)
    return [
        {**prefix, "pos": answers[i], "score": scores[i], "neg": answers[j]}
        for i, j in pairs(scores, rules, rng)
    ]


COMMAND = collecting.CollectCommand(
    name="atropos-dpo-gen",
    description="Save pairs of a better and a worse sequence of each group that environments send.",
    unit="pairs",
    lines_of=lines_of,
    limit_flag="--save-n-pairs-per-group",
    min_difference=0.5,
    tasks=8,
)
main = partial(collecting.main, COMMAND)

if __name__ == "__main__":
    sys.exit(main())
