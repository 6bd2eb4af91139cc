"""Pause, resume and new weights, under the names SGLang and vLLM gave them.

Commands run on the engine thread between two steps; the threadpool only waits for them,
so the event loop goes on answering /health meanwhile.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from fastapi import APIRouter, Query

from atroposlib.errors import InferenceRefused, WeightsError
from atroposlib.inference.engine import PauseMode
from atroposlib.inference.protocol import CollectiveRpc, UpdateWeights, WeightVersion
from atroposlib.inference.replies import Json, JsonResponse
from atroposlib.inference.service import InferenceService


def router(service: InferenceService) -> APIRouter:
    routes = APIRouter()
    engine = service.engine

    @routes.post("/pause")
    def pause(
        mode: PauseMode = PauseMode.WAIT, timeout_s: float = Query(60.0, gt=0, le=3600)
    ) -> Json:
        engine.pause(mode, timeout_s)
        return {"status": "paused", "mode": mode.value, "running": engine.num_running}

    @routes.post("/resume")
    def resume() -> Json:
        engine.resume()
        return {"status": "resumed"}

    @routes.get("/is_paused")
    async def is_paused() -> Json:
        return {"is_paused": engine.is_paused, "state": engine.state.value}

    @routes.post("/update_weights_from_disk")
    def update_weights_from_disk(body: UpdateWeights) -> JsonResponse:
        try:
            count = engine.update_weights(body.model_path, body.weight_version)
        except WeightsError as error:
            message = f"weights unchanged, still version {engine.weight_version}: {error}"
            return JsonResponse({"success": False, "message": message}, status_code=400)
        version = engine.weight_version
        message = f"{count} tensors loaded, weight version {version}"
        return JsonResponse({"success": True, "message": message, "weight_version": version})

    @routes.post("/collective_rpc")
    def collective_rpc(body: CollectiveRpc) -> Json:
        directory = body.kwargs.get("weights_path", service.served.path)
        if not isinstance(directory, str) or not Path(directory).is_dir():
            raise InferenceRefused(400, f"weights_path {directory!r} is not a directory")
        engine.update_weights(directory)
        return {"results": [None]}

    @routes.post("/update_weight_version")
    def update_weight_version(body: WeightVersion) -> Json:
        engine.set_weight_version(body.weight_version)
        return {"success": True, "weight_version": body.weight_version}

    @routes.get("/weight_info")
    async def weight_info() -> Json:
        return {"weight_version": engine.weight_version}

    @routes.get("/server_info")
    async def server_info() -> Json:
        served, totals = service.served, asdict(engine.counters)
        return {
            "model": served.name,
            "model_path": served.path,
            "engine": "atropos-local",
            "weight_version": engine.weight_version,
            "paused": engine.is_paused,
            "state": engine.state.value,
            "running": engine.num_running,
            "waiting": engine.num_waiting,
            "max_model_len": served.max_model_len,
            "max_batch": engine.limits.max_batch,
            "kv_budget_tokens": engine.limits.kv_budget_tokens,
            "device": str(served.device),
            "dtype": str(served.dtype).removeprefix("torch."),
            **{f"{name}_total": value for name, value in totals.items()},
        }

    return routes
