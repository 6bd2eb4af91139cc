"""A small run through the real API, for the tests of the page and its pictures.

Groups are posted by the client of environments, batches claimed and acked by that of trainers.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import asdict

from atroposlib import wire
from atroposlib.api.guards.tokens import TokenFile
from atroposlib.api.server import create_app
from atroposlib.api.store import open_store
from atroposlib.client.environment import AsyncRolloutClient
from atroposlib.client.trainer import RolloutClient
from atroposlib.run_status.task_history import FOLDER, HistoryLine
from atroposlib.wire.messages import MASKED, MASKED_LOGPROB, MASKED_VERSION
from atroposlib.wire.notes import GroupNotes, pack_notes
from atroposlib.wire.status import ServerState
from tests.serving import served

GROUP_SIZE = 4
GROUPS_IN_BATCH = 2
SPIKE = 3  # step whose rewards are all 0
STEPS = 6
QUESTION = (
    "Natalia sold clips to {a} friends in April , and half as many in May . How many in all ?"
)
ANSWER = " In May she sold {a} / 2 = {h} clips .\n So in all {a} + {h} = {s} clips .\n#### {s}"
DOUBT = " Wait , half of {a} is {h} ."
HOSTILE = [
    "<script>window.pwned = 1</script>",
    '<img src="http://evil.example/i.png" onerror="window.pwned = 2">',
    "[x](javascript:window.pwned=3) ![y](http://evil.example/y.png)",
    "\u202eright to left\u202c \u2066isolated\u2069 zero\u200bwidth \ufeff",
    "\x1b[31mred\x1b]8;;http://evil.example\x07link\x1b]8;;\x07 \x00 \x08 \x9b2J",
    "<style>*{display:none}</style><base href=http://evil.example><svg onload=window.pwned=4>",
    "x" * 1_000_000,
]


# Numbers of a game against an earlier version, and of one against the present version.
AGAINST = ({"opponent/fallback": 0.0, "opponent/version": 2.0}, {"opponent/fallback": 1.0})


def write_word_tokenizer(folder: Path, texts: Sequence[str]) -> Path:
    """Write a tokenizer whose tokens are the words of ``texts`` with their leading space."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    split: Any = pre_tokenizers.Split(Regex(r" ?[^\s]+|\s"), "isolated")
    words = sorted({word for text in texts for word, _ in split.pre_tokenize_str(text)})
    vocab = {word: i for i, word in enumerate(["<|unk|>", *words])}
    tokenizer: Any = Tokenizer(models.WordLevel(vocab, unk_token="<|unk|>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.Fuse()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.add_special_tokens(["<|unk|>"])  # loading without transformers asks for it
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "TokenizersBackend", "unk_token": "<|unk|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def texts(
    number: int, rng: random.Random, step: int, steps: int
) -> tuple[str, list[str], list[float]]:
    """A question, answers and rewards: more often right at later steps."""
    a = 2 * (10 + number % 7)
    right = {"a": a, "h": a // 2, "s": a + a // 2}
    answers, rewards = [], []
    for _ in range(GROUP_SIZE):
        good = rng.random() < 0.25 + 0.6 * step / (steps + 1) and step != SPIKE
        form = DOUBT * rng.randrange(4) + ANSWER
        answers.append(form.format(**(right if good else right | {"s": a + 2})))
        rewards.append(1.0 if good else 0.0 if step == SPIKE else 0.2)
    return QUESTION.format(a=a), answers, rewards


def all_texts() -> list[str]:
    """Every text that :func:`texts` can return."""
    values = [2 * (10 + n) for n in range(7)]
    right = [{"a": a, "h": a // 2, "s": s} for a in values for s in (a + a // 2, a + 2)]
    return [form.format(**one) for one in right for form in (QUESTION, ANSWER, DOUBT)]


def group(
    backend: Any,
    question: str,
    answers: list[str],
    rewards: list[float],
    step: int,
    **more: Any,
) -> dict[str, Any]:
    """One scored group; the tokens of the answers are trained."""
    rng = random.Random(question)
    asked = backend.encode(question).ids
    given = [backend.encode(answer).ids for answer in answers]
    rows = {
        "tokens": [asked + ids for ids in given],
        "masks": [[MASKED] * len(asked) + ids for ids in given],
        "scores": rewards,
        "inference_logprobs": [
            [MASKED_LOGPROB] * len(asked) + [-rng.expovariate(2.0) for _ in ids]
            for ids in given
        ],
        "versions": [[MASKED_VERSION] * len(asked) + [step - 1] * len(ids) for ids in given],
        "finish_reasons": ["stop"] * len(answers),
        "outcomes": ["ok"] * len(answers),
        "messages": [
            [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            for answer in answers
        ],
    }
    return rows | more


def notes(member: int, one: wire.ScoredData) -> bytes:
    """Notes of a trainer whose logprobs differ a little, and at some tokens much."""
    rng = random.Random(str(one.group_id))
    sampled_R_T = [[p for p in row if p <= 0] for row in one.inference_logprobs or []]
    found = GroupNotes.empty(member, [len(row) for row in sampled_R_T])
    mean = sum(one.scores) / len(one.scores)
    sampled = np.array(sum(sampled_R_T, []))
    diff = np.array([rng.gauss(0, 0.02) - 0.5 * (rng.random() < 0.04) for _ in sampled])
    found.logprobs[:] = sampled + diff
    found.flags[:] = np.abs(diff) > 0.2
    counts = found.counts.tolist()
    found.advantages[:] = np.repeat([score - mean for score in one.scores], counts)
    rows = np.split(diff, np.cumsum(counts)[:-1])
    found.diff_mean[:] = [row.mean() for row in rows]
    found.diff_max[:] = [np.abs(row).max() for row in rows]
    return pack_notes(found)


@contextmanager
def recorded_run(
    folder: Path,
    *,
    steps: int = STEPS,
    hostile: bool = True,
    tokens: Path | None = None,
    token: str | None = None,
) -> Iterator[tuple[str, Any]]:
    """Serve a run with ``steps`` trained batches and two queued groups: URL and application."""
    from tokenizers import Tokenizer

    long = " ".join(all_texts()) + "\n"
    directory = write_word_tokenizer(folder / "tokenizer", [*all_texts(), *HOSTILE, long])
    backend = Tokenizer.from_file(str(directory / "tokenizer.json"))
    _write_tasks(folder, HOSTILE[0] if hostile else "gsm8k")
    store = open_store("sqlite", folder / "queue", archive_bytes=2**28)
    app = create_app(store, tokens=TokenFile(tokens) if tokens else None)
    with served(app) as url:
        record = _run(url, token, str(directory), backend, steps, hostile, long)
        with ThreadPoolExecutor(
            1
        ) as threads:  # the driver of a browser has a loop in this one
            threads.submit(asyncio.run, record).result()
        app.state.service.context.indexer.flush()
        yield url, app


def _write_tasks(folder: Path, hostile: str) -> None:
    """Write what an environment with a curriculum observed."""
    (folder / FOLDER).mkdir()
    seen = [("clips/1", "useful", (0.0, 0.5, 0.75)), (hostile, "too_hard", (0.0, 0.0))]
    lines = [
        HistoryLine(4 * at, task, success, success > 0, 60, 4 * at, pool)
        for task, pool, successes in seen
        for at, success in enumerate(successes)
    ]
    text = "".join(json.dumps(asdict(line)) + "\n" for line in lines)
    (folder / FOLDER / "gsm8k_0.jsonl").write_text(text)


def registration(tokenizer: str) -> wire.Registration:
    return wire.Registration(
        wandb_group="",
        wandb_project="",
        batch_size=GROUP_SIZE * GROUPS_IN_BATCH,
        max_token_len=10240,
        checkpoint_dir="",
        save_checkpoint_interval=0,
        starting_step=0,
        num_steps=100,
        tokenizer=tokenizer,
    )


async def _run(
    url: str,
    token: str | None,
    tokenizer: str,
    backend: Any,
    steps: int,
    hostile: bool,
    long: str,
) -> None:
    client = AsyncRolloutClient(url, token=token)
    trainer = RolloutClient(url, token=token)
    trainer.register(registration(tokenizer))
    trainer.claim(wait_s=0)  # the run begins with it
    name = HOSTILE[0] if hostile else "gsm8k"
    joined = await client.register_env(
        wire.RegisterEnv(max_token_length=10240, desired_name=name, weight=1.0, group_size=4)
    )
    assert joined is not None
    rng = random.Random(7)
    for step in range(1, steps + 2):
        groups = []
        for at in range(GROUPS_IN_BATCH):
            number = (step * GROUPS_IN_BATCH + at) % 7
            made = texts(number, rng, step, steps)
            facts = [
                {
                    "metrics": {"exact": float(score == 1), **AGAINST[at]},
                    "timings": {"generate": rng.uniform(1, 4)},
                }
                for score in made[2]
            ]
            about = {"item_id": f"clips/{number}", "rows": facts}
            groups.append(
                group(
                    backend,
                    *made,
                    step,
                    env_id=joined.env_id,
                    metadata=about,
                    group_id=f"clips/{number}",
                )
            )
        await client.send_groups(groups, run_id=joined.run_id)
        if step <= steps:
            batch = trainer.claim(wait_s=10)
            assert batch.batch_no == step
            trainer.ack(batch)
            trainer.send_notes(
                batch, [notes(at, one) for at, one in enumerate(batch.batch or [])]
            )
            values = {"loss": 1 / step, "entropy": 0.9 - 0.5 * step / steps, "version": step}
            values |= {"seconds_wait": 3.0, "seconds_train": 5.0, "seconds_publish": 1.5}
            values |= {"seconds_check": 0.5}
            trainer.report_step(
                wire.StepReport(role="trainer", step=step, batch_no=step, values=values)
            )
            trainer.announce_version(step)
        beat: dict[str, Any] = {"groups_sent": 2 * step, "rollouts_running": 8}
        servers = [
            ServerState(
                url=f"http://127.0.0.1:{9001 + at}", version=min(step, steps) - at, running=8
            )
            for at in (0, 1)  # one is a version behind
        ]
        one = wire.Heartbeat(role="env", name=joined.wandb_name, phase="rollout", details=beat)
        await client.heartbeat(one.model_copy(update={"servers": servers}))
        await client.heartbeat(
            wire.Heartbeat(role="trainer", name="trainer", phase="training")
        )
    if hostile:
        await _send_hostile(client, backend, joined, long)
    await client.close()
    trainer.close()


async def _send_hostile(
    client: AsyncRolloutClient, backend: Any, joined: wire.EnvRegistered, long: str
) -> None:
    """A group of hostile texts, one of long rows, and a hostile heartbeat."""
    evil = group(
        backend,
        "".join(HOSTILE[:2]),
        [*HOSTILE[2:5], HOSTILE[6]],
        [1.0, 0.5, 0.2, 0.0],
        7,
        env_id=joined.env_id,
        group_id=HOSTILE[1][:200],
        metadata={"item_id": HOSTILE[0], HOSTILE[1]: HOSTILE[3]},
    )
    wide = group(
        backend,
        QUESTION.format(a=20),
        [long * 14] * 4,
        [0.1, 0.2, 0.3, 0.4],
        7,
        env_id=joined.env_id,
        group_id="long",
    )
    await client.send_groups([evil, wide], run_id=joined.run_id)
    await client.heartbeat(
        wire.Heartbeat(
            role="tool", name=HOSTILE[1][:190], phase=HOSTILE[3], waiting_on=HOSTILE[2]
        )
    )
