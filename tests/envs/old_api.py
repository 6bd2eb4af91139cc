"""The calls of the original rollout API that an environment makes, with its answers."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


class OldApi:
    """A run that has started; ``groups`` are those that came, as JSON."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.groups: list[dict[str, Any]] = []
        self.app = Starlette(
            routes=[
                Route("/register-env", self.register_env, methods=["POST"]),
                Route("/disconnect-env", self.disconnect_env, methods=["POST"]),
                Route("/info", self.info),
                Route("/status-env", self.status_env),
                Route("/scored_data_list", self.scored_data_list, methods=["POST"]),
            ]
        )

    async def register_env(self, request: Request) -> JSONResponse:
        run = {"checkpoint_dir": "", "starting_step": 0, "checkpoint_interval": 0}
        me = {"status": "success", "env_id": 0, "wandb_name": "toy_0", "num_steps": 2}
        return JSONResponse(me | run)

    async def disconnect_env(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "success"})

    async def info(self, request: Request) -> JSONResponse:
        return JSONResponse({"batch_size": self.batch_size, "max_token_len": 512})

    async def status_env(self, request: Request) -> JSONResponse:
        assert (await request.json())["env_id"] == 0  # a GET with a body
        queue = {"queue_size": len(self.groups), "self_queue_size": len(self.groups)}
        more = {"unallocated_fraction": 1.0, "max_group_size": 2, "env_weight": 1.0}
        return JSONResponse({"current_step": 0} | queue | more)

    async def scored_data_list(self, request: Request) -> JSONResponse:
        groups = await request.json()
        self.groups += groups
        return JSONResponse({"status": "received", "groups_processed": len(groups)})
