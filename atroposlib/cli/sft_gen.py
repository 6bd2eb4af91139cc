"""atropos-sft-gen: collect the best sequences of environments as training text.

atropos-sft-gen sft.jsonl --tokenizer MODEL     {"prefix", "completion", "score"} a line
atropos-sft-gen sft.jsonl --save-messages       {"messages", "score"}
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from atroposlib.cli import collecting
from atroposlib.cli.selection import SelectionRules, answers_of, best_rows
from atroposlib.wire import ScoredData


def lines_of(
    group: ScoredData,
    rows: Sequence[int],
    rules: SelectionRules,
    tokenizer: Any,
    rng: random.Random,
) -> list[collecting.Line]:
    """Lines of one group, best sequence first; of ``rows`` only, those that did not fail."""
    scores = [group.scores[g] for g in rows]
    prefix, answers = answers_of(group, rows, tokenizer)
    name = "messages" if tokenizer is None else "completion"
    return [{**prefix, name: answers[g], "score": scores[g]} for g in best_rows(scores, rules)]


COMMAND = collecting.CollectCommand(
    name="atropos-sft-gen",
    description="Save the best sequences of each group that environments send.",
    unit="sequences",
    lines_of=lines_of,
    limit_flag="--save-top-n-per-group",
    min_difference=0.0,
    tasks=64,
)
main = partial(collecting.main, COMMAND)

if __name__ == "__main__":
    sys.exit(main())
