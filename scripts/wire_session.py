"""A scripted conversation with the running rollout API, recorded for docs/wire.md.

The real app runs over ASGI with a clock that stands still; the few random values (run id,
uuid, event ids) are replaced, so that every run records the same.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from msgspec import structs

from atroposlib.api.archive import token_balance
from atroposlib.api.common.records import MAX_DELIVERIES
from atroposlib.api.run.events import frames
from atroposlib.api.server import create_app
from atroposlib.api.store import open_store
from atroposlib.run_status.task_history import FOLDER, HistoryLine
from atroposlib.wire import ScoredData
from atroposlib.wire.binary import concatenate_frames as in_frames, pack_group
from atroposlib.wire.notes import GroupNotes, pack_notes

RUN_ID = "8d0f6c1e5b7a4c0f9e2d3b4a59687f01"
FRAMES = "application/x-atropos-groups"
SHOWN_HEADERS = ("content-type", "retry-after", "x-atropos-batch", "x-atropos-epoch")
NOT_SHOWN = ("application/json", "text/plain; charset=utf-8")  # the usual content types
METRICS_SHOWN = re.compile(
    r"^atropos_(groups_in|tokens_in|batches_delivered|env_share|sequences|policy_version)\S* .*",
    re.M,
)

TRAINER = {
    "wandb_group": "demo",
    "wandb_project": "gsm8k",
    "batch_size": 4,
    "max_token_len": 512,
    "checkpoint_dir": "runs/demo",
    "save_checkpoint_interval": 10,
    "starting_step": 0,
    "num_steps": 40,
    "commits": True,
    "max_staleness": 2,
    "staleness_policy": "drop",
}
ENV = {
    "max_token_length": 512,
    "desired_name": "gsm8k",
    "weight": 1.0,
    "group_size": 2,
    "min_batch_allocation": None,
}

# Groups that an environment with a curriculum observed, and numbers of a game against version 4.
OBSERVED = (
    HistoryLine(0, "gsm8k/17", 0.5, True, 8, 0, "useful"),
    HistoryLine(1, "gsm8k/18", 0.0, False, 8, 1, "too_hard"),
)
AGAINST = {"opponent/fallback": 0.0, "opponent/version": 4.0}


@dataclass(frozen=True)
class Exchange:
    """A request and its answer, as text."""

    request: str
    reply: str


def group(mark: int, **more: Any) -> dict[str, Any]:
    """Two answers to a prompt of two tokens; the answers are trained on."""
    return {
        "tokens": [[1, 5, mark, 2], [1, 5, mark + 1, 2]],
        "masks": [[-100, -100, mark, 2], [-100, -100, mark + 1, 2]],
        "scores": [1.0, 0.0],
        "inference_logprobs": [[1.0, 1.0, -0.5, -0.25], [1.0, 1.0, -1.5, -0.75]],
        "versions": [[-1, -1, 0, 0], [-1, -1, 0, 0]],
        **more,
    }


class Session:
    """Client that records each exchange under a name."""

    def __init__(
        self, store: str = "memory", max_deliveries: int = MAX_DELIVERIES, **options: Any
    ) -> None:
        self.exchanges: dict[str, Exchange] = {}
        self.app = create_app(
            open_store(store, **options),
            clock=lambda: 1_700_000_000.0,
            max_deliveries=max_deliveries,
        )
        transport = httpx.ASGITransport(self.app)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://api")
        self.run_id = ""

    async def say(
        self,
        name: str | None,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        shown: str | None = None,
    ) -> Any:
        """Send; the answer, decoded if it is JSON. ``shown`` stands for a long body."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = dict(headers or {})
        if body is not None:
            headers.setdefault("content-type", "application/json")
        response = await self._http.request(
            method, path, content=content if body is not None else None, headers=headers
        )
        answer = _decode(response)
        if name is not None:
            request = self._text(f"{method} {path}", headers, shown or body)
            kept = {k: v for k, v in response.headers.items() if k in SHOWN_HEADERS}
            self.exchanges[name] = Exchange(
                request, self._text(str(response.status_code), kept, answer)
            )
        return answer

    def _text(self, first: str, headers: dict[str, str], body: Any) -> str:
        named = [f"{k}: {v}" for k, v in headers.items() if v not in NOT_SHOWN]
        text = "\n".join([first, *named])
        if body is not None and body != "":
            shown = "(frames)" if isinstance(body, bytes) else body
            text += "\n\n" + (shown if isinstance(shown, str) else pretty(_settle(shown)))
        return text.replace(self.run_id, RUN_ID) if self.run_id else text

    async def events(self) -> str:
        """All events that /events would have sent."""
        events = self.app.state.service.events
        reader = events.subscribe(after="")
        events.close()
        text = b"".join([frame async for frame in frames(reader)]).decode()
        return re.sub(r"id: [0-9a-f]+-", "id: 18f3c2-", text)

    async def close(self) -> None:
        await self._http.aclose()
        self.app.state.service.close()


def _decode(response: httpx.Response) -> Any:
    kind = response.headers.get("content-type", "")
    if kind.startswith("application/json"):
        return json.loads(response.content)
    return response.content if kind.startswith("application/x-") else response.text


def _settle(value: Any) -> Any:
    """Copy of ``value`` without what chance decided and without the empty fields of groups."""
    if isinstance(value, dict):
        group = "tokens" in value  # every key of the record is there, most without information
        fixed = {"uuid": 271828182845904523536028747135266249775, "instance": "5f0c71"}
        return {
            k: fixed[k] if k in fixed else _settle(v)
            for k, v in value.items()
            if not (group and v is None)
        }
    if isinstance(value, list):
        return [_settle(item) for item in value]
    return value


def pretty(value: Any, indent: int = 0, width: int = 92) -> str:
    """JSON that breaks only lines that would not fit."""
    flat = json.dumps(value)
    if len(flat) + indent <= width or not isinstance(value, (dict, list)) or not value:
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        inner = []
        for k, v in value.items():
            at = indent + len(k) + 6
            fits = len(json.dumps(v)) + at <= width
            inner.append(
                f"{pad}{json.dumps(k)}: {pretty(v, at if fits else indent + 2, width)}"
            )
        return "{\n" + ",\n".join(inner) + "\n" + " " * indent + "}"
    inner = [pad + pretty(item, indent + 2, width) for item in value]
    return "[\n" + ",\n".join(inner) + "\n" + " " * indent + "]"


# --- the conversation ----------------------------------------------------------------------


async def record() -> dict[str, Exchange]:
    """Everything docs/wire.md shows."""
    session = Session()
    steps: tuple[Callable[[Session], Awaitable[None]], ...] = (
        _begin,
        _groups,
        _batches,
        _checkpoints,
        _watching,
        _old_clients,
        _end,
    )
    for step in steps:
        await step(session)
    await session.close()
    return {
        **session.exchanges,
        **await _full_queue(),
        **await _dead_batch(),
        **await _on_disk(),
    }


async def _begin(s: Session) -> None:
    await s.say("claim not registered", "POST", "/batches/claim", {"generation": 1})
    await s.say("register-env waiting", "POST", "/register-env", ENV)
    registered = await s.say(None, "POST", "/register", TRAINER)
    s.run_id = registered["run_id"]
    await s.say("register", "POST", "/register", TRAINER)
    await s.say("claim empty", "POST", "/batches/claim", {"generation": 2, "wait_s": 0})
    await s.say("register-env", "POST", "/register-env", ENV)
    await s.say("info", "GET", "/info")
    await s.say("wandb_info", "GET", "/wandb_info")


async def _groups(s: Session) -> None:
    run = {"x-atropos-run-id": s.run_id}
    request = {"env_id": 0, "run_id": s.run_id, "sequences": 16, "admission_id": "env-a-17"}
    await s.say("admission", "POST", "/admission", request)
    first = group(7, env_id=0, group_id="gsm8k/17", idempotency_key="env-a-1")
    await s.say("groups", "POST", "/groups", [first], run)
    await s.say("groups again", "POST", "/groups", [first], run, "(the same body)")
    await s.say(
        "admission release", "POST", "/admission/release", {"admission_id": "env-a-17"}
    )
    second = ScoredData(**group(9, env_id=0, group_id="gsm8k/18", idempotency_key="env-a-2"))
    # Not compressed: the credit in the answer must not depend on the version of zstd.
    body = in_frames([pack_group(second, compress=False)])
    await s.say("groups binary", "POST", "/groups", body, run | {"content-type": FRAMES})
    await s.say("status-env", "POST", "/status-env", {"env_id": 0, "run_id": s.run_id})
    path = "/drops?env_id=0&reason=same_scores&count=12"
    await s.say("drops", "POST", path, group(7) | {"scores": [1.0, 1.0]})
    dropped = {"version": 0, "state": "dropped/same_scores", "tokens": 48, "samples": 24}
    posted = {"version": 0, "state": "posted", "tokens": 8, "samples": 4}
    account = {"instance": "env-a-1", "sequence": 3, "counts": [posted, dropped]}
    await s.say("account", "POST", "/account", {"env_id": 0, "run_id": s.run_id, **account})
    wrong = group(7, env_id=0) | {"masks": [[-100, -100, 7, 2], [-100]]}
    await s.say("invalid", "POST", "/groups", [wrong], run)
    gone = {"x-atropos-run-id": "another"}
    await s.say("unknown env", "POST", "/groups", [first], gone, "(the same body)")
    rescored = first | {"scores": [0.0, 1.0]}
    await s.say("key conflict", "POST", "/groups", [rescored], run, "(other scores, same key)")


async def _batches(s: Session) -> None:
    claim = {"generation": 2, "lease_s": 600, "wait_s": 5, "claim_id": "trainer-a-1"}
    claim |= {"world_size": 2}
    await s.say("claim", "POST", "/batches/claim", claim)
    await s.say("claim binary", "POST", "/batches/claim", claim, {"accept": FRAMES})
    await s.say("shard", "GET", "/batches/1/shards/1?generation=2&epoch=2")
    held = {"generation": 2, "epoch": 2}
    await s.say("extend", "POST", "/batches/1/extend", held | {"lease_s": 900})
    await s.say("ack rank", "POST", "/batches/1/ack", held | {"rank": 0})
    await s.say("ack", "POST", "/batches/1/ack", held)
    await s.say("ack again", "POST", "/batches/1/ack", held)
    notes = GroupNotes.empty(0, [2, 2])  # about the first group of the batch
    notes.advantages[:] = [1.0, 1.0, -1.0, -1.0]
    notes.logprobs[:] = [-0.5, -0.25, -1.5, -0.5]
    notes.diff_mean[:], notes.diff_max[:] = [0.0, 0.125], [0.0, 0.25]
    path = "/batches/1/notes?generation=2&epoch=2"
    kind = {"content-type": "application/x-atropos-notes"}
    await s.say("notes", "POST", path, in_frames([pack_notes(notes)]), kind)
    numbers = {"loss": 0.25, "reward_mean": 0.5}
    report = {"role": "trainer", "step": 1, "batch_no": 1, "values": numbers}
    await s.say("steps", "POST", "/steps", report)
    await s.say("fenced", "POST", "/batches/1/ack", {"generation": 1, "epoch": 1})
    await s.say("policy_version", "POST", "/policy_version", {"version": 1})


async def _checkpoints(s: Session) -> None:
    await s.say("rewind", "POST", "/batches/0/rewind", {"generation": 2})
    again = await s.say(None, "POST", "/batches/claim", {"generation": 2})
    held = {"generation": 2, "epoch": again["epoch"]}
    await s.say(None, "POST", "/batches/1/ack", held)
    await s.say("commit", "POST", "/batches/1/commit", {"generation": 2})


async def _watching(s: Session) -> None:
    beat = {"role": "trainer", "name": "trainer-a", "phase": "training"}
    beat |= {"waiting_on": None, "details": {"step": 1}}
    await s.say("heartbeat", "POST", "/heartbeat", beat)
    own = {
        "url": "http://gpu1:9001",
        "instance": "5f0c71",
        "started": 1780000000.0,
        "version": 1,
    }
    server = {"role": "inference", "name": "inference-0", "phase": "serving", "announces": own}
    await s.say(None, "POST", "/heartbeat", server)
    await s.say("servers", "GET", "/servers")
    s.app.state.service.context.indexer.flush()
    token_balance.WAIT_S = 60.0  # the example has the balance, however slow the machine
    await s.say("status", "GET", "/status")
    await s.say("health", "GET", "/health")
    await s.say("why", "GET", "/explore/why")
    page = await s.say(None, "GET", "/metrics")
    lines = "\n".join(match[0] for match in METRICS_SHOWN.finditer(page))
    s.exchanges["metrics"] = Exchange("GET /metrics", f"200\n\n...\n{lines}\n...")
    s.app.state.service.context.indexer.flush()
    await s.say("explore rollouts", "GET", "/explore/rollouts?reward=0.5..1&limit=1")
    await s.say("explore group", "GET", "/explore/groups/1")
    await s.say("explore row", "GET", "/explore/groups/2/rows/0?from=0&to=4096")
    for name in (
        "runs",
        "batches",
        "batches/1",
        "batches/1/certificate",
        "curves?keys=reward",
        "histogram?field=reward",
        "account",
    ):
        await s.say(f"explore {name.partition('?')[0]}", "GET", f"/explore/{name}")
    await s.say("explore weights", "GET", "/explore/weights")
    events = await s.say(None, "GET", "/explore/events?limit=1")
    events["events"][0]["id"] = "18f3c2-1"
    s.exchanges["explore events"] = Exchange(
        "GET /explore/events?limit=1", f"200\n\n{pretty(events)}"
    )


async def _old_clients(s: Session) -> None:
    old = {k: v for k, v in group(11, env_id=0).items() if k != "versions"}
    await s.say("scored_data", "POST", "/scored_data", old)
    half = {k: v[:1] if isinstance(v, list) else v for k, v in old.items()}
    await s.say("scored_data buffered", "POST", "/scored_data", half)
    await s.say(
        "scored_data_list", "POST", "/scored_data_list", [old | {"scores": [1.0, 1.0]}]
    )
    await s.say("latest_example", "GET", "/latest_example")
    await s.say("batch fenced", "GET", "/batch")
    await s.say(None, "POST", "/register", TRAINER | {"commits": False})
    await s.say("batch", "GET", "/batch")
    await s.say("batch none", "GET", "/batch")
    await s.say("status-env get", "GET", "/status-env?env_id=0")
    await s.say("root", "GET", "/")


async def _end(s: Session) -> None:
    await s.say("steer", "POST", "/steer", {"env": "gsm8k", "weight": 3.0})
    await s.say("steer back", "POST", "/steer", {"env": "gsm8k", "weight": None})
    await s.say("disconnect-env", "POST", "/disconnect-env", {"env_id": 0})
    await s.say("reset_data", "POST", "/reset_data")
    s.exchanges["events"] = Exchange(
        "GET /events\nlast-event-id: 18f3c2-0", f"200\n\n{await s.events()}"
    )


async def _dead_batch() -> dict[str, Exchange]:
    s = Session(max_deliveries=1)
    await s.say(None, "POST", "/register", TRAINER)
    await s.say(None, "POST", "/groups", [group(mark) for mark in (7, 9, 11, 13)])
    await s.say(None, "POST", "/batches/claim", {"generation": 1})
    await s.say(None, "POST", "/batches/1/ack", {"generation": 1, "epoch": 1})
    for _ in range(3):
        await s.say(None, "POST", "/batches/claim", {"generation": 1, "claim_id": "a"})
    await s.say("dead", "GET", "/batches/dead")
    await s.say("revive", "POST", "/batches/2/revive")
    await s.say("drop", "POST", "/batches/2/drop")
    await s.close()
    return s.exchanges


async def _on_disk() -> dict[str, Exchange]:
    """Examples over an archive, or over the folder of the run around it."""
    with tempfile.TemporaryDirectory() as folder:
        history = Path(folder) / FOLDER / "gsm8k_0.jsonl"
        history.parent.mkdir()
        history.write_text(
            "".join(json.dumps(structs.asdict(line)) + "\n" for line in OBSERVED)
        )
        s = Session("sqlite", data_dir=Path(folder) / "queue", archive_bytes=2**30)
        await s.say(None, "POST", "/register", TRAINER)
        games = [{"won": 1.0, **AGAINST}, {"won": 0.0, **AGAINST}]
        played = group(9, metadata={"named_rewards": games})
        await s.say(None, "POST", "/groups", [group(7), played])
        await s.say(None, "POST", "/batches/claim", {"generation": 1})
        await s.say(None, "POST", "/batches/1/ack", {"generation": 1, "epoch": 1})
        await s.say(None, "POST", "/steps", {"role": "trainer", "step": 1, "batch_no": 1})
        s.app.state.service.context.indexer.flush()
        await s.say("pin", "POST", "/explore/steps/1/pin?kept=true")
        await s.say("explore tasks", "GET", "/explore/tasks?order=easiest&limit=1")
        await s.say("explore wins", "GET", "/explore/wins?score=won")
        await s.close()
    return s.exchanges


async def _full_queue() -> dict[str, Exchange]:
    session = Session(max_bytes=1000)
    await session.say(None, "POST", "/groups", [group(7)])
    await session.say("groups full", "POST", "/groups", [group(9)])
    await session.close()
    return session.exchanges
