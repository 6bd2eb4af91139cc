"""Rows and groups for the tests of the trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION, ScoredData
from example_trainer.data.rows import Row


def at(temperature: float, one: Row) -> Row:
    """The row, sampled at this temperature."""
    return replace(one, temperatures=[temperature] * len(one.labels))


def row(prompt: list[int], completion: list[int], group: str = "g", **fields: Any) -> Row:
    """A row that trains its completion, sampled with logprob -1 at version 0."""
    return masked_row([(prompt, False), (completion, True)], group, **fields)


def masked_row(turns: list[tuple[list[int], bool]], group: str = "g", **fields: Any) -> Row:
    """A row of turns, each trained or not."""
    tokens = [token for turn, _ in turns for token in turn]
    trained = [is_trained for turn, is_trained in turns for _ in turn]
    values: dict[str, Any] = {
        "tokens": tokens,
        "labels": [t if on else MASKED for t, on in zip(tokens, trained)][1:],
        "behaviour_logprobs": [-1.0 if on else MASKED_LOGPROB for on in trained][1:],
        "versions": [0 if on else MASKED_VERSION for on in trained][1:],
        "reward": 0.0,
        "group": group,
    }
    return Row(**{**values, **fields})


def scored(
    tokens: list[list[int]], prompt: int, scores: list[float], **fields: Any
) -> ScoredData:
    """A group whose first ``prompt`` tokens are masked, sampled with logprob -1."""
    values: dict[str, Any] = {
        "tokens": tokens,
        "masks": [[MASKED] * prompt + row[prompt:] for row in tokens],
        "scores": scores,
        "inference_logprobs": [
            [MASKED_LOGPROB] * prompt + [-1.0] * (len(row) - prompt) for row in tokens
        ],
    }
    return ScoredData(**{**values, **fields})


ROWS = [row([5, 6, 7], [8, 9, 10]), row([5, 6, 7], [8, 11])]
SEQUENCES = [one.tokens for one in ROWS]
# Same prompt, diverging at once, late, by being a prefix of another, and not at all.
BRANCHING = [
    row([5, 6, 7, 8], [10, 11, 12]),
    row([5, 6, 7, 8], [10, 11, 13, 14]),
    row([5, 6, 7, 8], [20]),
    row([5, 6, 7, 8], [10, 11]),
    row([5, 6, 7, 8], [10, 11, 12]),
    at(0.7, row([5, 6, 9], [10, 11, 12])),
    row([30, 31], [32, 33, 34, 35, 36], group="h"),
]
MULTI_TURN = [
    masked_row([([5, 6], False), ([7, 8], True), ([9, 10, 11], False), ([12], True)]),
    masked_row([([5, 6], False), ([7, 8], True), ([9, 13], False), ([14, 15], True)]),
    masked_row([([5, 6], False), ([7, 16], True), ([9], False), ([17, 18], True)]),
]


def flat(values_R_T: list[list[float]]) -> list[float]:
    """One entry per token, for a comparison with pytest.approx."""
    return [value for values_T in values_R_T for value in values_T]
