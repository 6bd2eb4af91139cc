"""HTTP of the run: who takes part, what is being waited for."""

from __future__ import annotations

import uuid

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from atroposlib.api.replies import of_json
from atroposlib.api.service import RolloutService
from atroposlib.errors import ConfigError, UnknownEnv
from atroposlib.wire import (
    EnvIdentifier,
    EnvRegistered,
    Heartbeat,
    PolicyVersion,
    Registered,
    RegisterEnv,
    Registration,
)


def run_routes(service: RolloutService) -> APIRouter:
    """Routes that trainers, environments and tools use to find each other."""
    router = APIRouter()
    _trainer_routes(router, service)
    _env_routes(router, service)
    _status_routes(router, service)
    return router


def _trainer_routes(router: APIRouter, service: RolloutService) -> None:
    @router.post("/register")
    async def register(body: Registration) -> Response:
        run = await service.register(body)
        return of_json(
            Registered(uuid=uuid.uuid4().int, generation=run.generation, run_id=run.run_id)
        )

    @router.post("/policy_version")
    async def policy_version(body: PolicyVersion) -> Response:
        return of_json({"policy_version": await service.announce_version(body.version)})

    # The original wipes on GET, and its tools call it so.
    @router.get("/reset_data")
    @router.post("/reset_data")
    async def reset_data() -> Response:
        await service.reset()
        return PlainTextResponse("Reset successful")


def _env_routes(router: APIRouter, service: RolloutService) -> None:
    @router.post("/register-env")
    async def register_env(body: RegisterEnv) -> Response:
        joined = await service.register_env(body)
        if joined is None:
            return of_json({"status": "wait for trainer to start"})
        entry, current_step = joined
        trainer = service.run.registration
        return of_json(
            EnvRegistered(
                env_id=entry.env_id,
                run_id=service.run.run_id,
                wandb_name=entry.wandb_name,
                checkpoint_dir=trainer.checkpoint_dir,
                starting_step=current_step,
                checkpoint_interval=trainer.save_checkpoint_interval,
                num_steps=trainer.num_steps,
            )
        )

    @router.post("/disconnect-env")
    async def disconnect_env(body: EnvIdentifier) -> Response:
        try:
            await service.disconnect_env(body)
        except UnknownEnv as error:  # old clients read the status, not the code
            return of_json({"status": "failure", "error": str(error)})
        return of_json({"status": "success"})

    # A JSON body on a GET is the original's form; not every client can send one.
    @router.get("/status-env")
    @router.post("/status-env")
    async def status_env(request: Request) -> Response:
        return of_json(await service.env_status(await _who(request)))


async def _who(request: Request) -> EnvIdentifier:
    body = await request.body()
    try:
        if body:
            return EnvIdentifier.model_validate_json(body)
        return EnvIdentifier.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise ConfigError("env_id: an integer, in a JSON body or in the query") from error


def _status_routes(router: APIRouter, service: RolloutService) -> None:
    @router.get("/")
    async def root() -> Response:
        return of_json({"message": "AtroposLib API"})

    @router.get("/health")
    async def health() -> Response:
        return of_json({"status": "ok"})

    @router.get("/wandb_info")
    async def wandb_info() -> Response:
        trainer = service.run.trainer
        return of_json(
            {
                "group": trainer.wandb_group if trainer else None,
                "project": trainer.wandb_project if trainer else None,
            }
        )

    @router.get("/info")
    async def info() -> Response:
        trainer = service.run.trainer
        return of_json(
            {
                "batch_size": trainer.batch_size if trainer else -1,
                "max_token_len": trainer.max_token_len if trainer else -1,
            }
        )

    @router.get("/status")
    async def status() -> Response:
        return of_json(await service.status())

    @router.post("/heartbeat")
    async def heartbeat(body: Heartbeat) -> Response:
        service.heartbeat(body)
        return of_json({"status": "ok"})
