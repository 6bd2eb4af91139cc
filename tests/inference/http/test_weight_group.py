"""Weights by broadcast from a trainer."""

from __future__ import annotations

import threading
import time

import httpx
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import TCPStore

from atroposlib.errors import WeightsError
from atroposlib.inference.http.app import create_app
from atroposlib.inference.http.protocol import InitWeightsGroup, UpdateFromGroup
from atroposlib.inference.http.weight_group import WeightGroup
from atroposlib.utils.models.process_group import GroupSpec, broadcast, join_group
from tests.inference.helpers import WAIT_S, fresh_logprobs, generate, request

EXACT = 1e-4


class Trainer:
    """Rank 0 of a group of two, made by torch without the project."""

    def __init__(self):
        self.store = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
        self.members = None

    def body(self, **more):
        meeting = {"master_address": "127.0.0.1", "master_port": self.store.port}
        ranks = {"rank_offset": 1, "world_size": 2, "backend": "gloo", "timeout_s": 60}
        return {**meeting, **ranks, "group_name": "g", **more}

    def join(self):
        group = GroupSpec("127.0.0.1", self.store.port, 2, "gloo", "g", 60.0)
        self.members = join_group(self.store, group, 0)

    def send(self, *tensors):
        for tensor in tensors:
            broadcast(self.members, tensor).wait()


@pytest.fixture
def trainer():
    return Trainer()


def in_thread(action):
    thread = threading.Thread(target=action)
    thread.start()
    return thread


async def test_a_broadcast_changes_the_weights_with_its_last_message_only(
    engine, other_dir, other_reference, trainer
):
    tensors = load_file(other_dir / "model.safetensors")
    names = sorted(tensors)
    transport = httpx.ASGITransport(app=create_app(engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
        joining = in_thread(trainer.join)
        reply = await http.post("/init_weights_update_group", json=trainer.body())
        joining.join(WAIT_S)
        assert reply.json()["success"] is True

        async def update(some, **more):
            sending = in_thread(lambda: trainer.send(*(tensors[name] for name in some)))
            shapes = [list(tensors[name].shape) for name in some]
            body = {"names": some, "dtypes": ["float32"] * len(some), "shapes": shapes}
            path = "/update_weights_from_distributed"
            answer = await http.post(path, json={**body, "group_name": "g", **more})
            sending.join(WAIT_S)
            return answer.json()

        await update(names[:3], final=False)
        assert engine.weight_version == 0
        assert (await update(names[3:], weight_version=4))["weight_version"] == 4
        (result,) = generate(engine, request([5, 6, 7], max_tokens=6))
        fresh = fresh_logprobs(other_reference, [5, 6, 7], result.outputs[0].tokens)
        assert (fresh - torch.tensor(result.outputs[0].logprobs)).abs().max() < EXACT

        # Part of the weights, sent as if it were all: refused after it came.
        refused = await update(names[:1], weight_version=5)
        assert refused["success"] is False and "lack" in refused["message"]
        assert engine.weight_version == 4
        left = await http.post("/destroy_weights_update_group", json={"group_name": "g"})
        assert left.json()["success"] is True


async def test_mismatched_weights_are_rejected_before_any_tensor_is_received(engine):
    transport = httpx.ASGITransport(app=create_app(engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:

        async def update(**body):
            whole = {"names": ["x"], "dtypes": ["float32"], "shapes": [[2]], **body}
            return await http.post("/update_weights_from_distributed", json=whole)

        assert "no x" in (await update()).json()["message"]
        norm = await update(names=["model.norm.weight"])
        assert "has shape (2,)" in norm.json()["message"]
        fits = await update(names=["model.norm.weight"], shapes=[[128]])
        assert fits.status_code == 400 and "not in a group" in fits.text
        assert (await update(shapes=[])).status_code == 400


def test_a_trainer_that_dies_in_a_broadcast_leaves_the_old_weights(engine, trainer):
    group = WeightGroup()
    joining = in_thread(trainer.join)
    group.join(InitWeightsGroup(**trainer.body()), torch.device("cpu"))
    joining.join(WAIT_S)
    failures = []

    def receive():
        body = UpdateFromGroup(
            names=["a", "b"], dtypes=["float32"] * 2, shapes=[[2], [2]], group_name="g"
        )
        try:
            group.receive(body)
        except WeightsError as error:
            failures.append(str(error))

    receiving = in_thread(receive)
    trainer.send(torch.ones(2))
    trainer.members.abort()
    trainer.members = None
    receiving.join(WAIT_S)
    assert failures and "did not arrive" in failures[0]
    group.leave()


def test_a_group_without_a_trainer_ends_at_its_timeout(trainer):
    started = time.monotonic()
    body = InitWeightsGroup(**trainer.body(timeout_s=0.5))
    with pytest.raises(WeightsError, match="no group at 127.0.0.1"):
        WeightGroup().join(body, torch.device("cpu"))
    assert time.monotonic() - started < WAIT_S
