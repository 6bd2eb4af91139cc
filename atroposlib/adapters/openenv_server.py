"""Function environments as a server of OpenEnv: WebSocket /ws, with reset, step and state.

    atropos env openenv wordle --port 8000

A connection is a session. The first call of the model is the observation of a reset, a step's
``message`` is the reply to it, and the next call, or the reward at the end, answers the step.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from atroposlib import __version__
from atroposlib.envs.function_env.card import ScriptedSession
from atroposlib.envs.function_env.data import TaskItem
from atroposlib.envs.function_env.env import FunctionEnv
from atroposlib.errors import AtroposError, RunStateError
from atroposlib.utils.http.gate import Gate
from atroposlib.utils.http.sockets import LOOPBACK_HOSTS
from atroposlib.utils.http.web_pages import page_checks

MOST_TASKS = 2000  # tasks that seeds choose from


class Act(BaseModel):
    """A reply of the model."""

    model_config = ConfigDict(extra="forbid")
    message: str = Field(
        description="text of the reply, with its tool calls in <tool_call> tags"
    )
    metadata: dict[str, Any] = Field(default_factory=dict)


class Seen(BaseModel):
    """Messages that the model has not seen yet; empty at the end."""

    prompt: str = Field(default="", description="texts of the messages")
    messages: list[dict[str, Any]] = Field(default=[], description="OpenAI's form")
    tools: list[dict[str, Any]] = Field(default=[], description="OpenAI's form")
    metrics: dict[str, float] = Field(default={}, description="named numbers, at the end")


class Start(BaseModel):
    """Fields of a reset that are read; further fields are ignored, as in OpenEnv."""

    seed: int | None = Field(default=None, description="number of the task; none: the next")
    episode_id: str | None = None


class State(BaseModel):
    episode_id: str | None = None
    step_count: int = 0


class AskingSession(ScriptedSession):
    """Session that hands each call over and waits for its reply."""

    def __init__(self) -> None:
        super().__init__([])
        self.asked: asyncio.Queue[Seen] = asyncio.Queue()
        self.replies: asyncio.Queue[str] = asyncio.Queue()
        self._known: list[Any] = []

    async def chat_completion(self, *, tools: Sequence[Any] = (), **sent: Any) -> Any:
        messages = list(sent.get("messages") or [{"role": "user", "content": sent["prompt"]}])
        grown = messages[: len(self._known)] == self._known
        # The extra message is the reply.
        news = messages[len(self._known) + bool(self._known) :] if grown else messages
        self._known = messages
        prompt = "\n\n".join(str(message.get("content") or "") for message in news)
        self.asked.put_nowait(Seen(prompt=prompt, messages=news, tools=list(tools)))
        self.left = [await self.replies.get()]
        return await super().chat_completion(tools=tools, **sent)

    completion = chat_completion


class Episode:
    """A rollout whose model is the client."""

    def __init__(self, env: FunctionEnv, item: TaskItem, episode_id: str | None) -> None:
        self._session = AskingSession()
        self._rollout = asyncio.ensure_future(env.rollouts.given(item, self._session))
        self._timeout_s = env.config.worker_timeout if env.config.worker_timeout > 0 else None
        self.state = State(episode_id=episode_id or item["id"])

    async def step(self, reply: str) -> dict[str, Any]:
        """The next observation. Raises AtroposError: the episode is over, or has failed."""
        if self._rollout.done():
            raise RunStateError("the episode is over: reset")
        self.state.step_count += 1
        self._session.replies.put_nowait(reply)
        return await self.observed()

    async def observed(self) -> dict[str, Any]:
        """Data of an observation: the call that waits, or the end with its reward."""
        asking = asyncio.ensure_future(self._session.asked.get())
        try:
            waited = {asking, self._rollout}
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait(waited, timeout=self._timeout_s, return_when=first)
            if asking.done():
                return observation(asking.result(), None, False)
        finally:
            asking.cancel()
        if not self._rollout.done():
            await self.close()
            raise RunStateError(f"no answer within {self._timeout_s} s")
        reward, _ = self._rollout.result()
        return observation(Seen(metrics=dict(reward.metrics)), reward.score, True)

    async def close(self) -> None:
        self._rollout.cancel()
        await asyncio.wait([self._rollout])


def observation(seen: Seen, reward: float | None, done: bool) -> dict[str, Any]:
    return {"observation": seen.model_dump(), "reward": reward, "done": done}


def error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


class EpisodeServer:
    """The WebSocket route: at most ``places`` sessions of ``env`` at a time."""

    def __init__(self, env: FunctionEnv, places: int, idle_s: float) -> None:
        self.env, self._places, self._idle_s = env, places, idle_s
        self._items: list[TaskItem] = []
        self._open = self._drawn = 0

    @asynccontextmanager
    async def running(self, app: Any) -> AsyncIterator[None]:
        await self.env.setup()
        for _ in range(MOST_TASKS):
            item = await self.env.get_next_item()
            if item is None or item["epoch"] > 0:
                break
            self._items.append(item)
        try:
            yield
        finally:
            await self.env.close()

    async def serve(self, socket: WebSocket) -> None:
        await socket.accept()
        if self._open >= self._places:
            full = error("CAPACITY_REACHED", f"all {self._places} sessions are taken")
            await socket.send_json(full)
            await socket.close()
            return
        self._open += 1
        episode: Episode | None = None
        try:
            while True:
                text = await asyncio.wait_for(socket.receive_text(), self._idle_s)
                try:
                    answer, episode = await self._answer(json.loads(text), episode)
                except json.JSONDecodeError as wrong:
                    answer = error("INVALID_JSON", str(wrong))
                except ValidationError as wrong:
                    details = wrong.errors(include_url=False, include_context=False)
                    answer = error("VALIDATION_ERROR", "Invalid message", errors=details)
                except AtroposError as failure:
                    answer = error("EXECUTION_ERROR", str(failure))
                if answer is None:
                    break
                await socket.send_json(answer)
            await socket.close()
        except asyncio.TimeoutError:
            await socket.close(reason=f"no message for {self._idle_s:.0f} s")
        except WebSocketDisconnect:
            pass
        finally:
            self._open -= 1
            if episode is not None:
                await episode.close()

    async def _answer(
        self, message: Any, episode: Episode | None
    ) -> tuple[dict[str, Any] | None, Episode | None]:
        """The answer (None for a close) and the current episode."""
        kind = message.get("type") if isinstance(message, Mapping) else None
        if kind in ("state", "close") and "data" in message:
            wrong = [{"type": "extra_forbidden", "loc": ["data"], "msg": "no data here"}]
            return error("VALIDATION_ERROR", "Invalid message", errors=wrong), episode
        if kind == "close":
            return None, episode
        if kind == "state":
            state = episode.state if episode else State()
            return {"type": "state", "data": state.model_dump()}, episode
        if kind == "step":
            act = Act.model_validate(message.get("data"))
            if episode is None:
                raise RunStateError("no episode: reset")
            return {"type": "observation", "data": await episode.step(act.message)}, episode
        if kind != "reset":
            return error("UNKNOWN_TYPE", f"Unknown message type: {kind}"), episode
        start = Start.model_validate(message.get("data") or {})
        if episode is not None:
            await episode.close()
        self._drawn += 1
        number = self._drawn - 1 if start.seed is None else start.seed
        item = self._items[number % len(self._items)]
        episode = Episode(self.env, item, start.episode_id)
        return {"type": "observation", "data": await episode.observed()}, episode


def app_of(
    env: FunctionEnv,
    places: int = 64,
    idle_s: float = 3600.0,
    names: Iterable[str] = LOOPBACK_HOSTS,
) -> Starlette:
    """The server of an environment that is not set up yet.

    Args:
        names: host names of this server for remote clients; names without a dot need no entry.
    """
    sessions = EpisodeServer(env, places, idle_s)
    schemas: dict[str, type[BaseModel]] = {"action": Act, "observation": Seen, "state": State}
    pages = {
        "/health": {"status": "healthy"},
        "/schema": {name: model.model_json_schema() for name, model in schemas.items()},
        "/metadata": {
            "name": env.name,
            "description": env.__doc__ or "",
            "version": f"atroposlib {__version__}",
        },
    }

    def route(path: str) -> Route:
        async def page(request: Any) -> JSONResponse:
            return JSONResponse(pages[path])

        return Route(path, page)

    routes = [*map(route, pages), WebSocketRoute("/ws", sessions.serve)]
    app = Starlette(routes=routes, lifespan=sessions.running)
    # A browser opens WebSockets to any site, so a web page could play the environment.
    app.middleware_stack = Gate(app.build_middleware_stack(), page_checks(_refuse, names))
    return app


def _refuse(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, status)
