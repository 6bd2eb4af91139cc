"""Pause, resume and what the server is doing; new weights are in ``routes_weights``.

Commands run on the engine thread between two steps; the threadpool only waits for them,
so the event loop goes on answering /health meanwhile.
"""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Query

from atroposlib.inference.engine.engine import PauseMode
from atroposlib.inference.http.replies import Json
from atroposlib.inference.http.service import InferenceService


def router(service: InferenceService) -> APIRouter:
    routes = APIRouter()
    engine = service.engine

    @routes.post("/pause")
    def pause(
        mode: PauseMode = PauseMode.WAIT,
        timeout_s: float = Query(60.0, gt=0, le=3600),
        resume_after_s: float | None = Query(None, gt=0, le=86_400),
    ) -> Json:
        engine.pause(mode, timeout_s, resume_after_s)
        return {"status": "paused", "mode": mode.value, "running": engine.num_running}

    @routes.post("/resume")
    def resume() -> Json:
        engine.resume()
        return {"status": "resumed"}

    @routes.get("/is_paused")
    async def is_paused() -> Json:
        return {"is_paused": engine.is_paused, "state": engine.state.value}

    @routes.get("/server_info")
    async def server_info() -> Json:
        served, totals = service.served, asdict(engine.counters)
        return {
            "model": served.name,
            "model_path": served.path,
            "engine": "atropos-local",
            "weight_version": engine.weight_version,
            "adapter": engine.adapter,
            "paused": engine.is_paused,
            "resumes_in_s": engine.resumes_in_s,
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
