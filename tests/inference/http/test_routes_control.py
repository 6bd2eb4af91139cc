"""Pause, resume and new weights by HTTP."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.inference.helpers import fresh_logprobs, ok


async def test_new_weights_show_in_header_body_and_info(http, other_dir, other_reference):
    reply = await http.post(
        "/update_weights_from_disk",
        json={"model_path": str(other_dir), "weight_version": 4},
    )
    assert reply.json()["success"] is True and reply.headers["X-Weight-Version"] == "4"
    sampled = await http.post(
        "/generate", json={"prompt": "abc", "logprobs": 0, "max_tokens": 4}
    )
    assert sampled.headers["X-Weight-Version"] == "4"
    body = sampled.json()
    tokens = body["token_ids"][0]
    found = [next(iter(at[0].values())) for at in body["logprobs"][0]]
    fresh = fresh_logprobs(other_reference, [5, 6, 7], tokens).tolist()
    assert found == pytest.approx(fresh, abs=1e-4)
    assert body["weight_versions"] == [[{"version": 4, "start": 0, "end": len(tokens)}]]


async def test_a_failed_reload_reports_that_the_old_weights_are_kept(http, tmp_path):
    body = {"model_path": str(tmp_path / "absent"), "weight_version": 4}
    reply = await http.post("/update_weights_from_disk", json=body)
    assert reply.status_code == 400 and reply.json()["success"] is False
    assert "weights unchanged, still version 0" in reply.json()["message"]
    assert reply.headers["X-Weight-Version"] == "0"


async def test_the_reload_routes_of_vllm_are_accepted(http, other_dir):
    kwargs = {"weights_path": str(other_dir)}
    await ok(http, "/collective_rpc", method="reload_weights", kwargs=kwargs)
    await ok(http, "/update_weight_version", weight_version=8)
    assert (await http.get("/weight_info")).json()["weight_version"] == 8
    other = await http.post("/collective_rpc", json={"method": "exec", "kwargs": {}})
    assert other.status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/update_weights_from_disk", {"model_path": "{other}", "weight_version": 4}),
        (
            "/collective_rpc",
            {"method": "reload_weights", "kwargs": {"weights_path": "{other}"}},
        ),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "{other}"}),
        ("/copy_to_node", {"path": "{other}"}),
    ],
)
async def test_a_server_of_a_run_takes_weights_of_that_run_only(
    http, other_dir, tmp_path, monkeypatch, path, body
):
    monkeypatch.setenv("ATROPOS_WEIGHTS_FROM", str(tmp_path))
    asked = json.loads(json.dumps(body).replace("{other}", str(other_dir)))
    reply = await http.post(path, json=asked)
    assert reply.status_code in (400, 403) and "ATROPOS_WEIGHTS_FROM" in reply.text
    assert (await http.get("/weight_info")).json()["weight_version"] == 0


async def test_generation_is_paused_and_resumed_over_http(http):
    assert (await http.get("/is_paused")).json()["is_paused"] is False
    assert (await http.post("/pause?mode=keep")).status_code == 200
    assert (await http.get("/is_paused")).json()["is_paused"] is True
    held = asyncio.create_task(http.post("/generate", json={"prompt": "abc", "max_tokens": 2}))
    assert (await http.get("/health")).status_code == 200  # answered while one is held
    assert not held.done()
    assert (await http.post("/resume")).status_code == 200
    assert (await held).status_code == 200
    assert (await http.post("/pause?mode=nonsense")).status_code == 400
