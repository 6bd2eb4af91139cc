"""Tasks of the package inspect-ai: capitals, a scorer that fails, one with Docker."""

from __future__ import annotations

from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, mean, model_graded_qa, scorer
from inspect_ai.solver import generate, system_message

SAMPLES = [
    Sample(input=f"The capital of {of}?", target=name, id=of)
    for of, name in (("France", "Paris"), ("Peru", "Lima"), ("Kenya", "Nairobi"))
]


@scorer(metrics=[mean()])
def named() -> Any:
    async def score(state: Any, target: Any) -> Score:
        found = target.text in state.output.completion
        return Score(value="C" if found else "I", answer=state.output.completion)

    return score


@scorer(metrics=[mean()])
def length() -> Any:
    async def score(state: Any, target: Any) -> Score:
        return Score(value={"chars": len(state.output.completion), "turns": 1})

    return score


@scorer(metrics=[mean()])
def broken() -> Any:
    async def score(state: Any, target: Any) -> Score:
        raise RuntimeError("the scorer fell over")

    return score


@scorer(metrics=[mean()])
def worded(value: str) -> Any:
    async def score(state: Any, target: Any) -> Score:
        return Score(value=float("nan") if value == "nan" else value)

    return score


@task
def capitals(system: str = "Answer in one word.") -> Task:
    return Task(
        SAMPLES, solver=[system_message(system), generate()], scorer=[named(), length()]
    )


@task
def fails() -> Task:
    return Task(SAMPLES, scorer=broken())


@task
def other(value: str = "nan") -> Task:
    return Task(SAMPLES, scorer=worded(value))


@task
def judged() -> Task:
    return Task(SAMPLES, scorer=model_graded_qa())


@task
def boxed() -> Task:
    return Task(SAMPLES, scorer=named(), sandbox="docker")


@task
def unscored() -> Task:
    return Task(SAMPLES)
