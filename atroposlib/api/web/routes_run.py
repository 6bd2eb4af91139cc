"""HTTP of the run: registration, weights' version, status and heartbeats."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from atroposlib import wire
from atroposlib.api.guards.auth import caller_of, require_name, require_role
from atroposlib.api.guards.busy import retry_after
from atroposlib.api.run.service import RolloutService
from atroposlib.api.web.openapi import ENV_IDENTIFIER_BODY, refusals
from atroposlib.api.web.routes import BytesRoute, JsonRoute, of_json
from atroposlib.errors import ConfigError, UnknownEnv
from atroposlib.wire import ids
from atroposlib.wire.status import (
    AccountReport,
)

WAITING_POLLS_PER_S = 50.0  # polls of all environments that wait for the trainer
MAX_POLL_S = 60.0


class Wait(BaseModel):
    """Reply to /register-env before the trainer has asked for its first batch."""

    status: str = "wait for trainer to start"


class Pacing:
    """Spreads callers that wait: each gets the next free place of ``per_s`` places a second."""

    def __init__(self, per_s: float, max_s: float) -> None:
        self._per_s, self._max_s = per_s, max_s
        self._last = 0.0

    def __call__(self) -> str:
        """Seconds for Retry-After: more the more callers wait, jittered."""
        now = asyncio.get_running_loop().time()
        self._last = min(max(self._last, now) + 1 / self._per_s, now + self._max_s)
        return retry_after((self._last - now) / 2)


class Info(BaseModel):
    """Reply to /info; -1 before a trainer registers."""

    batch_size: int
    max_token_len: int


class WandbInfo(BaseModel):
    """Reply to /wandb_info; null before a trainer registers."""

    group: str | None
    project: str | None


def run_routes(service: RolloutService) -> APIRouter:
    """Routes by which trainers, environments and tools join a run and read its status."""
    router = APIRouter(tags=["run"], route_class=JsonRoute)
    _trainer_routes(router, service)
    _env_routes(router, service)
    _info_routes(router, service)
    return router


def _trainer_routes(router: APIRouter, service: RolloutService) -> None:
    @router.post("/register", response_model=wire.Registered, responses=refusals(409))
    async def register(body: wire.Registration) -> Response:
        view = await service.register(body)
        return of_json(
            wire.Registered(
                uuid=ids.source().int,
                generation=view.generation,
                run_id=view.run.run_id,
                incarnation=view.run.incarnation,
                starts=list(view.run.starts),
            )
        )

    @router.post("/policy_version", responses=refusals(409))
    async def policy_version(body: wire.PolicyVersion) -> Response:
        return of_json({"policy_version": await service.announce_version(body)})

    # The original wipes on GET, and its tools call it so.
    @router.get("/reset_data", response_class=PlainTextResponse, responses=refusals())
    @router.post("/reset_data", response_class=PlainTextResponse, responses=refusals())
    async def reset_data() -> Response:
        await service.reset()
        return PlainTextResponse("Reset successful")


def _env_routes(router: APIRouter, service: RolloutService) -> None:
    next_poll = Pacing(WAITING_POLLS_PER_S, MAX_POLL_S)

    @router.post(
        "/register-env", response_model=wire.EnvRegistered | Wait, responses=refusals()
    )
    async def register_env(body: wire.RegisterEnv, request: Request) -> Response:
        joined = await service.register_env(body, caller_of(request))
        if joined is None:
            response = of_json(Wait())
            response.headers["retry-after"] = next_poll()
            return response
        entry, view = joined
        trainer = view.run.registration
        return of_json(
            wire.EnvRegistered(
                env_id=entry.env_id,
                run_id=view.run.run_id,
                wandb_name=entry.wandb_name,
                checkpoint_dir=trainer.checkpoint_dir,
                starting_step=await service.current_step(),
                checkpoint_interval=trainer.save_checkpoint_interval,
                num_steps=trainer.num_steps,
            )
        )

    @router.post("/disconnect-env", responses=refusals())
    async def disconnect_env(body: wire.EnvIdentifier, request: Request) -> Response:
        try:
            await service.disconnect_env(body, caller_of(request))
        except UnknownEnv as error:  # clients of the original read the status, not the code
            return of_json({"status": "failure", "error": str(error)})
        return of_json({"status": "success"})


def poll_routes(service: RolloutService) -> APIRouter:
    """The route that every environment polls many times a minute."""
    router = APIRouter(tags=["run"], route_class=BytesRoute)
    # A JSON body on a GET is the original's form; not every client can send a body.
    described: dict[str, Any] = {
        "response_model": wire.EnvStatus,
        "openapi_extra": ENV_IDENTIFIER_BODY,
        "responses": refusals(404, 409),
    }

    @router.get("/status-env", **described)
    @router.post("/status-env", **described)
    async def status_env(request: Request) -> Response:
        who = await _who(request)
        status = await service.env_status(who, caller_of(request))
        return of_json(status.model_dump(exclude_none=True))

    return router


async def _who(request: Request) -> wire.EnvIdentifier:
    body = await request.body()
    try:
        if body:
            return wire.EnvIdentifier.model_validate_json(body)
        return wire.EnvIdentifier.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise ConfigError("env_id: an integer, in a JSON body or in the query") from error


def _info_routes(router: APIRouter, service: RolloutService) -> None:
    @router.get("/", responses=refusals())
    async def root(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("ui/")
        return of_json({"message": "AtroposLib API"})

    @router.get("/wandb_info", response_model=WandbInfo, responses=refusals())
    async def wandb_info() -> Response:
        await service.context.run_cache.refresh_if_old()
        trainer = service.run.trainer
        return of_json(
            WandbInfo(
                group=trainer.wandb_group if trainer else None,
                project=trainer.wandb_project if trainer else None,
            )
        )

    @router.get("/info", response_model=Info, responses=refusals())
    async def info() -> Response:
        await service.context.run_cache.refresh_if_old()
        trainer = service.run.trainer
        return of_json(
            Info(
                batch_size=trainer.batch_size if trainer else -1,
                max_token_len=trainer.max_token_len if trainer else -1,
            )
        )

    @router.get("/status", response_model=wire.RunStatus, responses=refusals())
    async def status() -> Response:
        return of_json(await service.status())

    @router.get("/servers", response_model=wire.ServerDirectory, responses=refusals())
    async def servers() -> Response:
        return of_json(service.context.liveness.directory())

    @router.post("/steps", responses=refusals(404))
    async def steps(body: wire.StepReport, request: Request) -> Response:
        require_role(caller_of(request), body.role)
        return of_json({"kept": await service.report_step(body, caller_of(request))})

    @router.post("/account", responses=refusals(404))
    async def account(body: AccountReport, request: Request) -> Response:
        await service.report_account(body, caller_of(request))
        return of_json({"status": "ok"})

    @router.post("/heartbeat", responses=refusals())
    async def heartbeat(body: wire.Heartbeat, request: Request) -> Response:
        caller = caller_of(request)
        require_role(caller, body.role)
        peers = [
            peer for peer in service.context.liveness.participants() if peer.role != "env"
        ]
        taken = {name for peer in peers for name in (peer.name, peer.details.get("name"))}
        require_name(caller, body.name, taken)
        service.heartbeat(body)
        return of_json({"status": "ok"})
