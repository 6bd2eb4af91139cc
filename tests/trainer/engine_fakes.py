"""Inference servers that keep a diary: the routes of vLLM and SGLang, and no model."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse

Diary = list[tuple[str, Any]]


def vllm_app(diary: Diary, *, fail: str | None = None, keeps_version: bool = False) -> FastAPI:
    """vLLM in development mode; ``fail`` names a route that answers 500."""
    app = FastAPI()
    state: dict[str, Any] = {"version": "default"}

    @app.get("/health")
    async def health() -> PlainTextResponse:
        return PlainTextResponse("")

    def note(route: str, entry: Any = None) -> JSONResponse:
        diary.append((route, entry))
        broken = route == fail
        return JSONResponse(
            {"error": "out of memory"} if broken else {}, 500 if broken else 200
        )

    @app.post("/pause")
    async def pause(mode: str) -> JSONResponse:
        return note("/pause", mode)

    @app.post("/resume")
    async def resume() -> JSONResponse:
        return note("/resume")

    @app.post("/collective_rpc")
    async def collective_rpc(body: dict[str, Any]) -> JSONResponse:
        return note("/collective_rpc", body)

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> PlainTextResponse:
        note("/reset_prefix_cache")
        return PlainTextResponse("")

    @app.post("/update_weight_version")
    async def update_weight_version(body: dict[str, Any]) -> JSONResponse:
        if not keeps_version:
            state["version"] = body["new_version"]
        return note("/update_weight_version", body["new_version"])

    @app.get("/weight_info")
    async def weight_info() -> dict[str, Any]:
        return {"weight_version": state["version"]}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"data": [{"id": "served"}]}

    @app.post("/v1/completions")
    async def completions(body: dict[str, Any]) -> dict[str, Any]:
        assert body["model"] == "served"
        if isinstance(body["prompt"], str):
            return {"choices": [{"prompt_token_ids": [1, 2, 3]}]}
        entries = [{str(t): {"logprob": -t / 10, "rank": 1}} for t in body["prompt"][1:]]
        return {"choices": [{"prompt_logprobs": [None, *entries]}]}

    return app


def sglang_app(diary: Diary, *, success: bool = True) -> FastAPI:
    """SGLang; with ``success`` False it answers 200 and says that it could not load."""
    app = FastAPI()
    state: dict[str, Any] = {"version": "default"}

    @app.get("/health")
    async def health() -> PlainTextResponse:
        return PlainTextResponse("")

    @app.post("/pause_generation")
    async def pause_generation(body: dict[str, Any]) -> PlainTextResponse:
        diary.append(("/pause_generation", body["mode"]))
        return PlainTextResponse("Generation paused successfully.\n")

    @app.post("/continue_generation")
    async def continue_generation() -> dict[str, Any]:
        diary.append(("/continue_generation", None))
        return {"status": "ok"}

    @app.post("/update_weights_from_disk")
    async def update_weights_from_disk(body: dict[str, Any]) -> dict[str, Any]:
        diary.append(("/update_weights_from_disk", body["model_path"]))
        if success:
            state["version"] = body["weight_version"]
        return {"success": success, "message": "shape mismatch"}

    @app.post("/update_weight_version")
    async def update_weight_version(body: dict[str, Any]) -> dict[str, Any]:
        state["version"] = body["new_version"]
        return {"success": True}

    @app.get("/server_info")
    async def server_info() -> dict[str, Any]:
        return {"weight_version": state["version"]}

    @app.post("/generate")
    async def generate(body: dict[str, Any]) -> dict[str, Any]:
        tokens = body.get("input_ids", [1, 2, 3])
        entries = [[None if i == 0 else -t / 10, t, None] for i, t in enumerate(tokens)]
        return {"text": "", "meta_info": {"input_token_logprobs": entries}}

    return app
