"""Environments by name, with rows and replies for those that make no tasks themselves.

An environment that is not in ``CASES`` runs without data, and has a card with gold replies
(tests/environments/test_library.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from atroposlib.cli.env_files import Listed, list_environments, load
from atroposlib.validation import probes

GROUP = 2
REQUIRED = "ATROPOS_ADAPTER_TESTS"
PACKAGES = {
    "gymnasium": "gymnasium",
    "reasoning_gym": "reasoning_gym",
    "tau2": "tau2",
    "textworld": "textworld",
    "chess_game": "chess",
    "workspace": "mcp",
}

CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
OTHER_CALL = CALL.replace("Rome", "Oslo")
WEATHER = {
    "name": "weather",
    "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CHAT = [
    {"from": "system", "value": f"Tools are there: {json.dumps([WEATHER])}"},
    {"from": "human", "value": "Weather in Rome?"},
    {"from": "gpt", "value": CALL},
]
TALKS = [{"conversations": CHAT, "tools": json.dumps([WEATHER])}] * 8
SCENE = [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}]
# One answer for all rows, so that the gold reply of one is that of all.
SUMS = [{"question": f"What is {i} - {i} + 2?", "answer": "Add.\n#### 2"} for i in range(8)]
DEEPMATH = [{"question": "What is 1 + 1?", "final_answer": "2", "difficulty": 1.0}] * 8
SKY = {"question": "Sky?", "choices": ["red", "blue"], "subject": "m", "answer": 1}
BFCL = [
    {
        "id": f"simple_python_{i}",
        "question": [[{"role": "user", "content": f"{i}: the weather in Rome?"}]],
        "function": [WEATHER],
        "ground_truth": [{"weather": {"city": ["Rome"]}}],
    }
    for i in range(8)
]

ADVERSARIAL = {
    **probes.NOTHING,
    **probes.GARBAGE,
    "a verdict": probes.VERDICTS["both"],
    "surrogates": "<answer>\ud800\x00</answer> ```python\n\ud800\x00\n``` ```sql\n\x00\n```",
}


@dataclass(frozen=True)
class Case:
    """Rows by file (one file: the file itself is the data), flags, and replies with scores."""

    files: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)
    metric: str = "percent_correct"  # one that evaluate writes
    gold: Callable[[str], str] | None = None  # of a prompt; None: nothing is sampled
    best: float = 1.0  # score of gold replies
    floor: float = 0.0  # most that other replies get
    wrong: tuple[str, ...] = ()  # replies that are nearly right
    scored: dict[str, str] = field(default_factory=dict)  # settings where replies are given


def last_user(prompt: str) -> str:
    return prompt.rpartition("<|user|>")[2].partition("<|end|>")[0]


def solved_sum(prompt: str) -> str:
    words = last_user(prompt).replace("?", "").replace("=", "").split()
    start = next(i for i, word in enumerate(words) if word.lstrip("-").isdigit())
    numbers = words[start::2]
    signs = [-1 if sign == "-" else 1 for sign in ["+", *words[start + 1 :: 2]]]
    return str(sum(sign * int(number) for sign, number in zip(signs, numbers)))


def way_over_the_lake(prompt: str) -> str:
    moves = ("down", "down", "right", "down", "right", "right")
    return f"<action>{moves[prompt.count('<|assistant|>') - 1]}</action>"


def boxed(number: int) -> str:
    return f"Let me see. \\boxed{{{number}}}"


def opinion(prompt: str) -> str:
    """The calm reply; as a judge a verdict for it."""
    if "[Answer A]" not in prompt:
        return "be calm, all is well"
    first = prompt[prompt.index("[Answer A]") : prompt.index("[Answer B]")]
    return "Verdict: A" if "calm" in first else "Verdict: B"


GSM8K = {"gold": lambda prompt: boxed(2), "floor": -1.0, "wrong": (boxed(3), "It is 2, or 3.")}
TOOLS = {"gold": lambda prompt: CALL, "wrong": (OTHER_CALL, CALL * 2)}
# One right call of two is half a turn: 0.5 less the penalty.
REPLAY = {**TOOLS, "best": 1.5, "floor": 0.3, "metric": "turns_right"}
CASES = {
    "arithmetic": Case(metric="exact", gold=solved_sum, floor=0.3),
    "benchmarks": Case(
        {"test.jsonl": [SKY] * 8, "dev.jsonl": [SKY] * 8},
        {"env.benchmark": "mmlu"},
        "exact",
        gold=lambda prompt: "Answer: B",
        wrong=("Answer: A", "Answer: A or B"),
    ),
    "bfcl": Case(
        {
            "BFCL_v4_simple_python.json": BFCL,
            "possible_answer/BFCL_v4_simple_python.json": BFCL,
        },
        {"env.categories": '["simple_python"]'},
        "reward",
        **TOOLS,
    ),
    # A wrong letter of the alphabet gets a tenth, and one may be in its place by chance.
    "copy": Case(metric="exact", gold=last_user, floor=0.55),
    "copy_agent": Case(metric="exact", gold=last_user, floor=0.55),
    "dataset_environment": Case(
        {"rows.jsonl": [{"question": f"{i} - {i} + 2?", "answer": "2"} for i in range(40)]},
        {"env.prompt_field": "question", "env.reward_functions": '["accuracy"]'},
        "accuracy",
        gold=lambda prompt: boxed(2),
        wrong=(boxed(3),),
    ),
    "gsm8k": Case({"train.jsonl": SUMS, "test.jsonl": SUMS}, **GSM8K),
    "gsm8k_server_teacher_distill": Case(
        {"train.jsonl": SUMS, "test.jsonl": SUMS}, {"env.teacher_top_k": "2"}, **GSM8K
    ),
    "gymnasium": Case(
        flags={"env.env_kwargs": '{"is_slippery": false}'},
        metric="illegal",
        gold=way_over_the_lake,
        best=0.99**5,
        floor=-1.0,
        wrong=("<action>jump</action>", "down"),
    ),
    "math_server_zero": Case(
        {"train.jsonl": DEEPMATH, "aime24.jsonl": [{"problem": "1?", "answer": "1"}] * 4},
        {"env.start_tok_length": "640", "env.eval_sets": '["aime24"]'},
        "aime24_percent_correct",
        gold=lambda prompt: "so</think> <answer>\\boxed{2}</answer>",
        floor=-1.0,
        wrong=("so</think> \\boxed{2}", "so</think> <answer>\\boxed{3}</answer>"),
    ),
    "mcqa_thinking": Case(
        {"rows.jsonl": [SKY] * 8},
        gold=lambda prompt: "<think>hm</think> The answer is B",
        floor=-1.0,
        wrong=("<think>hm</think> The answer is A", "The answer is B"),
    ),
    "reasoning_gym": Case(
        flags={"env.examples": "0", "env.max_tokens": "16"},
        metric="exact",
        gold=solved_sum,
        floor=0.5,  # the package gives an answer inside of a text a part
    ),
    "rlaif": Case(
        {"rows.jsonl": [{"conversation": SCENE, "model": "m"}] * 16},
        # Too few tokens for a random model to finish a verdict.
        {"env.max_reply_tokens": "2", "env.judge_max_tokens": "8"},
        "questions",
        gold=opinion,
        scored={"max_reply_tokens": "200", "judge_max_tokens": "99"},
        best=0.5,
        floor=-0.5,
    ),
    "sft_loader": Case(
        {"rows.jsonl": [{"text": "two words"}] * 4}, {"env.group_size": "1"}, "trained_share"
    ),
    "tau2": Case(flags={"env.domain": "mock"}, metric="reward"),  # the shortest prompts
    "tool_calling": Case({"rows.jsonl": TALKS}, **TOOLS),
    "tool_use_multiturn": Case({"rows.jsonl": TALKS}, **REPLAY),
    "tool_use_turnlevel_advantage": Case({"rows.jsonl": TALKS}, **REPLAY),
}
ENVIRONMENTS = {
    one.name: one
    for one in list_environments()
    if one.module.startswith("atroposlib.environments.")
}
MOST_TOKENS = ("max_tokens", "max_new_tokens", "max_turn_tokens")  # of a reply
# Of each environment that has such a setting: few tasks, no other program.
SMALL = {
    "max_token_length": "4000",
    "tasks": "60",
    "describe_tools": "true",  # the template of the tiny model has none
    "sandbox": "none",  # bubblewrap has separate tests
    **dict.fromkeys(
        ("eval_items", "eval_problems", "eval_questions", "eval_requests", "held_out_words"),
        "4",
    ),
    "eval_conversations": "4",
    "eval_fraction": "0.5",
}


@cache
def env_cls_of(name: str) -> Any:
    """Class of an environment; ``load`` reads all files to find it by its name."""
    return load(name)


def fields(name: str) -> dict[str, Any]:
    """Settings of an environment by name."""
    return dict(env_cls_of(name).env_config_cls.model_fields)


def missing(name: str) -> str:
    """Why an environment cannot run here; empty where it can."""
    if name == "pictures":
        return "the local server reads text only: test_pictures.py"
    package = PACKAGES.get(name)
    if package is None or find_spec(package) or os.environ.get(REQUIRED) == "1":
        return ""
    return f"the package {package} is missing: make adapters"


def settings_of(name: str, folder: Path, reply_tokens: int) -> dict[str, str]:
    """Flags of a run of an environment, with its rows written into ``folder``."""
    case, known = CASES.get(name, Case()), fields(name)
    small = SMALL | dict.fromkeys(MOST_TOKENS, str(reply_tokens))
    flags = {f"env.{key}": value for key, value in small.items() if key in known}
    if not known.keys() & set(MOST_TOKENS):
        flags["env.max_token_length"] = "640"  # a reply may have all of it
    flags |= {"env.use_wandb": "false", "env.group_size": str(GROUP)}
    for file, rows in case.files.items():
        path = folder / "data" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        flags["env.dataset_path"] = str(path if len(case.files) == 1 else folder / "data")
    return {**flags, **case.flags}


def module_file(one: Listed) -> str:
    """Path of an environment below the root of the repository."""
    return one.module.removeprefix("atroposlib.").replace(".", "/") + ".py"
