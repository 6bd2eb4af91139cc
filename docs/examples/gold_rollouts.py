"""Gold rollouts of environments as messages, from which a small model learns forms before RL.

    python docs/examples/gold_rollouts.py 32 letters words=2 apart=true sql_queries tables=1 > gold.jsonl
    atropos train sft --model smollm2 --train-file gold.jsonl --save-path runs/forms

The number of rollouts, then names of environments, each with its settings. The tasks are never
held-out ones of a run with the same ``eval_fraction``, at any seed. ``--other`` gives each task the
last reply of another, so that the form of replies is taught, and not what is right.
"""

import asyncio
import json
import sys

from atroposlib.cli.env_files import load
from atroposlib.envs.function_env.card import examples
from atroposlib.envs.function_env.data import load as load_tasks, split_held_out


async def gold_rollouts(
    name: str, settings: dict[str, str], count: int, other: bool
) -> list[str]:
    env_cls = load(name)
    config = env_cls.env_config_cls(**settings, gold_examples=count - 1)
    rows = await load_tasks(env_cls.definition.dataset, config, env=name, split="train")
    trained, _ = split_held_out(rows, config.eval_fraction)
    found = await examples(env_cls, [rows[i] for i in trained], config)
    replies = [one.messages[-1] for one in found]
    if other:
        replies = [*replies[1:], replies[0]]
    return [
        json.dumps({"messages": [*one.messages[:-1], reply]})
        for one, reply in zip(found, replies)
    ]


async def main(count: str, *words: str) -> None:
    settings: dict[str, dict[str, str]] = {}
    for word in words:
        if word == "--other":
            continue
        key, is_setting, value = word.partition("=")
        if is_setting:
            settings[[*settings][-1]][key] = value
        else:
            settings[word] = {}
    for name, given in settings.items():
        print("\n".join(await gold_rollouts(name, given, int(count), "--other" in words)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
