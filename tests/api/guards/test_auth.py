"""Every route of the real application, tried with every kind of token."""

from __future__ import annotations

import itertools
import json
from hashlib import sha256

import httpx
import pytest

from atroposlib.api.guards.auth import (
    ADMIN,
    ANYONE,
    ENV,
    SCOPES_OF,
    route_of,
    scopes_for,
    token_check,
)
from atroposlib.api.guards.tokens import Scope, TokenFile, add_token
from atroposlib.api.server import create_app
from atroposlib.utils.http.gate import Gate
from tests.api.harness import ENV as ENV_BODY, TRAINER, group

NO_TOKEN = {
    "none": [],
    "empty": [("authorization", "")],
    "no token": [("authorization", "Bearer")],
    "blank token": [("authorization", "Bearer  ")],
    "other kind": [("authorization", "Basic YWRtaW46YWRtaW4=")],
    "no kind": [("authorization", "atr_aaaaaaaaaaaaaaaaaaaaaaaa")],
    "nobody's": [("authorization", "Bearer atr_" + "a" * 43)],
    "not ascii": [("authorization", b"Bearer \xff\xfe")],
    "endless": [("authorization", "Bearer " + "a" * 20_000)],
    "cookie": [("cookie", "authorization=Bearer x")],
}


def scopes_of(method, path):
    return scopes_for(method, route_of(method, path))


@pytest.fixture
def issued(tmp_path):
    """The file of tokens and a token of each kind, by name."""
    path = tmp_path / "tokens"
    named = {scope.value: add_token(path, scope.value) for scope in Scope}
    named["expired"] = add_token(path, "admin", ends=1)
    named["mine"] = add_token(path, "env:mine")
    named["other"] = add_token(path, "env:other")
    return path, named


@pytest.fixture
async def app(issued):
    app = create_app(tokens=TokenFile(issued[0]))
    # /events is an endless stream: this ends every stream before its first event.
    app.state.service.events.close()
    yield app
    app.state.service.close()


def http_of(app):
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


def bearer(token):
    return [("authorization", f"Bearer {token}")]


def routes_of(routes):
    """(method, path) of every route, those of included routers too."""
    for route in routes:
        if (included := getattr(route, "original_router", None)) is not None:
            yield from routes_of(included.routes)
        else:
            yield from ((method, route.path) for method in route.methods)


def an_address(path):
    return path.replace("{no}", "1").replace("{rank}", "0").replace("{asset}", "app.js")


OPEN = {("GET", path) for path in ("/health", "/ui", "/ui/", "/ui/{asset}")}


def test_the_scope_table_and_the_application_list_the_same_routes(app):
    ours = {(method, path) for method, path in routes_of(app.routes) if method != "HEAD"}
    assert sorted(ours) == sorted(SCOPES_OF)
    assert len(ours) > 30


def test_only_health_and_the_page_without_data_are_open():
    assert {route for route, scopes in SCOPES_OF.items() if not scopes} == OPEN
    assert scopes_of("GET", "/health") == ANYONE


@pytest.mark.parametrize(
    "method, path",
    [
        ("POST", "/reset_data"),
        ("GET", "/reset_data"),
        ("GET", "/nothing"),
        ("DELETE", "/status"),
        ("OPTIONS", "/status"),
        ("POST", "/health"),
        ("GET", "/health/"),
        ("GET", "/health\n"),
        ("GET", "//health"),
        ("GET", "/HEALTH"),
        ("POST", "/batches/1/ack/x"),
        ("POST", "/batches//ack"),
        ("GET", "/static/../health"),
        ("TRACE", "/"),
    ],
)
def test_a_route_missing_in_the_table_needs_the_scope_admin(method, path):
    assert scopes_of(method, path) == ADMIN


def test_head_has_the_scopes_of_get():
    assert scopes_of("HEAD", "/health") == ANYONE
    assert scopes_of("HEAD", "/batch") == scopes_of("GET", "/batch")


def test_a_path_with_parameters_matches_its_template():
    assert route_of("POST", "/batches/17/ack") == "/batches/{no}/ack"
    assert route_of("GET", "/batches/17/shards/2") == "/batches/{no}/shards/{rank}"
    assert route_of("GET", "/nowhere") is None


async def test_without_a_good_token_every_route_with_data_answers_401(app, issued):
    before = (await app.state.service.status()).model_dump(
        exclude={"ages_s", "verdict", "tokens"}
    )
    tries = NO_TOKEN | {"expired": bearer(issued[1]["expired"])}
    tries["two"] = bearer(issued[1]["admin"]) * 2
    async with http_of(app) as http:
        for (method, path), (kind, headers) in itertools.product(SCOPES_OF, tries.items()):
            reply = await http.request(method, an_address(path), headers=headers)
            if (method, path) in OPEN:
                assert reply.status_code in (200, 307), (path, kind)
                continue
            assert reply.status_code == 401, (method, path, kind)
            assert reply.headers["www-authenticate"].startswith("Bearer")
            assert reply.json()["status"] == "unauthorized"
    after = await app.state.service.status()
    assert after.model_dump(exclude={"ages_s", "verdict", "tokens"}) == before


async def test_a_token_in_the_url_or_the_body_is_ignored(app, issued):
    token = issued[1]["admin"]
    async with http_of(app) as http:
        for where in ("token", "access_token", "authorization"):
            assert (await http.get("/status", params={where: token})).status_code == 401
            reply = await http.post("/reset_data", data={where: token})
            assert reply.status_code == 401


@pytest.mark.parametrize("scope", Scope)
async def test_a_token_allows_the_routes_of_its_scope_and_no_others(app, issued, scope):
    covered = {
        Scope.ENV: {Scope.ENV, Scope.READ},
        Scope.TRAINER: {Scope.TRAINER, Scope.READ},
        Scope.READ: {Scope.READ},
        Scope.STEER: {Scope.STEER, Scope.READ},
        Scope.ADMIN: set(Scope),
    }[scope]
    async with http_of(app) as http:
        for (method, path), scopes in SCOPES_OF.items():
            headers = bearer(issued[1][scope.value])
            reply = await http.request(method, an_address(path), headers=headers)
            if scopes and not scopes & covered:
                assert reply.status_code == 403, (method, path)
                assert reply.json()["status"] == "forbidden"
            else:
                assert reply.status_code not in (401, 403), (method, path)
                assert reply.status_code < 500, (method, path, reply.text)


async def test_a_route_that_does_not_exist_is_404_for_an_admin_only(app, issued):
    async with http_of(app) as http:
        for name, status in {"admin": 404, "trainer": 403, "read": 403}.items():
            reply = await http.get("/nothing", headers=bearer(issued[1][name]))
            assert reply.status_code == status


async def test_an_unauthorized_request_is_rejected_without_reading_its_body(issued):
    async def app(scope, receive, send):
        raise AssertionError("the application must not be reached")

    async def receive():
        raise AssertionError("the body must not be read")

    access = Gate(app, (token_check(TokenFile(issued[0])),), route_of=route_of)
    for (method, path), name in itertools.product(SCOPES_OF, ("", "read")):
        if (method, path) in OPEN or name and scopes_for(method, path) == {Scope.READ}:
            continue
        sent = []

        async def send(message):
            sent.append(message)

        headers = [(b"authorization", f"Bearer {issued[1].get(name)}".encode())]
        scope = {"type": "http", "method": method, "path": an_address(path)}
        await access(scope | {"headers": headers}, receive, send)
        assert sent[0]["status"] == (403 if name else 401)


async def test_a_websocket_is_closed_before_authentication(issued):
    sent = []

    async def send(message):
        sent.append(message["type"])

    gate = Gate(None, (token_check(TokenFile(issued[0])),))
    await gate({"type": "websocket", "path": "/", "headers": []}, None, send)
    assert sent == ["websocket.close"]


async def test_an_unreadable_token_file_is_a_503_with_retry_after(app, issued):
    path, named = issued
    path.chmod(0o644)
    async with http_of(app) as http:
        reply = await http.get("/status", headers=bearer(named["admin"]))
        assert reply.status_code == 503 and int(reply.headers["retry-after"]) > 0
        assert (await http.get("/health")).status_code == 200
        path.chmod(0o600)
        reply = await http.get("/status", headers=bearer(named["admin"]))
        assert reply.status_code == 200


async def test_a_rotated_token_is_valid_at_once_and_the_old_one_is_rejected(app, issued):
    path, named = issued
    new = add_token(path, "read")
    async with http_of(app) as http:
        assert (await http.get("/status", headers=bearer(new))).status_code == 200
        assert (await http.get("/status", headers=bearer(named["read"]))).status_code == 200
        old = sha256(named["read"].encode()).hexdigest()
        kept = [line for line in path.read_text().splitlines() if old not in line]
        path.write_text("\n".join(kept) + "\n")
        assert (await http.get("/status", headers=bearer(named["read"]))).status_code == 401
        assert (await http.get("/status", headers=bearer(new))).status_code == 200


async def run_with_two_environments(http, named):
    trainer = bearer(named["trainer"])
    await http.post("/register", json=TRAINER, headers=trainer)
    await http.get("/batch", headers=trainer)
    ids = {}
    for name in ("mine", "other"):
        body = ENV_BODY | {"desired_name": name}
        reply = await http.post("/register-env", json=body, headers=bearer(named[name]))
        ids[name] = reply.json()["env_id"]
    return ids


async def test_a_bound_token_is_valid_for_its_environment_only(app, issued):
    async with http_of(app) as http:
        ids = await run_with_two_environments(http, issued[1])
        held = await app.state.service.status()
        as_mine = bearer(issued[1]["mine"])
        for status, env_id in [(403, ids["other"]), (403, None), (200, ids["mine"])]:
            posts = {
                "/scored_data": group(env_id=env_id),
                "/scored_data_list": [group(env_id=env_id)],
                "/groups": [group(env_id=env_id, mark=3)],
            }
            if env_id is not None:
                posts["/status-env"] = {"env_id": env_id}
                posts["/admission"] = {"env_id": env_id, "sequences": 2}
                posts["/disconnect-env"] = {"env_id": env_id}
            for path, body in posts.items():
                reply = await http.post(path, json=body, headers=as_mine)
                assert reply.status_code == status, (path, env_id, reply.text)
            if status == 403:
                body = json.dumps({"env_id": env_id})
                reply = await http.request("GET", "/status-env", content=body, headers=as_mine)
                assert reply.status_code == (403 if env_id is not None else 422)
                now = await app.state.service.status()
                assert now.queue_size == held.queue_size


async def test_reports_need_the_token_of_their_sender(app, issued):
    async with http_of(app) as http:
        ids = await run_with_two_environments(http, issued[1])
        mine, trainer = bearer(issued[1]["mine"]), bearer(issued[1]["trainer"])
        step = {"role": "trainer", "step": 1, "values": {"loss": 1.0}}
        own, another = ({**step, "role": "env", "env_id": ids[n]} for n in ("mine", "other"))
        for body, headers, code in (
            (step, trainer, 200),
            (step, mine, 403),
            (own, mine, 200),
            (another, mine, 403),
        ):
            reply = await http.post("/steps", json=body, headers=headers)
            assert reply.status_code == code, (body, reply.text)
        for name, code in (("mine", 200), ("other", 403)):
            path = f"/drops?reason=short&count=1&env_id={ids[name]}"
            assert (await http.post(path, headers=mine)).status_code == code
        assert (await http.post(path, headers=trainer)).status_code == 403
        for name, code in (("mine", 200), ("other", 403)):
            account = {"env_id": ids[name], "instance": name, "sequence": 1, "counts": []}
            reply = await http.post("/account", json=account, headers=mine)
            assert reply.status_code == code
        notes = "/batches/1/notes?generation=1&epoch=1"
        assert (await http.post(notes, headers=mine)).status_code == 403


async def test_a_bound_token_cannot_register_another_environment(app, issued):
    async with http_of(app) as http:
        await run_with_two_environments(http, issued[1])
        body = ENV_BODY | {"desired_name": "other"}
        refused = await http.post(
            "/register-env", json=body, headers=bearer(issued[1]["mine"])
        )
        assert refused.status_code == 403 and "mine" in refused.json()["detail"]


async def test_a_list_with_a_group_of_another_environment_is_rejected_entirely(app, issued):
    async with http_of(app) as http:
        ids = await run_with_two_environments(http, issued[1])
        body = [group(env_id=ids["mine"]), group(env_id=ids["other"])]
        for path in ("/scored_data_list", "/groups"):
            reply = await http.post(path, json=body, headers=bearer(issued[1]["mine"]))
            assert reply.status_code == 403
        assert (await app.state.service.status()).queue_size == 0


async def test_ids_of_bound_tokens_name_nothing_of_another_environment(app, issued):
    async with http_of(app) as http:
        ids = await run_with_two_environments(http, issued[1])
        mine, other = (bearer(issued[1][name]) for name in ("mine", "other"))
        lease = {"env_id": ids["mine"], "sequences": 2, "admission_id": "a"}
        reply = await http.post("/admission", json=lease, headers=mine)
        assert reply.json()["admission_id"] == "a"
        release = {"admission_id": "a"}
        for headers, found in ((other, False), (mine, True)):
            reply = await http.post("/admission/release", json=release, headers=headers)
            assert reply.json()["found"] is found
        for name, headers in (("other", other), ("mine", mine)):
            body = group(env_id=ids[name], idempotency_key="k", mark=ids[name])
            reply = await http.post("/scored_data", json=body, headers=headers)
            assert reply.json() == {"status": "received"}


async def test_tokens_of_environments_cannot_hide_or_end_the_trainer(app, issued, monkeypatch):
    monkeypatch.setattr("atroposlib.api.run.liveness.MAX_PARTICIPANTS", 8)
    async with http_of(app) as http:
        beat = {"role": "trainer", "name": "t", "phase": "training"}
        trainer, env = bearer(issued[1]["trainer"]), bearer(issued[1]["env"])
        assert (await http.post("/heartbeat", json=beat, headers=trainer)).is_success
        for role in ("trainer", "inference"):
            refused = await http.post("/heartbeat", json=beat | {"role": role}, headers=env)
            assert refused.status_code == 403
        for no in range(9):
            other = beat | {"role": "env", "name": str(no)}
            (await http.post("/heartbeat", json=other, headers=env)).raise_for_status()
        participants = (await app.state.service.status()).participants
        assert [one.name for one in participants if one.role == "trainer"] == ["t"]


async def test_without_tokens_every_call_is_allowed():
    app = create_app()
    async with http_of(app) as http:
        assert (await http.get("/status")).status_code == 200
        assert (await http.post("/reset_data")).status_code == 200
    app.state.service.close()


def test_the_routes_of_environments_are_those_that_can_be_bound():
    assert {path for (_, path), scopes in SCOPES_OF.items() if scopes == ENV} == {
        "/register-env",
        "/disconnect-env",
        "/status-env",
        "/scored_data",
        "/scored_data_list",
        "/groups",
        "/drops",
        "/account",
        "/admission",
        "/admission/release",
        "/lease",
        "/release",
    }
