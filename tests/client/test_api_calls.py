"""Requests of every call: method, path, body, and the parser of the answer."""

from __future__ import annotations

import json

import httpx
import pytest

from atroposlib.client import api_calls
from atroposlib.wire import AdmissionRequest, ClaimRequest, EnvIdentifier, RegisterEnv


def test_an_admission_and_its_release_have_the_same_id():
    asked = api_calls.admit(AdmissionRequest(env_id=0, sequences=4, admission_id="a"))
    assert (asked.method, asked.path) == ("POST", "/admission")
    assert json.loads(asked.body)["admission_id"] == "a"
    ended = api_calls.release_admission("a")
    assert (ended.path, json.loads(ended.body)) == (
        "/admission/release",
        {"admission_id": "a"},
    )
    assert ended.timeout_s == api_calls.BEST_EFFORT_TIMEOUT_S


def test_the_timeout_of_a_claim_exceeds_its_wait_at_the_api():
    request = ClaimRequest(generation=1, lease_s=60.0, wait_s=5.0, claim_id="c")
    call = api_calls.claim(request, binary=True, timeout_s=60.0)
    assert (call.timeout_s, call.headers["accept"]) == (65.0, "application/x-atropos-groups")
    assert "accept" not in api_calls.claim(request, binary=False, timeout_s=1.0).headers


def test_the_path_of_a_shard_contains_its_rank():
    call = api_calls.shard(7, 1, generation=2, epoch=3, binary=False)
    assert (call.method, call.path) == ("GET", "/batches/7/shards/1?generation=2&epoch=3")


def test_the_original_form_of_status_env_contains_only_the_id():
    call = api_calls.status_env_by_get(EnvIdentifier(env_id=3, run_id="r"))
    assert (call.method, json.loads(call.body)) == ("GET", {"env_id": 3})


def test_an_environment_has_not_joined_before_the_trainer_starts():
    body = RegisterEnv(max_token_length=8, desired_name="e", weight=1.0, group_size=2)
    read = api_calls.register_env(body).read
    assert read(httpx.Response(200, json={"status": "wait for trainer to start"})) is None
    with pytest.raises(ValueError):
        read(httpx.Response(200, text="not JSON"))
