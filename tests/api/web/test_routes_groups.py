"""Scored groups over HTTP: buffered, absorbed, understood, refused."""

from __future__ import annotations

import gzip
import json

import httpx
import msgspec
import pytest

from atroposlib.api.archive.index import Index
from atroposlib.api.archive.records import DropFact
from atroposlib.api.codec import read_group
from atroposlib.api.server import create_app
from tests.api.harness import ENV, JSON, TRAINER, group, marks


async def test_small_groups_are_buffered_until_they_add_up(api):
    [env_id] = await api.started(envs=(ENV | {"group_size": 4},))
    odd = group(3, mark=1, env_id=env_id)
    assert await api.post("/scored_data", odd) == {"status": "buffered", "buffer_size": 3}
    two = group(2, mark=2, env_id=env_id)
    assert await api.post("/scored_data", two) == {"status": "buffered", "buffer_size": 5}
    status = await api.get("/status")
    assert (status["queue_size"], status["buffered_sequences"]) == (2, 5)
    reply = await api.post("/scored_data_list", [group(2, mark=3, env_id=env_id)])
    expected = {"groups_processed": 1, "buffered": 1, "last_buffer_size": 3}
    assert reply == {"status": "received"} | expected
    assert marks(await api.get("/batch")) == [2, 3]
    assert (await api.get("/status"))["buffered_sequences"] == 3


async def test_a_group_larger_than_the_group_size_of_its_environment_is_delivered(api):
    [env_id] = await api.started()
    assert await api.post("/scored_data", group(4, env_id=env_id)) == {"status": "received"}
    assert len((await api.get("/batch"))["batch"]) == 1


async def test_a_group_larger_than_any_batch_is_refused(api):
    await api.started()
    reply = await api.http.post("/scored_data", json=group(5))
    assert reply.status_code == 422 and "never fits a batch of 4" in reply.json()["detail"]


async def test_a_group_may_declare_another_size(api):
    [env_id] = await api.started(envs=(ENV | {"group_size": 4},))
    short = group(1, env_id=env_id, group_overrides={"group_size": 1})
    assert await api.post("/scored_data", short) == {"status": "received"}


async def test_a_retried_post_is_absorbed_in_body_and_header_form(api):
    [env_id] = await api.started(envs=(ENV | {"group_size": 3},))
    keyed = group(env_id=env_id, idempotency_key="k")
    assert (await api.post("/scored_data", keyed))["status"] == "buffered"
    again = await api.post("/scored_data", keyed)
    assert again == {"status": "buffered", "buffer_size": 2, "duplicate": True}
    bare, header = group(3, env_id=env_id), {"Idempotency-Key": "h"}
    assert await api.post("/scored_data", bare, headers=header) == {"status": "received"}
    assert (await api.post("/scored_data", bare, headers=header))["duplicate"] is True
    listed = await api.post("/scored_data_list", [keyed, group(3, idempotency_key="k2")])
    assert listed["duplicates"] == 1 and listed["groups_processed"] == 2
    other = await api.http.post("/scored_data", json=keyed | {"scores": [1.0, 0.0]})
    assert (other.status_code, other.json()["status"]) == (409, "key_conflict")
    assert (await api.get("/status"))["queue_size"] == 3


async def test_the_latest_example_is_the_last_group_posted(api):
    await api.post("/scored_data", group(mark=5))
    assert (await api.get("/latest_example"))["tokens"] == [[5, 7], [5, 7]]


async def test_bools_and_whole_floats_are_converted_as_by_the_original(api):
    loose = group(4) | {"tokens": [[1.0, 7]] * 4, "scores": [True, False, 1, 0.5]}
    assert await api.post("/scored_data", loose) == {"status": "received"}
    await api.post("/register", TRAINER)
    [served] = (await api.get("/batch"))["batch"]
    assert served["scores"] == [1.0, 0.0, 1.0, 0.5] and served["tokens"][0] == [1, 7]


@pytest.mark.parametrize(
    ("field", "sent", "stored"),
    [
        ("tokens", [["5", 7]] * 2, [[5, 7]] * 2),
        ("masks", [[-100, "7"]] * 2, [[-100, 7]] * 2),
        ("scores", ["1.0", "0"], [1.0, 0.0]),
        ("inference_logprobs", [[1.0, "-0.5"]] * 2, [[1.0, -0.5]] * 2),
        ("distill_token_ids", [[[], [True, 3.0, "4"]]] * 2, [[[], [1, 3, 4]]] * 2),
        ("env_id", "0", 0),
        ("env_id", 0.0, 0),
    ],
)
async def test_numbers_in_other_forms_are_converted_as_by_the_original(
    api, field, sent, stored
):
    await api.started()
    more = {"distill_logprobs": [[[], [-1.0, -2.0, -3.0]]] * 2} if "distill" in field else {}
    await api.post("/scored_data", group() | more | {field: sent})
    assert (await api.get("/latest_example"))[field] == stored


GOOD = json.dumps(group())


@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        (json.dumps(group() | {"masks": [[-100, 7], [-100]]}), 422, "masks[1]"),
        (json.dumps(group() | {"scores": [1.0]}), 422, "scores"),
        (json.dumps(group() | {"scores": [1.0, "x"]}), 422, "scores[1]"),
        (json.dumps(group() | {"messages": [[{"role": "a"}], []]}), 422, "messages[0][0]"),
        (json.dumps(group() | {"versions": [[-1, 2**40]] * 2}), 422, "versions"),
        (json.dumps(group() | {"idempotency_key": "k" * 300}), 422, "idempotency_key"),
        (json.dumps({"tokens": [[1]]}), 422, "masks"),
        (json.dumps(group() | {"tokens": [], "masks": [], "scores": []}), 422, "tokens"),
        (GOOD.replace("[0.5, 0.5]", "[0.5, NaN]"), 422, "scores[1]: not a finite number"),
        (GOOD.replace("0.5", "1e999"), 422, "scores[0]"),
        (GOOD[:-5], 400, "JSON"),
        ("", 400, "JSON"),
        ("[]", 422, "`object`"),
        ('{"images":' + "[" * 100_000, 400, "nested"),
        ('{"images":' + "[" * 100_000 + "]" * 100_000 + "}", 400, "nested"),
        (b'{"images": "\xff"}', 400, "JSON"),
    ],
)
async def test_an_invalid_group_is_rejected_with_its_index_and_no_group_is_stored(
    api, body, status, names
):
    body = body if isinstance(body, bytes) else body.encode()
    listed = b"[" + GOOD.encode() + b"," + body + b"]"
    for path, sent in (("/scored_data", body), ("/scored_data_list", listed)):
        reply = await api.http.post(path, content=sent)
        assert reply.status_code == status, reply.text
        assert names in reply.json()["detail"] and len(reply.content) < 1024
    assert (await api.get("/status"))["queue_size"] == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/register", TRAINER | {"batch_size": 0}),
        ("/register", TRAINER | {"batch_size": 10**400}),
        ("/register", TRAINER | {"num_steps": None}),
        ("/register", TRAINER | {"checkpoint_dir": "x" * 10_000}),
        ("/register-env", ENV | {"weight": float("nan")}),
        ("/register-env", ENV | {"group_size": 0}),
        ("/register-env", ENV | {"min_batch_allocation": 2.0}),
        ("/register-env", ENV | {"desired_name": "\ud800"}),
        ("/heartbeat", {"role": "trainer", "name": "n", "phase": "p", "unknown": 1}),
        ("/policy_version", {"version": -1}),
        ("/policy_version", {"version": 2**70}),
        ("/batches/claim", {"generation": 1, "wait_s": 31}),
        ("/status-env", {"env_id": "many"}),
        ("/disconnect-env", []),
    ],
)
async def test_an_invalid_control_message_is_rejected_and_the_api_keeps_running(
    api, path, body
):
    await api.started()
    reply = await api.http.post(path, content=json.dumps(body), headers=JSON)
    assert reply.status_code == 422, reply.text
    assert isinstance(reply.json()["detail"], str) and len(reply.content) < 1024


# --- bodies -------------------------------------------------------------------------

GZIP = {"Content-Encoding": "gzip", "Content-Type": "application/json"}


async def test_gzipped_bodies_are_decoded(api):
    body = gzip.compress(GOOD.encode())
    reply = await api.http.post("/scored_data", content=body, headers=GZIP)
    assert reply.json() == {"status": "received"}


@pytest.mark.parametrize(
    "body",
    [b"not gzip", gzip.compress(GOOD.encode())[:-9], gzip.compress(GOOD.encode()) + b"more"],
    ids=["other bytes", "cut short", "more after it"],
)
async def test_damaged_gzip_is_a_400(api, body):
    reply = await api.http.post("/scored_data", content=body, headers=GZIP)
    assert (reply.status_code, reply.text) == (400, "Invalid gzip payload")


async def test_decompression_bombs_and_huge_bodies_are_a_413():
    app = create_app(max_body_bytes=100_000)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as http:
        bomb = gzip.compress(b" " * 10_000_000)
        assert (await http.post("/scored_data", content=bomb, headers=GZIP)).status_code == 413
        assert (await http.post("/scored_data", content=b" " * 100_001)).status_code == 413

        async def endless():
            for _ in range(11):
                yield b" " * 10_000

        assert (await http.post("/scored_data", content=endless())).status_code == 413


async def test_cross_site_requests_are_rejected_and_no_cors_headers_are_sent(api):
    foreign = {"Sec-Fetch-Site": "cross-site", "Origin": "http://evil"}
    assert (await api.http.get("/reset_data", headers=foreign)).status_code == 403
    plain = await api.http.get("/status", headers={"Origin": "http://evil"})
    assert "access-control-allow-origin" not in plain.headers


async def test_a_dropped_group_is_shown_with_its_reason(api):
    [env_id] = await api.started()
    path = f"/drops?env_id={env_id}&reason=same_scores&count=7"
    assert (await api.http.post(path)).json() == {"kept": True}
    assert await api.post(path, group(mark=5)) == {"kept": True}
    api.service.context.indexer.flush()
    page = await api.get("/explore/rollouts?state=dropped&why=same_scores")
    [first, second] = page["rows"]
    assert (first["gid"], first["env"], first["why"]) == (-2, "e_0", "same_scores")
    assert [row["reward"] for row in (await api.get("/explore/groups/-2"))["rows"]] == [
        0.5,
        0.5,
    ]
    assert (await api.get("/explore/groups/-2/rows/1"))["columns"]["id"] == [5, 7]
    for gid in (-1, -3, -(10**30)):  # without a sample, and none
        assert (await api.http.get(f"/explore/groups/{gid}/rows/0")).status_code == 404
    assert (await api.get("/status"))["queue_size"] == 0


@pytest.mark.parametrize(
    ("query", "body", "code"),
    [
        ("env_id=9&reason=short&count=1", None, 404),
        ("env_id=0&reason=short&count=1&run_id=another", None, 404),
        ("env_id=0&reason=<b>&count=1", None, 422),
        ("env_id=0&reason=short&count=0", None, 422),
        ("env_id=0&count=1", None, 422),
        ("env_id=0&reason=short&count=1", {"tokens": [[1]]}, 422),
        ("env_id=0&reason=short&count=1", " " * (2**21 + 1), 413),
    ],
)
async def test_a_report_of_drops_that_breaks_its_bounds_is_refused(api, query, body, code):
    await api.started()
    reply = await api.http.post(f"/drops?{query}", **({"json": body} if body else {}))
    assert reply.status_code == code


def test_no_more_samples_of_dropped_groups_are_kept_than_the_bound(monkeypatch):
    monkeypatch.setattr("atroposlib.api.archive.records.MAX_SAMPLES", 2)
    facts = read_group(msgspec.json.encode(group()), "", None).facts
    index = Index(None)
    index.write([DropFact("e", "short", 1, 0.0, b"", facts) for _ in range(5)])
    assert index.read("SELECT id FROM drop_sample") == [(4,), (5,)]
    assert index.read("SELECT DISTINCT gid FROM rollout") == [(-5,), (-4,)]
    index.close()


async def test_counters_of_tokens_are_kept_once_and_by_their_newest_report(api):
    [env_id] = await api.started()
    count = {"version": 0, "state": "dropped/short", "tokens": 40, "samples": 4}
    report = {"env_id": env_id, "instance": "a", "sequence": 2, "counts": [count]}
    older = {**report, "sequence": 1, "counts": [{**count, "tokens": 30}]}
    for body in (report, report, older):
        assert (await api.http.post("/account", json=body)).json() == {"status": "ok"}
    account = await api.get("/explore/account?by=env")
    assert (account["generated"], account["processes"]) == (40, 1)
    [line] = account["lines"]
    assert (line["env"], line["state"], line["tokens"]) == ("e_0", "dropped/short", 40)
    assert (await api.http.get("/explore/account?by=<b>")).status_code == 422
    wrong = {**report, "counts": [{**count, "state": "<b>"}]}
    assert (await api.http.post("/account", json=wrong)).status_code == 422
    assert (await api.http.post("/account", json={**report, "env_id": 9})).status_code == 404
