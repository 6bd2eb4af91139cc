"""Folders of runs as launchers leave them, with small numbers that are easy to check."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atroposlib.api.archive.index import Index
from atroposlib.api.store.sqlite import DATABASE
from tests.api.archive.rollouts import group, row

SOURCE = {"package": "", "version": "", "digest": "sha256:0123456789abcdef"}


def make_run(
    folder: Path,
    rewards: Sequence[float] = (0.0, 0.5, 1.0),
    *,
    lr: float = 0.01,
    seed: int = 0,
    state: str = "done",
    tokens: int = 100,
    heldout: Mapping[str, float] | None = None,
    items: Mapping[str, Sequence[float]] | None = None,
    env: str = "e",
    data: str = "queue",
) -> Path:
    """Write a run of a step per reward, with held-out rewards and rollouts by task."""
    (folder / "launch").mkdir(parents=True)
    write_settings(folder, lr, seed)
    outcome = {"state": state, "steps": len(rewards), "code": "1.0 sha256:aaaaaaaaaaaa"}
    (folder / "launch/outcome.json").write_text(json.dumps(outcome))
    lines = [step_line(no, reward, tokens) for no, reward in enumerate(rewards, 1)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    if heldout is not None:
        write_check(folder, len(rewards), heldout)
    if items is not None:
        write_index(folder / data / "archive/index.sqlite", items, env)
    return folder


def step_line(no: int, reward: float, tokens: int) -> str:
    facts: dict[str, Any] = {"step": no, "run_id": "r", "reward_mean": reward, "keys": ["k"]}
    facts |= {"completion_tokens": tokens, "seconds_train": 1.5, "seconds_wait": 0.5}
    return json.dumps(facts) + "\n"


def write_settings(folder: Path, lr: float, seed: int) -> None:
    trainer = {"model_name": f"{folder}/start", "lr": lr, "seed": seed}
    env = {"env": {"seed": seed, "group_size": 4}, "openai": {"api_key": f"secret{lr}"}}
    for name, values in (("trainer", trainer), ("environment-0", env)):
        (folder / f"launch/{name}.yaml").write_text(json.dumps(values, indent=2))


def write_check(folder: Path, step: int, rewards: Mapping[str, float]) -> None:
    """Write a held-out check with an answer per task."""
    check = folder / f"heldout/step-{step}"
    check.mkdir(parents=True)
    results = {"all": {"eval/reward": sum(rewards.values()) / len(rewards)}}
    about = {"eval_step": step, "eval_policy_version": step}
    document = {"config_general": about, "results": results}
    (check / "metrics.json").write_text(json.dumps(document))
    lines = [
        {"id": task, "prompt": f"say {task}", "completion": f"{task}!", "reward": reward}
        for task, reward in rewards.items()
    ]
    (check / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_index(path: Path, items: Mapping[str, Sequence[float]], env: str = "e") -> None:
    index = Index(path)
    (path.parents[1] / DATABASE).touch()  # the sign of a data directory
    groups = [
        group(gid, [row(reward) for reward in rewards], env=env, item=item)
        for gid, (item, rewards) in enumerate(items.items(), 1)
    ]
    index.write(groups)
    index.set_value("run", json.dumps({"run_id": "r", "sources": {env: SOURCE}}))
    index.close()
