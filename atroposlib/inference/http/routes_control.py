"""Routes that pause the server, describe it and replace its weights.

The weight routes have the names of SGLang and vLLM. Each either replaces every tensor and sets
the new version, or changes nothing and returns the reason (400, ``success`` false). Requests are
answered while weights travel; tensors are copied between two steps of the engine.

Only the threadpool waits for commands of the engine thread: the event loop answers /health.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query

from atroposlib.errors import InferenceRefused, WeightsError
from atroposlib.inference.engine.engine import Engine, PauseMode
from atroposlib.inference.engine.weights import copy_tensors, load_shared, verify_shapes
from atroposlib.inference.http.protocol import WEIGHTS_GROUP, InitWeightsGroup, UpdateFromGroup
from atroposlib.inference.http.responses import Json, JsonResponse
from atroposlib.inference.http.service import InferenceService
from atroposlib.inference.http.weight_group import WeightGroup
from atroposlib.utils.models import node_copy
from atroposlib.utils.models.process_group import gpu_uuid
from atroposlib.utils.models.weight_folders import require_weight_folder
from atroposlib.wire.numbers import Int64

# Fields of a JSON object.
Text = Annotated[str, Body(embed=True)]
Number = Annotated[Int64, Body(embed=True)]
NumberOrNone = Annotated[Int64 | None, Body()]


def control_router(service: InferenceService) -> APIRouter:
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
        if service.earlier is not None:  # accounts compare tokens of the whole server
            totals["generated_tokens"] += service.earlier.generated_tokens
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
            "gpu": gpu_uuid(served.device),
            "dtype": str(served.dtype).removeprefix("torch."),
            **{f"{name}_total": value for name, value in totals.items()},
        }

    return routes


def weights_router(service: InferenceService) -> APIRouter:
    routes = APIRouter()
    engine = service.engine

    @routes.post("/update_weights_from_disk")
    def update_weights_from_disk(
        model_path: Text, weight_version: NumberOrNone = None
    ) -> JsonResponse:
        _require_of_run(model_path)
        return _change_weights(
            engine, lambda: engine.update_weights(model_path, weight_version)
        )

    @routes.post("/copy_to_node")
    def copy_to_node(path: Text) -> JsonResponse:
        try:
            copy, copied_bytes = node_copy.copy_once(path)
        except OSError as error:
            return JsonResponse({"success": False, "message": str(error)}, status_code=400)
        return JsonResponse({"success": True, "path": copy, "copied_bytes": copied_bytes})

    @routes.post("/update_weights_from_shared_memory")
    def update_weights_from_shared_memory(path: Text, weight_version: Number) -> JsonResponse:
        load = partial(load_shared, path=path, version=weight_version)
        return _change_weights(engine, lambda: engine.replace_weights(load, weight_version))

    @routes.post("/v1/load_lora_adapter")
    def load_lora_adapter(
        lora_name: Text, lora_path: Text, weight_version: NumberOrNone = None
    ) -> JsonResponse:
        _require_of_run(lora_path)
        return _change_weights(
            engine, lambda: engine.load_adapter(lora_path, lora_name, weight_version)
        )

    @routes.post("/v1/unload_lora_adapter")
    def unload_lora_adapter(
        lora_name: Text, weight_version: NumberOrNone = None
    ) -> JsonResponse:
        return _change_weights(
            engine, lambda: engine.unload_adapter(lora_name, weight_version)
        )

    @routes.post("/collective_rpc")
    def collective_rpc(
        method: Annotated[Literal["reload_weights"], Body()],
        kwargs: Annotated[dict[str, Any], Body()] = {},
    ) -> Json:
        directory = kwargs.get("weights_path", service.served.path)
        if not isinstance(directory, str) or not Path(directory).is_dir():
            raise InferenceRefused(400, f"weights_path {directory!r} is not a directory")
        if directory != service.served.path:
            _require_of_run(directory)
        engine.update_weights(directory)
        return {"results": [None]}

    @routes.post("/update_weight_version")
    def update_weight_version(weight_version: Number) -> Json:
        engine.set_weight_version(weight_version)
        return {"success": True, "weight_version": weight_version}

    @routes.get("/weight_info")
    async def weight_info() -> Json:
        return {"weight_version": engine.weight_version}

    return routes


def group_router(service: InferenceService, group: WeightGroup) -> APIRouter:
    """Weights that a trainer sends through a process group."""
    routes = APIRouter()
    engine = service.engine

    @routes.post("/init_weights_update_group")
    def init_weights_update_group(body: InitWeightsGroup) -> JsonResponse:
        try:
            group.join(body, service.served.device)
        except WeightsError as error:
            return JsonResponse({"success": False, "message": str(error)}, status_code=400)
        return JsonResponse({"success": True, "message": f"in group {body.group_name}"})

    @routes.post("/update_weights_from_distributed")
    def update_weights_from_distributed(body: UpdateFromGroup) -> JsonResponse:
        engine.stay_paused()  # part of the fleet may change before this server does

        def receive() -> int:
            shapes = {name: tuple(shape) for name, shape in zip(body.names, body.shapes)}
            verify_shapes(service.served.model, shapes, complete=False)
            tensors = group.receive(body)
            if tensors is None:
                return 0
            load = partial(copy_tensors, tensors=tensors)
            return engine.replace_weights(load, body.weight_version)

        return _change_weights(engine, receive)

    @routes.post("/destroy_weights_update_group")
    def destroy_weights_update_group(group_name: Text = WEIGHTS_GROUP) -> Json:
        group.leave(group_name)
        return {"success": True, "message": f"not in group {group_name}"}

    return routes


def _require_of_run(directory: str) -> None:
    try:
        require_weight_folder(directory)
    except PermissionError as error:
        raise InferenceRefused(403, str(error)) from error


def _change_weights(engine: Engine, change: Callable[[], int]) -> JsonResponse:
    """The reply to ``change``, which returns the number of replaced tensors."""
    try:
        count = change()
    except WeightsError as error:
        message = f"weights unchanged, still version {engine.weight_version}: {error}"
        return JsonResponse({"success": False, "message": message}, status_code=400)
    version = engine.weight_version
    message = f"{count} tensors loaded, weight version {version}"
    return JsonResponse({"success": True, "message": message, "weight_version": version})
