"""The workbench as a server: its documents, the page of each run, and its gate."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from atroposlib.api.server import create_app
from atroposlib.ui import INDENTED, assets
from atroposlib.workbench.app import STATIC, create_workbench
from tests.api.harness import Api, sampled
from tests.serving import served
from tests.ui.test_ui import MAX_BYTES, MAX_LINES, UNSAFE
from tests.workbench.made_runs import make_run

HOSTILE = "<script>window.pwned = 1</script>"


@pytest.fixture
def root(tmp_path):
    for name, lr, seed in (("a0", 0.1, 0), ("a1", 0.1, 1), ("b0", 0.2, 0)):
        heldout = {"x": lr, HOSTILE: 1.0}
        make_run(tmp_path / name, lr=lr, seed=seed, heldout=heldout, items={"q": [1.0]})
    return tmp_path


@pytest.fixture
def url(root):
    with served(create_workbench(root)) as url:
        yield url


def get(url, path, **query):
    return httpx.get(f"{url}{path}", params=query)


def keys_of(url):
    runs = get(url, "/workbench/runs").json()["runs"]
    return {run["name"]: run["key"] for run in runs}


def test_the_page_asks_for_runs_curves_tasks_answers_and_a_diff(url):
    keys = keys_of(url)
    assert list(keys) == ["a0", "a1", "b0"]
    all_keys = ",".join(keys.values())
    curves = get(url, "/workbench/curves", runs=all_keys, by="tokens").json()
    assert [series["label"] for series in curves["series"]] == ["lr 0.1", "b0"]
    apart = get(url, "/workbench/curves", runs=all_keys, apart="1", keys="reward_mean").json()
    assert len(apart["series"]) == 3 and apart["shown"] == ["reward_mean"]
    tasks = get(url, "/workbench/tasks", runs=all_keys).json()
    assert tasks["source"] == "held-out" and tasks["tasks"][0]["means"] == [0.1, 0.1, 0.2]
    answers = get(url, "/workbench/answers", runs=all_keys, task="x").json()
    assert [run["answers"][0]["reward"] for run in answers["runs"]] == [0.1, 0.1, 0.2]
    diff = get(url, "/workbench/diff", runs=f"{keys['a0']},{keys['b0']}").json()
    assert [setting["name"] for setting in diff["settings"]] == ["trainer.lr"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/workbench/curves", 422),
        ("/workbench/curves?runs=nothing", 404),
        ("/workbench/curves?runs={a0}&by=moon", 422),
        ("/workbench/diff?runs={a0}", 422),
        ("/workbench/runs?x=1", 422),
        ("/run/nothing/explore/runs", 404),
        ("/run/{a0}/ui/nothing.js", 404),
        ("/run/../../etc/passwd", 404),
        ("/ui/overview.js", 404),
        ("/", 200),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(url, path, status):
    keys = keys_of(url)
    reply = httpx.get(url + path.format(**keys), follow_redirects=True)
    assert reply.status_code == status, reply.text


def test_other_names_and_other_sites_are_refused(url):
    path = f"{url}/workbench/runs"
    assert httpx.get(path, headers={"host": "evil.example"}).status_code == 421
    other = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    assert httpx.get(path, headers=other).status_code == 403


async def test_the_page_of_an_ended_run_reads_its_folder(root):
    make_run(root / "c0")
    api = Api(root / "c0/queue", "sqlite", archive_bytes=10**6)
    [env_id] = await api.started(batch_size=2)
    await api.post("/scored_data", sampled(0, env_id=env_id))
    await api.end()
    with served(create_workbench(root)) as url:
        page = f"/run/{keys_of(url)['c0']}"
        assert "<html" in get(url, f"{page}/ui/").text
        assert get(url, f"{page}/ui/overview.js").status_code == 200
        [row, _] = get(url, f"{page}/explore/rollouts", sort="arrived").json()["rows"]
        assert row["env"] == "e_0"
        assert get(url, f"{page}/status").status_code == 404


def test_the_page_of_a_live_run_reads_its_api_and_changes_nothing(root):
    with served(create_app()) as api:
        folder = make_run(root / "live", state="running")
        (folder / "launch/wiring.yaml").write_text(json.dumps({"atropos_url": api}, indent=1))
        with served(create_workbench(root)) as url:
            page = f"/run/{keys_of(url)['live']}"
            assert get(url, f"{page}/status").json()["state"] == "EMPTY"
            assert get(url, f"{page}/explore/rollouts").json()["rows"] == []
            assert get(url, f"{page}/explore/rollouts", nonsense=1).status_code == 422
            for path in ("reset_data", "batch", "metrics", "explore/%2e%2e/batch"):
                assert get(url, f"{page}/{path}").status_code == 404, path
            assert httpx.post(f"{url}{page}/explore/steps/1/pin").status_code == 404


# --- static files -------------------------------------------------------------------------

OWN = sorted(STATIC.iterdir())


def test_the_page_stays_small():
    assert sum(len(content) for content, _ in assets(STATIC).values()) <= MAX_BYTES


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_no_source_can_turn_a_text_into_markup_or_code(path):
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert not re.findall(UNSAFE, text) and len(lines) <= MAX_LINES
    assert not re.search(r"https?://|\sstyle=|\son\w+=\"|<script>", text)
    if path.suffix in INDENTED:  # indentation is left out of what a browser gets
        assert [line for line in lines if line.count("`") % 2] == []
