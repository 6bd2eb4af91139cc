"""Generations of verl (trainer.rollout_data_dir): STEP.jsonl, a line for each sample.

input, output   decoded texts; input holds the markers of the chat template
gts             the answer of the data set
score, step     reward, step of the trainer
NAME            further results of the reward function
"""

from __future__ import annotations

from atroposlib.frontend.dumps.samples import (
    DumpSample,
    Record,
    numbers_of,
    prompt_messages,
    reply_messages,
    text_or_none,
)
from atroposlib.wire.numbers import finite_float

OWN = ("input", "output", "gts", "score", "step")


def is_generation(record: Record) -> bool:
    return {"input", "output"} <= record.keys() and ("score" in record or "gts" in record)


def generation_sample(record: Record, step: int | None) -> DumpSample:
    """The sample of a line; samples of a prompt have the same input."""
    rest = {name: value for name, value in record.items() if name not in OWN}
    named = numbers_of(rest)
    more = {"answer": text_or_none(record.get("gts"))}
    more |= {name: str(value) for name, value in rest.items() if name not in named}
    own_step = record.get("step")
    return DumpSample(
        prompt_id=record["input"],
        messages=prompt_messages(record["input"]) + reply_messages(record["output"]),
        score=finite_float(record.get("score")),
        named=named,
        step=own_step if isinstance(own_step, int) else step,
        more=more,
    )
