"""atropos-sft-gen: collect the best sequences of environments as training text.

atropos-sft-gen sft.jsonl --tokenizer MODEL     {"prefix", "completion", "score"} a line
atropos-sft-gen sft.jsonl --save-messages       {"messages", "score"}
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

from atroposlib.cli import collecting
from atroposlib.cli.selection import SelectionRules, best_rows, prompt_length, split_texts
from atroposlib.wire import ScoredData


def main(argv: Sequence[str] | None = None) -> int:
    """Console command."""
    parser = collecting.build_parser(
        COMMAND.name,
        "Save the best sequences of each group that environments send.",
        limit_flag="--save-top-n-per-group",
        min_difference=0.0,
        tasks=64,
    )
    return collecting.main(COMMAND, parser, argv)


def lines_of(
    group: ScoredData,
    rows: Sequence[int],
    rules: SelectionRules,
    tokenizer: Any,
    rng: random.Random,
) -> list[collecting.Line]:
    """Lines of one group, best sequence first; of ``rows`` only, those that did not fail."""
    kept = [rows[g] for g in best_rows([group.scores[g] for g in rows], rules)]
    if tokenizer is None:
        messages = group.messages or []
        return [{"messages": messages[g], "score": group.scores[g]} for g in kept]
    tokens = [group.tokens[g] for g in rows]
    length = prompt_length(tokens, [group.masks[g] for g in rows])
    prefix, completions = split_texts(tokenizer, tokens, length)
    texts = dict(zip(rows, completions))
    return [{"prefix": prefix, "completion": texts[g], "score": group.scores[g]} for g in kept]


COMMAND = collecting.CollectCommand("atropos-sft-gen", "sequences", lines_of)

if __name__ == "__main__":
    sys.exit(main())
