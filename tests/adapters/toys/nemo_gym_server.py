"""A resources server by the wire of NeMo Gym: sessions by cookie, one tool, a verifier.

Written after nemo_gym/base_resources_server.py and openai_utils.py of its public repository, for
Pythons on which the package does not install. Requests are checked by the types of openai that its
own are made from.
"""

from __future__ import annotations

import secrets
from typing import Any, Union

from fastapi import FastAPI, Request, Response
from openai.types.responses import (
    Response as OpenAIResponse,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
)
from openai.types.responses.response_input_item import FunctionCallOutput
from pydantic import BaseModel, ConfigDict

Item = Union[ResponseFunctionToolCall, FunctionCallOutput, ResponseOutputMessage]


class GymResponse(OpenAIResponse):
    output: list[Item]  # type: ignore[assignment]


class Run(BaseModel):
    model_config = ConfigDict(extra="allow")
    responses_create_params: dict[str, Any]


class Verify(Run):
    response: GymResponse


class City(BaseModel):
    city: str


def weather_app(busy: bool = False) -> FastAPI:
    """Reward: the session's tool was called for the row's city. ``seen`` is for the tests."""
    app = FastAPI(title="example_weather", version="0.1")
    sessions: dict[str, list[str]] = {}
    app.state.seen = []

    @app.post("/seed_session")
    async def seed_session(body: Run, response: Response) -> dict[str, Any]:
        key = secrets.token_hex(4)
        sessions[key] = []
        response.set_cookie("session", key)
        return {}

    @app.post("/get_weather")
    async def get_weather(body: City, request: Request, response: Response) -> dict[str, Any]:
        if busy:
            response.status_code = 503
        sessions[request.cookies["session"]].append(body.city)
        return {"city": body.city, "weather": "cold"}

    @app.post("/verify")
    async def verify(body: Verify, request: Request) -> dict[str, Any]:
        app.state.seen.append(body.response)
        row = body.model_extra or {}
        if row.get("broken"):
            raise RuntimeError("the verifier fell over")
        asked = sessions[request.cookies["session"]]
        masked = {"mask_sample": True, "failure_reason": "the judge is away"}
        return {
            **body.model_dump(mode="json"),
            "reward": float(row["city"] in asked),
            "calls": len(asked),
            **(masked if row.get("masked") else {}),
        }

    return app
