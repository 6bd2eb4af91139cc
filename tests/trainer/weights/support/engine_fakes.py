"""Fake inference servers with the routes of vLLM and SGLang, which record their requests."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse

from atroposlib.utils.models.process_group import GroupSpec
from example_trainer.weights.engines import Bucket
from example_trainer.weights.vllm_worker import NAME

Diary = list[tuple[str, Any]]
LORA_ROUTES = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
GROUP = GroupSpec("127.0.0.1", 5, 3, "nccl", "weights", 9.0)
BUCKETS = [
    Bucket(["a", "b"], ["bfloat16", "bfloat16"], [[2], [3]]),
    Bucket(["c"], ["float32"], [[4, 5]]),
]


def vllm_app(
    diary: Diary,
    *,
    fail: str | None = None,
    keeps_version: bool = False,
    extension: bool = False,
    lora: bool = False,
    transfer: bool = False,
    bracketed: bool = True,
    results: tuple[str, ...] = (),
) -> FastAPI:
    """Build vLLM in development mode; ``fail`` is a route that answers 500.

    Args:
        extension: started with our worker extension.
        lora: started with adapters that can be loaded.
        results: what the workers answer to ``copy_to_node``.
        transfer: started with a weight transfer engine; ``bracketed`` as from 0.17 on.
    """
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

    def notes(route: str) -> None:
        async def handler(body: dict[str, Any]) -> JSONResponse:
            return note(route, body)

        app.post(route)(handler)

    @app.post("/pause")
    async def pause(mode: str) -> JSONResponse:
        return note("/pause", mode)

    @app.post("/resume")
    async def resume() -> JSONResponse:
        return note("/resume")

    @app.post("/collective_rpc")
    async def collective_rpc(body: dict[str, Any]) -> JSONResponse:
        if body["method"] == "weight_worker":  # a question, asked at any time
            known = JSONResponse({"results": [NAME]})
            return known if extension else JSONResponse({"error": "no such method"}, 500)
        copies = body["method"] == "copy_to_node"
        return JSONResponse({"results": results}) if copies else note("/collective_rpc", body)

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

    _vllm_models(app, diary)
    _tokenizes(app)
    for route in LORA_ROUTES if lora else ():
        notes(route)
    if transfer:
        app.get("/get_world_size")(lambda: {"world_size": 2})
        bracket = ["/start_weight_update", "/finish_weight_update"] if bracketed else []
        for route in ("/init_weight_transfer_engine", "/update_weights", *bracket):
            notes(route)
    return app


def _tokenizes(app: FastAPI) -> None:
    @app.post("/tokenize")
    async def tokenize(body: dict[str, Any]) -> dict[str, Any]:
        return {"tokens": [1, 2, 3]}


def _vllm_models(app: FastAPI, diary: Diary) -> None:
    """Add scoring and sampling; requests for a model other than the base are recorded."""

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        loaded: dict[str, None] = {"served": None}
        for route, entry in diary:
            if route.endswith("load_lora_adapter"):
                loaded[entry["lora_name"]] = None
            if route.endswith("unload_lora_adapter"):
                del loaded[entry["lora_name"]]
        return {"data": [{"id": name} for name in loaded]}

    @app.post("/v1/completions")
    async def completions(body: dict[str, Any]) -> dict[str, Any]:
        if body["model"] != "served":
            diary.append(("model", body["model"]))
        if body.get("return_token_ids"):
            sampled = {"token_ids": [7, 8], "logprobs": {"token_logprobs": [-0.7, -0.8]}}
            return {"choices": [sampled]}
        entries = [{str(t): {"logprob": -t / 10, "rank": 1}} for t in body["prompt"][1:]]
        return {"choices": [{"prompt_logprobs": [None, *entries]}]}


def sglang_app(
    diary: Diary, *, success: bool = True, lora: bool = False, ranks: int = 1, **info: Any
) -> FastAPI:
    """Build SGLang; with ``success`` False it answers 200 with a load failure in the body."""
    app = FastAPI()
    state: dict[str, Any] = {"version": "default"}
    routes = ["/init_weights_update_group", "/destroy_weights_update_group"]
    routes += ["/load_lora_adapter", "/unload_lora_adapter"] if lora else []

    def notes(route: str) -> None:
        async def handler(body: dict[str, Any]) -> dict[str, Any]:
            diary.append((route, body))
            return {"success": success, "message": "shape mismatch"}

        app.post(route)(handler)

    _tokenizes(app)
    _vllm_models(app, diary)
    for route in routes:
        notes(route)

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

    @app.post("/flush_cache")
    async def flush_cache() -> PlainTextResponse:
        diary.append(("/flush_cache", None))
        return PlainTextResponse("Cache flushed.\n")

    @app.post("/update_weights_from_disk")
    async def update_weights_from_disk(body: dict[str, Any]) -> dict[str, Any]:
        diary.append(("/update_weights_from_disk", body["model_path"]))
        if success:
            state["version"] = body["weight_version"]
        return {"success": success, "message": "shape mismatch"}

    @app.post("/update_weights_from_distributed")
    async def update_weights_from_distributed(body: dict[str, Any]) -> dict[str, Any]:
        diary.append(("/update_weights_from_distributed", body))
        state["version"] = body.get("weight_version", state["version"])
        return {"success": success, "message": "shape mismatch"}

    @app.post("/update_weight_version")
    async def update_weight_version(body: dict[str, Any]) -> dict[str, Any]:
        state["version"] = body["new_version"]
        return {"success": True}

    @app.get("/server_info")
    async def server_info() -> dict[str, Any]:
        return {"weight_version": state["version"], "tp_size": ranks, "dtype": "auto", **info}

    @app.post("/generate")
    async def generate(body: dict[str, Any]) -> dict[str, Any]:
        if "lora_path" in body:
            diary.append(("lora_path", body["lora_path"]))
        tokens = body.get("input_ids", [1, 2, 3])
        entries = [[None if i == 0 else -t / 10, t, None] for i, t in enumerate(tokens)]
        sampled = [[-0.7, 7, None], [-0.8, 8, None]]
        meta = {"input_token_logprobs": entries, "output_token_logprobs": sampled}
        return {"text": "", "meta_info": meta}

    return app
