"""Route x scope x effect: what a token may change by fields that name a role, name or server."""

from __future__ import annotations

import pytest

from atroposlib.api.guards.tokens import Scope, TokenFile, add_token
from atroposlib.api.server import create_app
from tests.api.guards.test_auth import ENV_BODY, TRAINER, bearer, http_of

SERVER = {"url": "http://elsewhere:1", "instance": "i", "started": 1.0}
KINDS = ("none", "read", "env", "env:mine", "trainer", "admin")


@pytest.fixture
async def app(tmp_path):
    """An application with a token of each kind in ``app.state.issued``."""
    path = tmp_path / "tokens"
    issued = {scope.value: add_token(path, scope.value) for scope in Scope}
    issued["env:mine"] = add_token(path, "env:mine")
    app = create_app(tokens=TokenFile(path))
    app.state.issued = issued
    yield app
    app.state.service.close()


def as_kind(app, kind):
    return bearer(app.state.issued[kind]) if kind != "none" else []


def beat(role, name="mine", **more):
    return {"role": role, "name": name, "phase": "x"} | more


# What is posted to /heartbeat, and the status for each kind of token.
HEARTBEATS = {
    "an environment": (beat("env"), (401, 403, 200, 200, 403, 200)),
    "its second process": (beat("env", "mine_2-0a1b2c"), (401, 403, 200, 200, 403, 200)),
    "another environment": (beat("env", "other"), (401, 403, 200, 403, 403, 200)),
    "a longer name": (beat("env", "mine-or-not"), (401, 403, 200, 403, 403, 200)),
    "the name of the trainer": (beat("env", "boss"), (401, 403, 403, 403, 403, 200)),
    "the name of a server": (beat("env", "gpu0"), (401, 403, 403, 403, 403, 200)),
    "a tool": (beat("tool"), (401, 403, 200, 200, 200, 200)),
    "a tool under the name of the trainer": (
        beat("tool", "boss"),
        (401, 403, 403, 403, 200, 200),
    ),
    "the trainer": (beat("trainer", "boss"), (401, 403, 403, 403, 200, 200)),
    "the end of the trainer": (
        beat("trainer", "boss", details={"life": "l", "ended": 1}),
        (401, 403, 403, 403, 200, 200),
    ),
    "a server": (beat("inference", "gpu1", announces=SERVER), (401, 403, 403, 403, 200, 200)),
    "a server without an address": (beat("inference", "gpu1"), (401, 403, 403, 403, 200, 200)),
    **{
        f"a server as {role}": (
            beat(role, announces=SERVER),
            (401, 403, 422, 422, 422, 422),
        )
        for role in ("env", "trainer", "tool")
    },
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", HEARTBEATS)
async def test_a_heartbeat_needs_the_scope_and_the_name_of_its_effect(app, what, kind):
    async with http_of(app) as http:
        trainer = as_kind(app, "trainer")
        for body in (beat("trainer", "boss"), beat("inference", "gpu0")):
            (await http.post("/heartbeat", json=body, headers=trainer)).raise_for_status()
        body, expected = HEARTBEATS[what]
        before = (await app.state.service.status()).participants
        reply = await http.post("/heartbeat", json=body, headers=as_kind(app, kind))
        assert reply.status_code == expected[KINDS.index(kind)], reply.text
        listed = (await http.get("/servers", headers=as_kind(app, "read"))).json()["servers"]
        announced = reply.is_success and "announces" in body
        assert [one["url"] for one in listed] == [SERVER["url"]] * announced
        if not reply.is_success:
            now = (await app.state.service.status()).participants
            assert [(one.role, one.name) for one in now] == [(o.role, o.name) for o in before]


STEP = {"step": 1, "values": {"loss": 1.0}}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("trainer", (401, 403, 403, 403, 200, 200)),
        ("env", (401, 403, 200, 200, 403, 200)),
    ],
)
async def test_numbers_of_a_step_need_the_scope_of_their_role(app, role, expected, kind):
    async with http_of(app) as http:
        trainer, env = as_kind(app, "trainer"), as_kind(app, "env:mine")
        (await http.post("/register", json=TRAINER, headers=trainer)).raise_for_status()
        await http.get("/batch", headers=trainer)
        body = ENV_BODY | {"desired_name": "mine"}
        env_id = (await http.post("/register-env", json=body, headers=env)).json()["env_id"]
        report = STEP | {"role": role} | ({"env_id": env_id} if role == "env" else {})
        reply = await http.post("/steps", json=report, headers=as_kind(app, kind))
        assert reply.status_code == expected[KINDS.index(kind)], reply.text
