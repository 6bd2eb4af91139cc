"""Benchmarks: known test sets with their own checkers, measured on any server.

    python environments/benchmarks.py evaluate --env.benchmark gsm8k
    python environments/benchmarks.py evaluate --env.benchmark arc --env.dataset_path arc.jsonl
    python environments/benchmarks.py evaluate --env.benchmark aime24 \\
        --env.eval_samples 16 --env.eval_temperature 0.6

A benchmark is a row of ``BENCHMARKS``: data, reader of a row, checker. Prompts are chats, with
``shots`` worked examples where there is a training split. Means have standard errors; several
samples of a question give pass@k; replies are in the transcripts. ``serve`` trains on the
training split, never on the test split.
"""

import asyncio
import itertools
import random
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import Field

from atroposlib.environments.common.judge import JUDGE, judge_reply, judging
from atroposlib.environments.common.question_kinds import CHOICE, FORM, FORMULA, WORDS, Kind
from atroposlib.envs import Reward, environment
from atroposlib.errors import ConfigError, DatasetUnavailable
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.datasets import load_rows

Row = Mapping[str, Any]


class Question(NamedTuple):
    """A question; ``answer`` is a letter, a formula, accepted texts, or instructions."""

    text: str
    answer: Any
    topic: str = ""


# --- rows ---------------------------------------------------------------------------------


def choice(question: str, options: list[str], right: Any, topic: str = "") -> Question:
    """Lettered options; ``right`` is an index from 0, as a number or as digits, or a letter."""
    letters = string.ascii_uppercase[: len(options)]
    label = str(right).strip()
    answer = letters[int(label)] if label.isdigit() else label
    lines = [f"{letter}. {option}" for letter, option in zip(letters, options, strict=True)]
    return Question("\n".join([question.strip(), *lines]), answer, topic)


def shuffle_choices(question: str, right: str, wrong: list[str], topic: str = "") -> Question:
    """Options in an order that depends on the question alone."""
    options = [right, *wrong]
    random.Random(question).shuffle(options)
    return choice(question, options, options.index(right), topic)


def labelled_question(row: Row, text: str = "question") -> Question:
    """Rows with ``choices`` of label and text, and ``answerKey``."""
    options = row["choices"]
    return choice(row[text], options["text"], list(options["label"]).index(row["answerKey"]))


def yes_or_no(row: Row) -> Question:
    return choice(f"{row['passage']}\n\n{row['question']}?", ["no", "yes"], int(row["answer"]))


def truthful(row: Row) -> Question:
    targets = row["mc1_targets"]
    options, labels = list(targets["choices"]), list(targets["labels"])
    right = options.pop(labels.index(1))
    return shuffle_choices(row["question"], right, options)


def gpqa(row: Row) -> Question:
    wrong = [row[f"Incorrect Answer {n}"] for n in (1, 2, 3)]
    topic = row.get("High-level domain") or ""
    return shuffle_choices(row["Question"], row["Correct Answer"], wrong, topic)


def blank(row: Row) -> Question:
    text = f"Which option belongs in place of the underscore?\n{row['sentence']}"
    return choice(text, [row["option1"], row["option2"]], int(row["answer"]) - 1)


def social(row: Row) -> Question:
    options = [row[f"answer{letter}"] for letter in "ABC"]
    return choice(f"{row['context']} {row['question']}", options, int(row["label"]) - 1)


def grade_school(row: Row) -> Question:
    return Question(row["question"], row["answer"].rpartition("####")[2].strip())


def passage(row: Row, golds: list[str]) -> Question:
    text = row.get("passage") or row.get("context")
    return Question(f"{text}\n\n{row['question']}", list(dict.fromkeys(golds)))


def formula(text: str = "problem", answer: str = "answer", topic: str = "") -> Callable:
    return lambda row: Question(row[text], str(row[answer]), row[topic] if topic else "")


# --- the table ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Benchmark:
    """A test set. ``metric`` is the score; ``train`` the split of examples; empty: none."""

    source: str  # on the hub: owner/name, or owner/name:subset
    split: str
    kind: Kind
    read: Callable[[Row], Question]
    train: str = ""
    metric: str = "exact"

    def questions(self, split: str, path: str | None, name: str) -> list[dict[str, Any]]:
        """Tasks {"id", "text", "answer", "topic"}. Raises DatasetUnavailable."""
        source, _, subset = self.source.partition(":")
        rows = load_rows(source, split, path=path, subset=subset or None)
        tasks = []
        for i, row in enumerate(rows):
            try:
                question = self.read(row)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                what = f"{name}: row {i} of {path or source} ({split}) is not read"
                raise DatasetUnavailable(f"{what}: {error!r}; it has {sorted(row)}") from error
            tasks.append({"id": f"{name}/{split}/{i}", **question._asdict()})
        return tasks


def ifeval(row: Row) -> Question:
    """Absent arguments are None on the hub."""
    values = [{k: v for k, v in kwargs.items() if v is not None} for kwargs in row["kwargs"]]
    return Question(row["prompt"], list(zip(row["instruction_id_list"], values, strict=True)))


def mmlu(options: str, topic: str) -> Callable:
    return lambda row: choice(row["question"], list(row[options]), row["answer"], row[topic])


BENCHMARKS = {
    "aime24": Benchmark("HuggingFaceH4/aime_2024", "train", FORMULA, formula()),
    "aime25": Benchmark("math-ai/aime25", "test", FORMULA, formula()),
    "amc23": Benchmark("math-ai/amc23", "test", FORMULA, formula("question")),
    "arc": Benchmark(
        "allenai/ai2_arc:ARC-Challenge", "test", CHOICE, labelled_question, "train"
    ),
    "arc_easy": Benchmark(
        "allenai/ai2_arc:ARC-Easy", "test", CHOICE, labelled_question, "train"
    ),
    "boolq": Benchmark("google/boolq", "validation", CHOICE, yes_or_no, "train"),
    "commonsense_qa": Benchmark(
        "tau/commonsense_qa", "validation", CHOICE, labelled_question, "train"
    ),
    "drop": Benchmark(
        "ucinlp/drop",
        "validation",
        WORDS,
        lambda row: passage(row, row["answers_spans"]["spans"]),
        "train",
        metric="f1",
    ),
    "gpqa": Benchmark("Idavidrein/gpqa:gpqa_diamond", "train", CHOICE, gpqa),
    "gsm8k": Benchmark("openai/gsm8k:main", "test", FORMULA, grade_school, "train"),
    "hellaswag": Benchmark(
        "Rowan/hellaswag",
        "validation",
        CHOICE,
        lambda row: choice(
            f"How does this go on?\n{row['ctx']}", list(row["endings"]), row["label"]
        ),
        "train",
    ),
    "ifeval": Benchmark("google/IFEval", "train", FORM, ifeval),
    "math500": Benchmark("HuggingFaceH4/MATH-500", "test", FORMULA, formula(topic="subject")),
    "mmlu": Benchmark("cais/mmlu:all", "test", CHOICE, mmlu("choices", "subject"), "dev"),
    "mmlu_pro": Benchmark(
        "TIGER-Lab/MMLU-Pro", "test", CHOICE, mmlu("options", "category"), "validation"
    ),
    "openbookqa": Benchmark(
        "allenai/openbookqa:main",
        "test",
        CHOICE,
        lambda row: labelled_question(row, "question_stem"),
        "train",
    ),
    "piqa": Benchmark(
        "ybisk/piqa",
        "validation",
        CHOICE,
        lambda row: choice(row["goal"], [row["sol1"], row["sol2"]], row["label"]),
        "train",
    ),
    "pubmedqa": Benchmark(
        "qiaojin/PubMedQA:pqa_labeled",
        "train",
        CHOICE,
        lambda row: choice(
            "\n".join([*row["context"]["contexts"], row["question"]]),
            ["yes", "no", "maybe"],
            ["yes", "no", "maybe"].index(row["final_decision"]),
        ),
    ),
    "race": Benchmark(
        "ehovy/race:high",
        "test",
        CHOICE,
        lambda row: choice(
            f"{row['article']}\n\n{row['question']}", list(row["options"]), row["answer"]
        ),
        "train",
    ),
    "simpleqa": Benchmark(
        "basicv8vc/SimpleQA",
        "test",
        WORDS,
        lambda row: Question(row["problem"], [row["answer"]]),
        metric="contains",
    ),
    "social_iqa": Benchmark("allenai/social_i_qa", "validation", CHOICE, social, "train"),
    "squad": Benchmark(
        "rajpurkar/squad",
        "validation",
        WORDS,
        lambda row: passage(row, row["answers"]["text"]),
        "train",
        metric="f1",
    ),
    "triviaqa": Benchmark(
        "mandarjoshi/trivia_qa:rc.nocontext",
        "validation",
        WORDS,
        lambda row: Question(
            row["question"], [row["answer"]["value"], *row["answer"]["aliases"]]
        ),
        "train",
    ),
    "truthfulqa": Benchmark(
        "truthfulqa/truthful_qa:multiple_choice", "validation", CHOICE, truthful
    ),
    "winogrande": Benchmark(
        "allenai/winogrande:winogrande_xl", "validation", CHOICE, blank, "train"
    ),
}


# --- the environment ----------------------------------------------------------------------


def choose_benchmark(name: str) -> Benchmark:
    if name not in BENCHMARKS:
        known = f"{', '.join(BENCHMARKS)}{did_you_mean(name, BENCHMARKS)}"
        raise ConfigError(f"no benchmark {name!r}, only {known}")
    return BENCHMARKS[name]


async def tested_questions(config) -> list[dict[str, Any]]:
    """The test split, each question with its ``shots`` examples."""
    benchmark, name, path = (
        choose_benchmark(config.benchmark),
        config.benchmark,
        config.dataset_path,
    )
    tasks = await asyncio.to_thread(benchmark.questions, benchmark.split, path, name)
    if not config.shots:
        return tasks
    examples = await asyncio.to_thread(examples_of, benchmark, config)
    drawn = random.Random(config.seed).sample(examples, config.shots)
    return [{**task, "shots": drawn} for task in tasks]


def examples_of(benchmark: Benchmark, config) -> list[dict[str, Any]]:
    """Questions of the training split. Raises ConfigError: too few, or there is none."""
    name = config.benchmark
    if not benchmark.train:
        raise ConfigError(f"{name} has no training split: evaluate it, with --env.shots 0")
    if config.dataset_path and config.dataset_path.endswith((".json", ".jsonl", ".parquet")):
        raise ConfigError(
            f"--env.dataset_path is one file, read as {benchmark.split}: give a folder that "
            f"has {benchmark.train}.jsonl too"
        )
    questions = benchmark.questions(benchmark.train, config.dataset_path, name)
    if len(questions) < config.shots:
        raise ConfigError(f"--env.shots {config.shots}: {name} has {len(questions)} examples")
    return questions


def training_questions(config) -> Iterator[dict[str, Any]]:
    """Questions of the training split, in a new order in every pass; read at the first question."""
    examples = examples_of(choose_benchmark(config.benchmark), config)
    for epoch in itertools.count():
        yield from random.Random(f"{config.seed}/{epoch}").sample(examples, len(examples))


def prompt(task: Row, kind: Kind, think: bool) -> list[dict[str, str]]:
    """Messages: the examples with their answers, then the question."""
    ask = f"{'Think step by step. ' if think and kind.ask else ''}{kind.ask}"
    messages = []
    for example in task.get("shots", ()):
        messages.append({"role": "user", "content": f"{example['text']}\n\n{kind.ask}"})
        messages.append({"role": "assistant", "content": kind.says(example["answer"])})
    return [*messages, {"role": "user", "content": f"{task['text']}\n\n{ask}".rstrip()}]


@environment(
    training_questions,
    eval_dataset=tested_questions,
    settings={
        "benchmark": Field(default="gsm8k", description=f"one of {', '.join(BENCHMARKS)}"),
        "dataset_path": (
            str | None,
            Field(default=None, description="local file or folder instead of the hub"),
        ),
        "shots": Field(default=0, ge=0, description="worked examples before the question"),
        "think": Field(default=True, description="ask for steps before the answer"),
        "by_topic": Field(default=False, description="also the score of each topic"),
        **JUDGE,
    },
    lifespan=judging,
    max_tokens=1024,
)
async def benchmarks(task, model, config, resources):
    """Known benchmarks, measured with standard errors; ``--env.benchmark`` names the benchmark."""
    benchmark = choose_benchmark(config.benchmark)
    reply, gold = await model.chat(prompt(task, benchmark.kind, config.think)), task["answer"]
    # ``contains`` replaces a judge
    if resources is not None and benchmark.metric == "contains":
        verdict = judge_reply(
            resources, config, task["text"], gold[0], str(reply), model.split
        )
    else:
        verdict = benchmark.kind.check(str(reply), gold)
    numbers = await verdict if asyncio.iscoroutine(verdict) else verdict
    if numbers is None:
        return None
    metric = "correct" if "correct" in numbers else benchmark.metric
    if config.by_topic and task["topic"]:
        numbers[f"{metric}/{task['topic']}"] = numbers[metric]
    return Reward(numbers[metric], numbers)


if __name__ == "__main__":
    benchmarks.cli()
