"""Function environments over the fake inference server, made the same way in every test."""

from __future__ import annotations

import json
from collections import Counter

from atroposlib.envs import environment
from atroposlib.envs.base import APIServerConfig
from atroposlib.testing.tiny import ALPHABET, char_tokenizer

SUMS = [{"id": f"{a}+{b}", "a": a, "b": b} for a in range(1, 5) for b in range(1, 5)]


@environment(dataset=SUMS, group_size=2, total_steps=3, max_tokens=8)
async def sums(task, model):
    """Small sums."""
    answer = await model.chat(f"what is {task['a']} + {task['b']}?")
    return answer == str(task["a"] + task["b"])


def made(env_cls, url, tmp_path, alphabet=ALPHABET, **settings):
    """The environment as ``process`` would make it, its groups in groups.jsonl."""
    as_process = {
        "use_wandb": False,
        "data_path_to_save_groups": str(tmp_path / "groups.jsonl"),
        "ensure_scores_are_not_same": False,
    }
    server = APIServerConfig(base_url=url, server_type="vllm", model_name="fake")
    env = env_cls(env_cls.env_config_cls(**{**as_process, **settings}), [server])
    env.tokenizer = char_tokenizer(alphabet)
    return env


def groups_in(tmp_path):
    lines = (tmp_path / "groups.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def right_half_of_the_time(prompt, index, seen=Counter()):
    """The requested sum in every second sample, else "no"."""
    a, b = prompt.split("what is ")[1].split("?")[0].split(" + ")
    seen[prompt] += 1
    return str(int(a) + int(b)) if seen[prompt] % 2 else "no"
