"""atropos-dpo-gen: collect pairs of a better and a worse answer from environments.

atropos-dpo-gen dpo.jsonl --tokenizer MODEL     {"prefix", "pos", "score", "neg"} a line
atropos-dpo-gen dpo.jsonl --save-messages       {"pos", "score", "neg"}, of messages

``score`` is that of the better one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

from atroposlib.cli import collecting
from atroposlib.cli.selection import SelectionRules, pairs, prompt_length, split_texts
from atroposlib.wire import ScoredData


def main(argv: Sequence[str] | None = None) -> int:
    """Console command."""
    parser = collecting.build_parser(
        COMMAND.name,
        "Save pairs of a better and a worse sequence of each group that environments send.",
        limit_flag="--save-n-pairs-per-group",
        min_difference=0.5,
        tasks=8,
    )
    return collecting.main(COMMAND, parser, argv)


def lines_of(
    group: ScoredData,
    rows: Sequence[int],
    rules: SelectionRules,
    tokenizer: Any,
    rng: random.Random,
) -> list[collecting.Line]:
    """Lines of one group, best positive first; of ``rows`` only, those that did not fail."""
    chosen = pairs([group.scores[g] for g in rows], rules, rng)
    prefix: dict[str, str] = {}
    sides: Sequence[Any]
    if tokenizer is None:
        messages = group.messages or []
        sides = [messages[g] for g in rows]
    else:
        tokens = [group.tokens[g] for g in rows]
        length = prompt_length(tokens, [group.masks[g] for g in rows])
        text, completions = split_texts(tokenizer, tokens, length)
        prefix, sides = {"prefix": text}, completions
    return [
        {**prefix, "pos": sides[i], "score": group.scores[rows[i]], "neg": sides[j]}
        for i, j in chosen
    ]


COMMAND = collecting.CollectCommand("atropos-dpo-gen", "pairs", lines_of)

if __name__ == "__main__":
    sys.exit(main())
