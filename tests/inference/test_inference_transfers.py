"""Weights that come by adapter, shared memory or broadcast, and pauses that end themselves."""

from __future__ import annotations

import json
import shutil
import threading
import time
from concurrent.futures import TimeoutError as FutureTimeout  # not the builtin in 3.10
from datetime import timedelta

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed import TCPStore

from atroposlib.errors import WeightsError
from atroposlib.inference.engine.engine import EngineState, PauseMode
from atroposlib.inference.engine.model import load_model
from atroposlib.inference.http.app import create_app
from atroposlib.inference.http.process_group import WeightGroups, join
from atroposlib.inference.http.protocol import InitWeightsGroup, UpdateFromGroup
from atroposlib.inference.weights.load import load_shared
from tests.inference.helpers import WAIT_S, fresh_logprobs, generate, request

EXACT = 1e-4
LAYER = "model.layers.0.self_attn.q_proj"
SETTINGS = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none"}


@pytest.fixture
def adapter(tmp_path, reference):
    """Write an adapter of one layer; returns its directory and what it adds."""

    def write(name="adapter", settings=None, tensors=None, rank=4):
        directory = tmp_path / name
        directory.mkdir()
        generator = torch.Generator().manual_seed(len(name))
        a = torch.randn(rank, 128, generator=generator)
        b = torch.randn(128, rank, generator=generator)
        key = f"base_model.model.{LAYER}"
        own = {f"{key}.lora_A.weight": a, f"{key}.lora_B.weight": b}
        save_file(
            own if tensors is None else tensors(own), directory / "adapter_model.safetensors"
        )
        (directory / "adapter_config.json").write_text(
            json.dumps({**SETTINGS, **(settings or {})})
        )
        return str(directory), b @ a

    return write


def weight_of(engine):
    return engine.served.model.get_submodule(LAYER).weight


def test_an_adapter_is_added_to_the_weights_and_leaves_them_as_they_were(engine, adapter):
    before = weight_of(engine).clone()
    first, added = adapter("first")
    assert engine.load_adapter(first, "policy-v1", 1) == 1
    assert torch.allclose(weight_of(engine), before + 2 * added, atol=1e-5)
    assert (engine.adapter, engine.weight_version) == ("policy-v1", 1)
    second, other = adapter("second one")
    engine.load_adapter(second, "policy-v2", None)
    assert torch.allclose(weight_of(engine), before + 2 * other, atol=1e-5)
    assert engine.weight_version == 2
    engine.unload_adapter("policy-v2", 3)
    assert torch.equal(weight_of(engine), before) and engine.adapter is None


def test_an_adapter_goes_on_top_of_weights_that_were_loaded_after_another(
    engine, adapter, other_dir
):
    first, added = adapter()
    engine.load_adapter(first, "policy-v1", 1)
    engine.update_weights(str(other_dir), 2)
    assert engine.adapter is None
    base = weight_of(engine).clone()
    engine.load_adapter(first, "policy-v3", 3)
    assert torch.allclose(weight_of(engine), base + 2 * added, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"q_proj": 16}}, 4.0),
        ({"alpha_pattern": {"v_proj": 16}}, 2.0),
    ],
)
def test_the_scale_of_an_adapter_is_pefts(engine, adapter, settings, scale):
    before = weight_of(engine).clone()
    directory, added = adapter(settings=settings)
    engine.load_adapter(directory, "a", 1)
    assert torch.allclose(weight_of(engine), before + scale * added, atol=1e-5)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"settings": {"use_dora": True}}, "use_dora"),
        ({"settings": {"bias": "all"}}, "bias"),
        ({"settings": {"modules_to_save": ["lm_head"]}}, "modules_to_save"),
        ({"tensors": lambda own: dict(list(own.items())[:1])}, "one half"),
        ({"tensors": lambda own: {"base_model.model.x.lora_A.weight": torch.ones(2, 2)}}, "x"),
        (
            {"tensors": lambda own: {k: v[:, :3].contiguous() for k, v in own.items()}},
            "whose weight",
        ),
        ({"tensors": lambda own: {k: v * torch.nan for k, v in own.items()}}, "not finite"),
        ({"tensors": lambda own: {}}, "changes nothing"),
    ],
)
def test_an_adapter_that_cannot_be_merged_changes_nothing(engine, adapter, how, says):
    good, added = adapter("good")
    engine.load_adapter(good, "policy-v1", 1)
    before = weight_of(engine).clone()
    with pytest.raises(WeightsError, match=says):
        engine.load_adapter(adapter("bad", **how)[0], "policy-v2", 2)
    assert torch.equal(weight_of(engine), before)
    assert (engine.adapter, engine.weight_version) == ("policy-v1", 1)


def test_what_is_no_adapter_and_what_is_not_loaded_are_named(engine, tmp_path):
    with pytest.raises(WeightsError, match="is not a LoRA adapter"):
        engine.load_adapter(str(tmp_path), "a", 1)
    with pytest.raises(WeightsError, match="'b' is not loaded"):
        engine.unload_adapter("b", 1)


def test_a_file_of_someone_else_or_that_is_a_link_is_refused(model_dir, tmp_path):
    served = load_model(str(model_dir))
    path = tmp_path / "weights.safetensors"
    shutil.copy(model_dir / "model.safetensors", path)
    path.chmod(0o600)
    with pytest.raises(WeightsError, match="'no version', not version 1"):
        load_shared(served.model, str(path), 1)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(WeightsError, match="nobody else can reach"):
        load_shared(served.model, str(link), 1)
    with pytest.raises(WeightsError, match="cannot be read"):
        load_shared(served.model, str(tmp_path / "absent"), 1)


# --- pauses with a bound -------------------------------------------------------------


def test_a_pause_whose_owner_does_not_come_back_ends_by_itself(engine):
    engine.pause(PauseMode.WAIT, resume_after_s=0.2)
    assert engine.state is EngineState.PAUSED and 0 < engine.resumes_in_s <= 0.2
    generate(engine, request([5, 6], max_tokens=1))  # answered when it is over
    assert engine.state is EngineState.RUNNING
    assert engine.resumes_in_s is None and engine.counters.forgotten_pauses == 1


@pytest.mark.parametrize("lift", ["pause", "stay_paused", "failed load", "new weights"])
def test_a_pause_stays_once_its_bound_is_lifted_or_weights_were_touched(
    engine, other_dir, tmp_path, lift
):
    engine.pause(PauseMode.WAIT, resume_after_s=0.3)
    if lift == "pause":
        engine.pause(PauseMode.WAIT)
    elif lift == "stay_paused":
        engine.stay_paused()
    elif lift == "failed load":
        with pytest.raises(WeightsError):
            engine.update_weights(str(tmp_path / "absent"))
    else:
        engine.update_weights(str(other_dir))
    assert engine.resumes_in_s is None
    waiting = request([5, 6], max_tokens=1)
    engine.submit(waiting)
    with pytest.raises(FutureTimeout):
        waiting.future.result(0.35)
    assert engine.is_paused
    engine.resume()
    waiting.future.result(WAIT_S)


# --- broadcast -----------------------------------------------------------------------


class Trainer:
    """Rank 0 of a group of two, made by torch alone."""

    def __init__(self):
        self.store = TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
        self.members = None

    def body(self, **more):
        meeting = {"master_address": "127.0.0.1", "master_port": self.store.port}
        ranks = {"rank_offset": 1, "world_size": 2, "backend": "gloo", "timeout_s": 20}
        return {**meeting, **ranks, "group_name": "g", **more}

    def join(self):
        body = InitWeightsGroup(**self.body()).model_copy(update={"rank_offset": 0})
        self.members = join(self.store, body, timedelta(seconds=20))

    def send(self, *tensors):
        for tensor in tensors:
            options = torch.distributed.BroadcastOptions()
            options.rootRank = options.rootTensor = 0
            self.members.broadcast([tensor], options).wait()


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


async def test_what_does_not_fit_is_refused_before_anything_is_received(engine):
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
    groups = WeightGroups()
    joining = in_thread(trainer.join)
    groups.join(InitWeightsGroup(**trainer.body()), torch.device("cpu"))
    joining.join(WAIT_S)
    failures = []

    def receive():
        body = UpdateFromGroup(
            names=["a", "b"], dtypes=["float32"] * 2, shapes=[[2], [2]], group_name="g"
        )
        try:
            groups.receive(body)
        except WeightsError as error:
            failures.append(str(error))

    receiving = in_thread(receive)
    trainer.send(torch.ones(2))
    trainer.members.abort()
    trainer.members = None
    receiving.join(WAIT_S)
    assert failures and "did not arrive" in failures[0]
    groups.close()


def test_a_place_where_nobody_is_ends_with_the_bound(trainer):
    started = time.monotonic()
    body = InitWeightsGroup(**trainer.body(timeout_s=0.5))
    with pytest.raises(WeightsError, match="no group at 127.0.0.1"):
        WeightGroups().join(body, torch.device("cpu"))
    assert time.monotonic() - started < WAIT_S
