"""Earlier versions: which slot a version takes, the copies, and requests that name a version."""

from __future__ import annotations

import httpx
import pytest
from hypothesis import given, strategies as st

from atroposlib.inference.__main__ import parse_args
from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.earlier import (
    EarlierVersions,
    open_slots,
    slots_for,
    version_to_replace,
)
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.http.app import create_app
from tests.inference.helpers import fresh_logprobs, ok


@pytest.mark.parametrize(
    ("held", "version", "replaced"),
    [
        ([], 0, None),
        ([0], 1, None),
        ([0, 1], 2, 0),
        ([4, 3], 5, 3),
        ([3, 7], 5, 7),  # a trainer that went back to 5 has undone 7
        ([3, 5], 5, 5),
    ],
)
def test_oldest_or_undone_version_leaves(held, version, replaced):
    assert version_to_replace(held, version, slots=2) == replaced


@given(st.lists(st.integers(0, 20), max_size=30), st.integers(1, 4))
def test_slots_hold_the_newest_versions_of_the_present_life(versions, slots):
    held: list[int] = []
    for version in versions:
        replaced = version_to_replace(held, version, slots)
        held = [number for number in held if number != replaced] + [version]
        assert len(held) <= slots and len(set(held)) == len(held)
    assert versions == [] or versions[-1] in held


@pytest.fixture
def earlier_http(model_dir, other_dir):
    """A server that lists two versions, of every second, and its engine."""
    served = load_model(str(model_dir), name="tiny")
    slots = open_slots(served, EngineLimits(), slots_for(2), seed=0, num_threads=1)
    earlier = EarlierVersions("tiny", slots, every=2)
    engine = Engine(served, EngineLimits(), seed=0, before_change=earlier.keep, num_threads=1)
    engine.start()
    transport = httpx.ASGITransport(app=create_app(engine, (), earlier))
    yield engine, httpx.AsyncClient(transport=transport, base_url="http://engine")
    engine.close()
    earlier.close()


async def names(http) -> list[str]:
    return [card["id"] for card in (await http.get("/v1/models")).json()["data"]]


async def test_request_that_names_a_version_is_answered_by_its_weights(
    earlier_http, other_dir, reference, other_reference
):
    engine, http = earlier_http
    async with http:
        assert await names(http) == ["tiny"]
        engine.update_weights(str(other_dir), 1)
        assert await names(http) == ["tiny", "tiny@0"]
        sampled = 0
        prompt = {
            "prompt": [7, 8, 9],
            "max_tokens": 4,
            "logprobs": 1,
            "return_token_ids": True,
        }
        for model, version, weights in (
            ("tiny@0", 0, reference),
            ("tiny", 1, other_reference),
        ):
            reply = await ok(http, "/v1/completions", **prompt, model=model)
            (choice,) = reply["choices"]
            tokens = choice["token_ids"]
            fresh = fresh_logprobs(weights, [7, 8, 9], tokens).tolist()
            assert choice["logprobs"]["token_logprobs"] == pytest.approx(fresh, abs=1e-4)
            spans = [{"version": version, "start": 0, "end": len(tokens)}]
            assert reply["model"] == model and choice["weight_versions"] == spans
            sampled += len(tokens)
        info = (await http.get("/server_info")).json()
        assert (info["weight_version"], info["generated_tokens_total"]) == (1, sampled)


async def test_versions_between_multiples_are_not_kept_and_the_oldest_leaves(
    earlier_http, model_dir, other_dir
):
    engine, http = earlier_http
    async with http:
        for version in range(1, 6):
            engine.update_weights(str(other_dir if version % 2 else model_dir), version)
        assert await names(http) == ["tiny", "tiny@2", "tiny@4"]
        # A game against the version that has left the list may end.
        body = {"prompt": [7], "model": "tiny@0"}
        assert (await http.post("/v1/completions", json=body)).status_code == 200
        engine.update_weights(str(model_dir), 6)
        engine.update_weights(str(model_dir), 7)
        assert await names(http) == ["tiny", "tiny@4", "tiny@6"]
        gone = await http.post("/v1/completions", json=body)
        assert gone.status_code == 404 and "tiny@0" in gone.text


async def test_version_of_an_undone_life_is_not_offered(earlier_http, model_dir, other_dir):
    engine, http = earlier_http
    async with http:
        for version in range(1, 6):
            engine.update_weights(str(other_dir), version)
        assert await names(http) == ["tiny", "tiny@2", "tiny@4"]
        engine.update_weights(str(model_dir), 3)  # the trainer went back
        assert await names(http) == ["tiny", "tiny@0", "tiny@2"]


def test_numbers_of_versions_that_make_no_sense_are_refused(capsys):
    for words in (["--keep-versions", "-1"], ["--keep-every", "0"]):
        with pytest.raises(SystemExit):
            parse_args(["--model", "smollm2", *words])
        assert "--keep-versions is at least 0" in capsys.readouterr().err
