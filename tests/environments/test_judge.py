"""The judge of SimpleQA: a separate server, three verdicts, and no score without a clear one."""

from __future__ import annotations

import pytest

from atroposlib.environments.benchmarks import benchmarks
from atroposlib.environments.common.judge import GRADES, verdict_in
from atroposlib.testing.fake_inference import FakeInference


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Both say Rome.\nVerdict: CORRECT", "correct"),
        ("**Verdict:** INCORRECT", "incorrect"),
        ("verdict: not_attempted.", "not_attempted"),
        ("Verdict: CORRECT? No, it says Paris.\nVerdict: INCORRECT", "incorrect"),
        ("CORRECT", None),
        ("Verdict: CORRECTED", None),
        ("Verdict: maybe", None),
        ("", None),
    ],
)
def test_the_last_verdict_counts_and_others_are_none(text, verdict):
    assert verdict_in(text, GRADES) == verdict


ANSWERS = {
    "Capital of Italy?": "Rome",
    "Longest river?": "Nile",
    "Author?": "Ann",
    "Who?": "Bo",
}


def answering(prompt, i):
    """Right, wrong, declined, and one that the judge cannot decide."""
    if "Italy" in prompt:
        return "<think>Paris?</think>Answer: it is Rome. Verdict: INCORRECT"
    if "river" in prompt:
        return "The Nile is not; it is the Rhine"
    return "<think>no idea</think>" if "Author" in prompt else "perhaps"


def grading(prompt, i):
    """Grades by what stands between the marks of the prompt, as it gets it."""
    reference = prompt.split("[Reference]\n")[1].split("\n")[0]
    answer = prompt.split("[Answer]\n")[1].split("\n\n[End")[0]
    assert "Paris" not in answer  # thinking is not graded
    if "perhaps" in answer:
        return "I cannot tell."
    return f"Verdict: {'CORRECT' if f'is {reference}' in answer else 'INCORRECT'}"


@pytest.fixture
def simpleqa(make_env, write_rows):
    rows = [{"problem": text, "answer": gold} for text, gold in ANSWERS.items()]
    path = write_rows("test.jsonl", rows)

    def make(url, **settings):
        return make_env(benchmarks, url, benchmark="simpleqa", dataset_path=path, **settings)

    return make


async def test_a_judge_grades_answers_and_an_unclear_verdict_is_no_score(simpleqa, evaluated):
    model, judge = FakeInference(reply=answering), FakeInference(reply=grading)
    with model.running() as url, judge.running() as judge_url:
        env = simpleqa(url, judge_base_url=f"{judge_url}/v1", judge_api_key="k")
        metrics, samples = await evaluated(env)
    grades = {name: metrics[name] for name in GRADES}
    assert grades == {"correct": 1 / 3, "incorrect": 1 / 3, "not_attempted": 1 / 3}
    assert metrics["reward"] == metrics["correct"]
    assert (metrics["unscored"], metrics["failed"]) == (1, 0)
    assert [one["result"] for one in samples].count("unscored") == 1
    # Thinking alone is no attempt, and is not sent; the model never grades itself.
    assert len(judge.requests) == 3
    assert not any("[Reference]" in str(body) for _, body in model.requests)
    assert all(body["temperature"] == 0 for _, body in judge.requests)
    assert {header["authorization"] for header in judge.headers} == {"Bearer k"}


async def test_a_judge_that_refuses_is_a_failure_and_no_score(simpleqa):
    model, judge = FakeInference(reply=lambda prompt, i: "Rome"), FakeInference()
    judge.fail_next.extend([401] * 99)
    with model.running() as url, judge.running() as judge_url:
        env = simpleqa(url, judge_base_url=f"{judge_url}/v1")
        await env.setup()
        with pytest.raises(Exception, match="401"):
            await env.evaluate()
        await env.close()


async def test_without_a_judge_the_words_of_the_reference_count(simpleqa, evaluated):
    with FakeInference(reply=answering).running() as url:
        metrics, _ = await evaluated(simpleqa(url))
    assert metrics["reward"] == metrics["contains"] and "correct" not in metrics
