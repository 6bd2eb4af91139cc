"""Stored rollouts of a run scored again by the environment as it is now, without any model.

    RUN:17 -> rows of the group -> replies of each agent -> the environment -> old and new reward

The environment runs as in training, and gets the stored replies in place of samples. A prompt
that has changed since changes no reply.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from atroposlib.api.archive.filters import envs_called
from atroposlib.api.archive.load import place
from atroposlib.api.archive.rollout_blocks import RunRollouts
from atroposlib.api.archive.row_texts import stored_payloads
from atroposlib.api.store.sqlite.segment_payloads import OpenPayloads
from atroposlib.envs.cli import read_settings
from atroposlib.envs.function_env.rewards import Reward
from atroposlib.envs.rollout.groups import item_label
from atroposlib.envs.runtime.env_runtime import name_of, runtime_of
from atroposlib.errors import AtroposError, ConfigError, boundary
from atroposlib.utils.command.logs import printable
from atroposlib.utils.tokenizers.loading import local_tokenizer
from atroposlib.validation.classes import items_of
from atroposlib.validation.judges import JudgeCalls, policy_addresses
from atroposlib.validation.sessions import RecordingSession
from atroposlib.validation.subject import Subject, create_environment
from atroposlib.wire.binary import unpack_columns
from atroposlib.wire.group_arrays import Columns

# Of function environments: item@epoch/endpoint#row
GROUP_ID = re.compile(r"(?P<item>.*)@(?P<epoch>\d+)(?:/(?P<agent>[^#]*))?(?:#(?P<row>\d+))?")
FIND_S = 30.0  # limit of the search of tasks
MOST_TASKS = 100_000
OTHER_CALLS = (
    "{} of {} rollouts no longer make the calls that they made then: the environment now ends them\n"
    "earlier (replies are left) or later (an empty reply stands for each that is missing), because a\n"
    "turn, a tool, a parser or a condition of the end changed. Their new reward is not that of the\n"
    "stored text: undo that change to compare the reward alone, or sample them anew"
)
ROWS = "SELECT gid, row, item, group_id, reward, env FROM rollout"


@dataclass
class StoredRollout:
    """Replies and rewards of a rollout by the name of the agent; "" is the model itself."""

    group: str
    row: int
    item: str
    replies: dict[str, list[str]] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)


# --- what is stored -------------------------------------------------------------------


def stored_rollouts(target: str, most_groups: int, env: str = "") -> list[StoredRollout]:
    """The rollouts of RUN:GROUP, RUN:ITEM or, of RUN, of its newest groups.

    Where the run has several environments, the newest groups and an item belong to ``env``.

    Raises ConfigError: there is no environment, group or item of this name, or the replies are not kept.
    """
    run, _, wanted = target.rpartition(":")
    if not run or Path(target).exists():
        run, wanted = target, ""
    rollouts = RunRollouts(Path(place(run)), None, {}, text=True)
    rows = _chosen_rows(rollouts, wanted, most_groups, env)
    stored: dict[tuple[str | None, str, int], StoredRollout] = {}
    with closing(OpenPayloads(rollouts.database)) as payloads:
        groups = stored_payloads(rollouts.index, payloads, [gid for gid, *_ in rows])
        columns_of = {gid: unpack_columns(data) for gid, data in groups.items()}
    for gid, row, item, group_id, reward, label in rows:
        if gid not in columns_of:
            continue
        about = GROUP_ID.fullmatch(group_id or "")
        agent = (about["agent"] if about else None) or ""
        name = f"{about['item']}@{about['epoch']}" if about else f"group {gid}"
        task = item or (about["item"] if about else "")
        rollout = stored.setdefault((label, name, row), StoredRollout(name, row, task))
        replies = replies_of(columns_of[gid], row, rollouts.tokenizer)
        rollout.replies.setdefault(agent, []).extend(replies)
        rollout.replies.update(untrained_replies(columns_of[gid], row))
        if reward is not None:
            rollout.rewards.setdefault(agent, reward)
    if not stored:
        raise ConfigError(f"{target}: the replies are not kept any more")
    return list(stored.values())


def labels_of(env: str, labels: Sequence[str]) -> list[str]:
    """The labels in a run that belong to an environment: all, if the run has a single label.

    Raises ConfigError: the run has several environments, and none of this name.
    """
    own = envs_called(env, labels)
    if not own and len(labels) > 1:
        raise ConfigError(
            f"this run has rollouts of {', '.join(sorted(labels))}, and none of {env}: name a"
            " group (RUN:GROUP), which atropos view lists"
        )
    return own or [*labels]


def _chosen_rows(rollouts: RunRollouts, wanted: str, most_groups: int, env: str) -> list[Any]:
    """Rows of the group or item and, of a rollout with several agents, of all agents."""
    read = rollouts.index.read
    gid = int(wanted) if re.fullmatch(r"-?\d{1,18}", wanted) else 0
    rows = read(f"{ROWS} WHERE gid = ?", (gid,)) if gid else []
    if not rows:
        labels = [label or "" for (label,) in read("SELECT DISTINCT env FROM rollout", ())]
        own = labels_of(env, labels)
        is_own = f"ifnull(env, '') IN ({', '.join('?' * len(own))})"
        if wanted:
            condition = "item = ? OR (group_id >= ? || '@' AND group_id < ? || 'A')"
            rows = read(f"{ROWS} WHERE {is_own} AND ({condition})", (*own, *[wanted] * 3))
        else:
            sql = f"SELECT DISTINCT gid FROM rollout WHERE gid > 0 AND {is_own}"
            newest = read(f"{sql} ORDER BY gid DESC LIMIT ?", (*own, most_groups))
            rows = [row for (gid,) in newest for row in read(f"{ROWS} WHERE gid = ?", (gid,))]
    if not rows:
        raise ConfigError(
            f"no group and no item {wanted!r} is in this run: atropos view lists them"
        )
    # Environments over the same tasks have the same ids.
    names = {
        (f"{about['item']}@{about['epoch']}", label)
        for *_, group_id, _, label in rows
        if (about := GROUP_ID.fullmatch(group_id or ""))
    }
    for name, label in names:
        for end in ("/", "#"):
            sql = (
                f"{ROWS} WHERE group_id > ?1 AND group_id < ?1 || char(0x10ffff) AND env IS ?2"
            )
            rows += read(sql, (name + end, label))
        rows += read(f"{ROWS} WHERE group_id = ? AND env IS ?", (name, label))
    return sorted(set(rows), key=lambda row: (row[0], row[1]))


def replies_of(columns: Columns, row: int, tokenizer: str | None) -> list[str]:
    """The sampled replies of a row, oldest first.

    Raises ConfigError: no messages are kept, and the tokenizer is not here.
    """
    end = int(columns.seq_lens[: row + 1].sum())
    start = end - int(columns.seq_lens[row])
    trained = np.concatenate([[False], columns.trained[start:end], [False]])
    edges = np.flatnonzero(trained[1:] != trained[:-1]).reshape(-1, 2)
    messages = columns.rest_value("messages")
    replies = [m for m in (messages[row] if messages else ()) if m["role"] == "assistant"]
    if 0 < len(edges) <= len(replies):
        return [reply_text(message) for message in replies[-len(edges) :]]
    if not len(edges):
        return []
    decoder = None if tokenizer is None else local_tokenizer(tokenizer)
    if decoder is None:
        raise ConfigError(
            f"no messages were kept, and the tokenizer {tokenizer} of the run is not on this machine"
        )
    own = columns.tokens[start:end].tolist()
    return [decoder.decode(own[a:b], skip_special_tokens=True) for a, b in edges.tolist()]


def untrained_replies(columns: Columns, row: int) -> dict[str, list[str]]:
    """Replies of the untrained endpoints of a rollout, by name; groups of earlier versions: none."""
    rollouts = (columns.rest_value("metadata") or {}).get("untrained") or []
    by_name = rollouts[row] if row < len(rollouts) else {}
    return {
        name: [reply_text(reply) for reply in replies] for name, replies in by_name.items()
    }


def reply_text(message: Mapping[str, Any]) -> str:
    """A reply as text, its calls of tools in the format of hermes, which scripted replies have."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) and content else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, str):
            try:
                arguments = orjson.loads(arguments)
            except ValueError:
                pass  # a malformed call stays as it was sampled
        body = orjson.dumps({"name": function["name"], "arguments": arguments}).decode()
        parts.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join(parts)


# --- the environment as it is now -----------------------------------------------------


def replay(
    env_cls: Any, words: Sequence[str], target: str, most_groups: int, calls: JudgeCalls
) -> None:
    """Print the old and the new reward of each stored sample.

    Args:
        calls: counts calls of other models, and none of agents, which get stored replies.

    Raises:
        ConfigError: the rollouts or their tasks are not there.
        AtroposError: the environment failed on every sample.
    """
    stored = stored_rollouts(target, most_groups, name_of(env_cls) or "")
    settings = read_settings(env_cls, ["process", "--env.use_wandb", "false", *words])
    asyncio.run(_replay(env_cls, settings, stored, calls))


async def _replay(
    env_cls: Any, settings: Any, stored: Sequence[StoredRollout], calls: JudgeCalls
) -> None:
    subject = await create_environment(env_cls, settings)
    env = subject.env
    calls.leave_out(partial(policy_addresses, env))
    pairs: list[tuple[float, float]] = []
    errors: list[AtroposError] = []
    notes: list[str] = []
    try:
        with boundary(runtime_of(env).label(), None, "setup"):
            await env.setup()
        items = await _items(subject, {rollout.item for rollout in stored})
        for rollout in stored:
            title = f"{printable(rollout.group)} sample {rollout.row}"
            try:
                reward, note = await _play(subject, items[rollout.item], rollout)
            except AtroposError as error:
                errors.append(error)
                print(f"{title}: fails: {printable(str(error))}")
                continue
            notes += [note] if note else []
            for agent, (old, new) in _rewards(rollout, reward).items():
                who = f" {printable(agent)}" if agent else ""
                print(
                    f"{title}{who}: {_text_of(old)} -> {_text_of(new)}{note if not who else ''}"
                )
                if old is not None and new is not None:
                    pairs.append((old, new))
    finally:
        await runtime_of(env).close()
    if pairs:
        old, new = (statistics.fmean(values) for values in zip(*pairs))
        changed = sum(abs(a - b) > 1e-9 for a, b in pairs)
        print(f"mean {old:.4g} -> {new:.4g}; {changed} of {len(pairs)} rewards changed")
    if notes:
        print(OTHER_CALLS.format(len(notes), len(stored)))
    if errors and len(errors) == len(stored):
        raise errors[0]


async def _items(subject: Subject, wanted: set[str]) -> dict[str, Any]:
    """Tasks by id. Raises ConfigError: a task is not in the data set."""
    tasks: dict[str, Any] = {}
    end = time.monotonic() + FIND_S
    if subject.of_class:
        items = await items_of(subject.env)
        tasks = {item_label(item["task"]): item for item in items}
    else:
        tasks = {item["id"]: item for item in subject.env.held_out if item["id"] in wanted}
        for _ in range(MOST_TASKS):
            if wanted <= tasks.keys() or time.monotonic() > end:
                break
            item = await subject.env.get_next_item()
            if item is None or item["epoch"] > 0:
                break
            if item["id"] in wanted:
                tasks[item["id"]] = item
    if missing := wanted - tasks.keys():
        raise ConfigError(
            f"task {min(missing)!r} of the run is not in the data set: give the settings of the run, "
            "such as its --config or --env.seed"
        )
    return tasks


async def _play(subject: Subject, item: Any, rollout: StoredRollout) -> tuple[Reward, str]:
    """The new reward, and a note where the replies do not fit the calls."""
    sessions = {name: RecordingSession(replies) for name, replies in rollout.replies.items()}
    own = sessions.setdefault("", RecordingSession([]))

    def of_agent(name: str) -> RecordingSession:
        if name not in sessions:
            raise ConfigError(
                f"no replies of the agent {name!r} are stored: the environment had no agent of this"
                " name then, or the run is of a version that kept no replies of untrained agents."
                " atropos data rescore takes another reward of the answers without its agents"
            )
        return sessions[name]

    if subject.of_class:
        reward, _ = await subject.rollouts.given(item, own)
        return reward, ""
    reward, _ = await subject.rollouts.given(item, own, of_agent)
    left = sum(len(session.left) for session in sessions.values())
    asked = sum(len(session.requests) for session in sessions.values())
    had = sum(map(len, rollout.replies.values()))
    if asked > had:
        return reward, f"  ({asked - had} more replies were asked for than are stored)"
    return reward, f"  ({left} of {had} stored replies were not asked for)" if left else ""


def _rewards(
    rollout: StoredRollout, reward: Reward
) -> dict[str, tuple[float | None, float | None]]:
    """Old and new reward of each agent; "" is the score of the rollout."""
    pairs: dict[str, tuple[float | None, float | None]] = {}
    for agent, old in rollout.rewards.items():
        new = reward.score
        if agent and reward.score is not None:
            new = reward.metrics.get(f"{agent}/reward", reward.score)
        pairs[agent] = old, new
    return pairs or {"": (None, reward.score)}


def _text_of(value: float | None) -> str:
    return "no score" if value is None else f"{value:.4g}"
