"""The benchmarks: each row of the table reads its data, and scores replies."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from atroposlib.environments.benchmarks import (
    BENCHMARKS,
    CHOICE,
    benchmarks,
    choice,
    choose_benchmark,
)
from atroposlib.errors import ConfigError, DatasetUnavailable
from atroposlib.testing.fake_inference import FakeInference

MATH = {"problem": "What is 6 * 7?", "answer": "42"}
LABELLED = {"choices": {"label": ["1", "2"], "text": ["fire", "ice"]}, "answerKey": "2"}
PASSAGE = "Ann went to Rome in May."
# A row in the form of each data set on the hub, and the answer that is read from it.
ROWS = {
    "aime24": (MATH, "42"),
    "aime25": (MATH, "42"),
    "amc23": ({"question": "6 * 7?", "answer": 42.0}, "42.0"),
    "arc": ({"question": "What is cold?", **LABELLED}, "B"),
    "arc_easy": ({"question": "What is cold?", **LABELLED}, "B"),
    "boolq": ({"passage": PASSAGE, "question": "was ann in rome", "answer": True}, "B"),
    "commonsense_qa": ({"question": "What is cold?", **LABELLED}, "B"),
    "drop": (
        {
            "passage": PASSAGE,
            "question": "When?",
            "answers_spans": {"spans": ["May", "in May"], "types": ["span", "span"]},
        },
        ["May", "in May"],
    ),
    "gpqa": (
        {
            "Question": "What is cold?",
            "Correct Answer": "ice",
            "Incorrect Answer 1": "fire",
            "Incorrect Answer 2": "steam",
            "Incorrect Answer 3": "lava",
            "High-level domain": "Physics",
        },
        "ice",
    ),
    "gsm8k": ({"question": "6 * 7?", "answer": "6 * 7 = 42\n#### 42"}, "42"),
    "hellaswag": ({"ctx": "He jumps", "endings": ["up", "of", "is"], "label": "0"}, "A"),
    "ifeval": (
        {
            "key": 1,
            "prompt": "Write a title. Use no comma.",
            "instruction_id_list": ["detectable_format:title", "punctuation:no_comma"],
            "kwargs": [{"num_words": None}, {"num_words": None}],
        },
        [("detectable_format:title", {}), ("punctuation:no_comma", {})],
    ),
    "math500": ({**MATH, "subject": "Algebra", "level": 1}, "42"),
    "mmlu": (
        {
            "question": "6 * 7?",
            "choices": ["40", "41", "42", "43"],
            "answer": 2,
            "subject": "m",
        },
        "C",
    ),
    "mmlu_pro": (
        {"question": "6 * 7?", "options": ["40", "42"], "answer": "B", "category": "m"},
        "B",
    ),
    "openbookqa": ({"question_stem": "What is cold?", **LABELLED}, "B"),
    "piqa": ({"goal": "Cool it", "sol1": "by fire", "sol2": "by ice", "label": 1}, "B"),
    "pubmedqa": (
        {
            "context": {"contexts": ["We looked.", "We saw."]},
            "question": "Is it?",
            "final_decision": "maybe",
        },
        "C",
    ),
    "race": (
        {"article": PASSAGE, "question": "Who?", "options": ["Bo", "Ann"], "answer": "B"},
        "B",
    ),
    "simpleqa": ({"metadata": "{}", "problem": "Where?", "answer": "Rome"}, ["Rome"]),
    "social_iqa": (
        {
            "context": PASSAGE,
            "question": "Who?",
            **{"answerA": "Bo", "answerB": "Cy", "answerC": "Ann", "label": "3"},
        },
        "C",
    ),
    "squad": (
        {"context": PASSAGE, "question": "Where?", "answers": {"text": ["Rome", "Rome"]}},
        ["Rome"],
    ),
    "triviaqa": (
        {"question": "Where?", "answer": {"value": "Rome", "aliases": ["Roma"]}},
        ["Rome", "Roma"],
    ),
    "truthfulqa": (
        {"question": "Cold?", "mc1_targets": {"choices": ["ice", "fire"], "labels": [1, 0]}},
        "ice",
    ),
    "winogrande": (
        {"sentence": "The _ is cold.", "option1": "ice", "option2": "fire", "answer": "1"},
        "A",
    ),
}


GOLD = {"ifeval": "<<On titles>>"}


def scored(kind, reply, answer):
    found = kind.check(reply, answer)
    return asyncio.run(found) if inspect.iscoroutine(found) else found


def test_every_benchmark_has_a_row_here():
    assert ROWS.keys() == BENCHMARKS.keys()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_row_is_read_and_only_the_right_reply_scores(name, write_rows):
    row, answer = ROWS[name]
    one = BENCHMARKS[name]
    path = write_rows(f"{one.split}.jsonl", [row])
    [task] = one.questions(one.split, path, name)
    assert task["id"] == f"{name}/{one.split}/0"
    if name in ("gpqa", "truthfulqa"):  # their options have another order
        assert f"{task['answer']}. {answer}" in task["text"]
    else:
        assert task["answer"] == answer
    gold = GOLD.get(name) or one.kind.says(task["answer"])
    right = scored(one.kind, gold, task["answer"])
    assert right[one.metric] == right["answered"] == 1.0
    for reply in (
        "",
        task["text"],
        "lorem\nipsum",
        "Answer: Z",
        "\\boxed{7}",
        '{"passed": 1}',
    ):
        assert scored(one.kind, reply, task["answer"])[one.metric] == 0.0, reply


def test_a_row_of_another_form_is_named_with_its_columns(write_rows):
    path = write_rows("test.jsonl", [{"text": "?"}])
    with pytest.raises(DatasetUnavailable, match=r"row 0 of .*'question'.*\['text'\]"):
        BENCHMARKS["gsm8k"].questions("test", path, "gsm8k")


def test_an_unknown_benchmark_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match="'gsm8', only aime24.*did you mean gsm8k"):
        choose_benchmark("gsm8")


def test_a_right_answer_may_be_an_index_or_a_letter():
    assert choice("?", ["x", "y"], 1).answer == choice("?", ["x", "y"], "B").answer == "B"
    assert choice("?", ["x", "y"], "0").text == "?\nA. x\nB. y"


def rows_of(name, count):
    question = {"choices": ["40", "42"], "answer": 1}
    return [{"question": f"{i}?", "subject": f"s{i % 2}", **question} for i in range(count)]


async def test_an_evaluation_has_topics_examples_and_pass_at_k(
    make_env, write_rows, evaluated
):
    folder = write_rows("mmlu/test.jsonl", rows_of("mmlu", 4)).rpartition("/")[0]
    write_rows("mmlu/dev.jsonl", rows_of("mmlu", 2))
    asked = []

    def reply(prompt, i):
        asked.append(prompt)
        return "Answer: B" if i % 2 == 0 else "Answer: A"

    settings = {"benchmark": "mmlu", "dataset_path": folder, "shots": 1, "by_topic": True}
    with FakeInference(reply=reply).running() as url:
        env = make_env(benchmarks, url, eval_samples=2, eval_temperature=1.0, **settings)
        metrics, samples = await evaluated(env)
    assert metrics["items"] == 4 and metrics["samples"] == 8 == len(samples)
    assert {"exact/s0", "exact/s1", "exact_pass@2"} <= metrics.keys()
    assert all(CHOICE.says("B") in prompt for prompt in asked)


async def test_serve_trains_on_the_training_split_only(make_env, write_rows):
    folder = write_rows("mmlu/test.jsonl", rows_of("mmlu", 4)).rpartition("/")[0]
    write_rows("mmlu/dev.jsonl", rows_of("mmlu", 2))
    env = make_env(benchmarks, "http://127.0.0.1:9", benchmark="mmlu", dataset_path=folder)
    await env.setup()
    trained = [(await env.get_next_item())["id"] for _ in range(4)]
    named = {name.partition("~")[0] for name in trained}  # of a stream: and a digest
    assert named == {"mmlu/dev/0", "mmlu/dev/1"}
    assert {item["id"].split("/")[1] for item in env.held_out} == {"test"}


@pytest.mark.parametrize(
    ("name", "shots", "told"),
    [("aime24", 2, "no training split"), ("gsm8k", 2, "give a folder"), ("gsm8k", 0, None)],
)
async def test_examples_need_a_training_split(name, shots, told, make_env, write_rows):
    path = write_rows("rows.jsonl", [ROWS[name][0]])
    env = make_env(
        benchmarks, "http://127.0.0.1:9", benchmark=name, dataset_path=path, shots=shots
    )
    if told is None:
        await env.setup()
        return
    with pytest.raises(Exception, match=told) as raised:
        await env.setup()
    assert isinstance(raised.value, ConfigError) or "ConfigError" in repr(raised.value)
