"""Environments of OpenEnv servers, over their WebSocket; no OpenEnv package is needed.

    atropos env run openenv:ws://127.0.0.1:8000/ws process
    python -m atroposlib.adapters.openenv serve --env.env_id ws://127.0.0.1:8000/ws

Each rollout is a session. A turn shows the observation. If the action has a single text field,
the reply is its value; else the model's last <action> holds the action as JSON, by the schema
in the prompt.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import Field

from atroposlib.adapters import (
    ACTION,
    RewardedConfig,
    convert_errors,
    held_out_episodes,
    training_episodes,
)
from atroposlib.adapters.turns import Turns
from atroposlib.envs.function_env import Model, Reward, environment
from atroposlib.errors import ConfigError

RETRY_S = 0.5  # pause between two attempts to get a place at a full server
FULL, WRONG_ACTION = "CAPACITY_REACHED", "VALIDATION_ERROR"
HIDDEN = ("done", "reward", "metadata")  # fields of an observation that the model does not see


class ServerError(Exception):
    """An error frame of the server, with its ``code``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class OpenEnvConfig(RewardedConfig):
    """Settings of the server and of the turns."""

    env_id: str = Field(default="ws://127.0.0.1:8000/ws", description="URL of the server")
    env_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="fields of each reset, beside the seed"
    )
    instructions: str = Field(default="", description="before the first observation")
    server_timeout: float = Field(
        default=60.0, gt=0, description="seconds until the server answers, or has a free place"
    )


@dataclass(frozen=True)
class Contract:
    """Name and actions of a server."""

    name: str  # name and version
    action: Mapping[str, Any]  # JSON schema

    @property
    def text_field(self) -> str | None:
        """The field that takes a whole reply: the only field, if it is a string."""
        fields = {k: v for k, v in self.action["properties"].items() if k != "metadata"}
        [(name, schema), *rest] = fields.items()
        return name if not rest and schema.get("type") == "string" else None


def address(env_id: str, scheme: str, path: str) -> str:
    """A URL of the server: ``scheme`` is ws or http, with an s if ``env_id`` has an s."""
    match = re.fullmatch(r"(?:ws|http)(s?)://(.+?)(?:/ws)?/?", env_id)
    if match is None:
        raise ConfigError(f"--env.env_id {env_id}: write it as ws://host:port/ws")
    return f"{scheme}{match[1]}://{match[2]}{path}"


def contract_of(config: OpenEnvConfig) -> Contract:
    """Ask the server. Raises ConfigError: it does not answer, or has no actions."""
    errors = (httpx.HTTPError, ValueError, KeyError, TypeError)
    with convert_errors(errors, f"--env.env_id {config.env_id}", "no OpenEnv server"):
        with httpx.Client(timeout=config.server_timeout, trust_env=False) as http:
            schema = http.get(address(config.env_id, "http", "/schema")).raise_for_status()
            about = http.get(address(config.env_id, "http", "/metadata")).raise_for_status()
        action, metadata = schema.json()["action"], about.json()
        name = f"{metadata.get('name') or 'openenv'} {metadata.get('version') or ''}".strip()
        if not set(action["properties"]) - {"metadata"}:
            raise ValueError("its actions have no fields")
        return Contract(name, action)


class Session:
    """A session of the server; blocking. :meth:`close` ends a call in another thread."""

    def __init__(self, config: OpenEnvConfig) -> None:
        from websockets.sync.client import connect

        self._timeout_s = config.server_timeout
        url = address(config.env_id, "ws", "/ws")
        connecting = connect(url, open_timeout=self._timeout_s, max_size=None, proxy=None)
        self._open = ExitStack()
        self._socket = self._open.enter_context(connecting)

    def call(self, kind: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The data of the answer. Raises ServerError, TimeoutError, or a ConnectionClosed."""
        from websockets.exceptions import ConnectionClosed

        # The server refuses a key data where a message has none.
        message = {"type": kind} if data is None else {"type": kind, "data": data}
        with suppress(
            ConnectionClosed
        ):  # a full server closes at once; its reason comes first
            self._socket.send(json.dumps(message))
        answer = json.loads(self._socket.recv(timeout=self._timeout_s))
        content: dict[str, Any] = answer["data"]
        if answer["type"] == "error":
            raise ServerError(content["code"], content["message"])
        return content

    def close(self) -> None:
        self._open.close()


def open_session(config: OpenEnvConfig, seed: int) -> tuple[Session, dict[str, Any]]:
    """A session and the answer to its reset; waits for a place at a full server.

    Raises ServerError: it stayed full, or its reset failed.
    """
    end = time.monotonic() + config.server_timeout
    while True:
        with ExitStack() as undo:
            session = Session(config)
            undo.callback(session.close)
            try:
                first = session.call("reset", {"seed": seed, **config.env_kwargs})
            except ServerError as error:
                if error.code != FULL or time.monotonic() > end:
                    raise
            else:
                undo.pop_all()
                return session, first
        time.sleep(RETRY_S)


async def opened_aside(config: OpenEnvConfig, seed: int) -> tuple[Session, dict[str, Any]]:
    """Run :func:`open_session` in a thread; a session that opens after a cancellation is closed."""
    loop = asyncio.get_running_loop()
    opening = asyncio.ensure_future(asyncio.to_thread(open_session, config, seed))

    def close(done: asyncio.Future[tuple[Session, dict[str, Any]]]) -> None:
        if not done.cancelled() and done.exception() is None:
            loop.run_in_executor(None, done.result()[0].close)

    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(close)
        raise


def observation_text(observation: Mapping[str, Any]) -> str:
    """An observation as text: that of its only text field, else its fields as JSON."""
    fields = {name: value for name, value in observation.items() if name not in HIDDEN}
    values = list(fields.values())
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(fields, ensure_ascii=False)


def action_in(reply: str, contract: Contract) -> dict[str, Any] | None:
    """The action of a reply; None without an action."""
    if contract.text_field is not None:
        return {contract.text_field: str(reply)}
    try:
        action = json.loads(ACTION.findall(reply)[-1])
    except (IndexError, ValueError):
        return None
    return action if isinstance(action, dict) else None


def training(config: OpenEnvConfig) -> Iterator[dict[str, Any]]:
    from websockets.exceptions import WebSocketException

    contract = contract_of(config)
    # A reset that fails, fails before the first rollout.
    errors = (OSError, ValueError, KeyError, ServerError, WebSocketException)
    with convert_errors(errors, f"--env.env_id {config.env_id}", "no reset"):
        session, _ = open_session(config, 0)
    session.close()
    return training_episodes(config, contract.name)


def held_out(config: OpenEnvConfig) -> list[dict[str, Any]]:
    return held_out_episodes(config, contract_of(config).name)


@asynccontextmanager
async def ask_contract(config: OpenEnvConfig) -> AsyncIterator[Contract]:
    yield await asyncio.to_thread(contract_of, config)


@environment(training, eval_dataset=held_out, config=OpenEnvConfig, lifespan=ask_contract)
async def openenv(
    task: Any, model: Model, config: OpenEnvConfig, resources: Contract
) -> Reward:
    """Play an episode, scored by the environment's own rewards."""
    session, first = await opened_aside(config, task["seed"])
    try:
        return await play_openenv(session, first, resources, model, config)
    finally:
        await asyncio.to_thread(session.close)


async def play_openenv(
    session: Session, answer: Any, contract: Contract, model: Model, config: OpenEnvConfig
) -> Reward:
    """Play an episode until its end or until a limit."""
    how = (
        "" if contract.text_field else f"An action is JSON by this schema: {contract.action}\n"
    )
    how += "" if contract.text_field else "End each reply with one in <action> tags."
    opening = "\n".join(filter(None, (config.instructions, how)))
    turns = Turns(model, config, opening)
    refused = 0
    while not answer["done"]:
        reply = await turns.ask(observation_text(answer["observation"]))
        if reply is None:
            break
        action = action_in(reply, contract)
        try:
            if action is None:
                raise ServerError(WRONG_ACTION, "no <action> with JSON in the reply")
            answer = await asyncio.to_thread(session.call, "step", action)
        except ServerError as error:
            if error.code != WRONG_ACTION:  # the environment failed, not the model
                raise
            turns.note = f"That was no action ({error}).\n\n"
            refused += 1
            continue
        if answer["reward"] is not None:
            turns.reward(float(answer["reward"]))
    done = answer["done"]
    if done and not turns.rewards:
        raise ValueError(f"{config.env_id} ended an episode without any reward")
    score = turns.score(done, added=bool(turns.rewards))
    return turns.result(score, done, refused=float(refused))


if __name__ == "__main__":
    openenv.cli()
