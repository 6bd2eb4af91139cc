"""An environment of verifiers 0.2: sums with two rewards, one of which may fail."""

from __future__ import annotations

import verifiers as vf
from datasets import Dataset


def load_environment(count=4, scoring="right", held_out=False, **_):
    def exact(completion, answer):
        if scoring == "raises":
            raise KeyError("the answer of the scoring")
        return float(completion[-1]["content"] == answer)

    def short(completion):
        return None if scoring == "none" else float(len(completion[-1]["content"]) < 3)

    def compared(completions) -> list[float]:
        return [0.0] * len(completions)

    rows = [
        {"question": f"{n} + 1 =", "answer": str(n + 1), "task": "sums"} for n in range(count)
    ]
    funcs = [exact, short, compared] if scoring == "group" else [exact, short]
    rubric = vf.Rubric(funcs=funcs, weights=[1.0, 0.5, 0.0][: len(funcs)])
    dataset = Dataset.from_list(rows)
    more = {"eval_dataset": Dataset.from_list(rows[:1])} if held_out else {}
    return vf.SingleTurnEnv(dataset=dataset, rubric=rubric, system_prompt="Count.", **more)
