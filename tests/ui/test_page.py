"""The page in a browser, over a real rollout API with hostile texts in it."""

from __future__ import annotations

import re

import httpx
import pytest

from atroposlib.api.archive.explorer import Explorer
from atroposlib.api.archive.index import Index
from atroposlib.api.server import create_view
from atroposlib.api.store.memory import MemoryStore
from tests.api.archive.rollouts import group, row
from tests.run_status.staged import EVALUATION
from tests.serving import served

pytestmark = [pytest.mark.browser, pytest.mark.slow]

VIEWS = (
    "",
    "environments",
    "batches",
    "batch/1",
    "rollouts",
    "group/1",
    "tokens/1/0",
    "tasks",
    "curves",
    "weights",
    "why",
    "item/clips%2F1",
)


@pytest.fixture(scope="module")
def run(browser, tmp_path_factory):
    from tests.ui.recorded_run import recorded_run

    with recorded_run(tmp_path_factory.mktemp("run")) as (url, _):
        yield url


def rows_of(url, **filters):
    return httpx.get(f"{url}/explore/rollouts", params={"limit": 500, **filters}).json()[
        "rows"
    ]


def hostile_gid(url):
    return next(row["gid"] for row in rows_of(url) if "<script>" in (row["item"] or ""))


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_opens_and_fits_a_width_of_500(run, tab, view):
    screen = tab(run, width=500)
    page = screen.open(f"#/{view}")
    assert page.locator("main").inner_text().strip()
    assert "This view failed" not in page.locator("main").inner_text()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 500


def test_a_filter_shows_exactly_the_rows_that_match(run, tab):
    page = tab(run).open("#/rollouts")
    page.keyboard.press("/")
    page.keyboard.type("reward:0.9..1")
    page.keyboard.press("Enter")
    page.locator(".chip").wait_for()
    expected = [
        row for row in rows_of(run) if row["reward"] is not None and row["reward"] >= 0.9
    ]
    page.locator(".count b", has_text=re.compile(f"^{len(expected)}$")).wait_for()
    shown = page.locator(".inner .row").count()
    assert shown == min(shown, len(expected)) > 0
    page.get_by_label("Remove the filter reward").click()
    page.locator(".count b", has_text=re.compile(f"^{len(rows_of(run))}$")).wait_for()


def test_the_list_grows_by_key_and_holds_few_elements(run, tab):
    page = tab(run).open("#/rollouts?sort=arrived")
    total = len(rows_of(run))
    page.locator(".list").evaluate("(list) => { list.scrollTop = list.scrollHeight; }")
    page.locator(f'.inner .row[aria-rowindex="{total + 1}"]').wait_for()
    assert page.locator(".inner .row").count() < 60


def test_a_spike_leads_to_its_rows_its_group_and_its_tokens_in_three_clicks(run, tab):
    from tests.ui.recorded_run import SPIKE

    page = tab(run).open("#/curves?keys=reward")
    plot = page.locator(".chart .u-over").first
    box = plot.bounding_box()
    last = max(row["step"] or 0 for row in rows_of(run))
    plot.click(position={"x": box["width"] * (SPIKE - 1) / (last - 1), "y": box["height"] / 2})
    page.wait_for_url(re.compile(rf"step={SPIKE}\b"))
    expected = rows_of(run, step=SPIKE)
    page.locator(".count b", has_text=re.compile(f"^{len(expected)}$")).wait_for()
    page.locator(".inner .row").first.click()
    page.get_by_text("tokens of 0").click()
    page.wait_for_url(re.compile(r"#/tokens/\d+/0"))
    gid = int(re.search(r"tokens/(\d+)", page.url)[1])
    assert gid in {row["gid"] for row in expected}
    page.locator(".tok").first.wait_for()


def test_overview_has_the_time_by_cause_and_the_rest_of_the_run(run, tab):
    page = tab(run).open("#/")
    shown = page.locator(".key").all_inner_texts()
    assert [re.sub(r"\s+", " ", one) for one in shown] == [
        "waiting for rollouts 30 % 3.0 s a step",
        "training 50 % 5.0 s a step",
        "publishing 20 % 2.0 s a step",
    ]
    step = page.locator(".big", has_text="step").first.inner_text()
    assert "of 100" in step and "min left" in step  # 93 steps of 10 s
    useful = page.locator(".big", has_text="useful tokens").inner_text()
    assert re.search(r"\d+ %\s+of [\d,. ]+k? sampled", useful)


def test_the_timeline_has_a_block_per_version_of_each_server(run, tab):
    page = tab(run).open("#/weights")
    lanes = page.locator(".lane[role=listitem]")
    shown = {lane.locator("small").inner_text(): lane.locator("i").all_inner_texts()
             for lane in lanes.all()}  # fmt: skip
    versions = [str(one) for one in range(1, 7)]
    assert list(shown) == ["published", "http://127.0.0.1:9001", "http://127.0.0.1:9002"]
    assert shown["published"] == versions
    assert set(versions) <= set(shown["http://127.0.0.1:9001"])
    row = page.get_by_role("table", name="Versions").locator("tbody tr").last.inner_text()
    assert row.split("\t")[0] == "1" and "1.5 s" in row


def test_tasks_are_shown_by_success_with_their_pools_and_lead_to_their_item(run, tab):
    page = tab(run).open("#/tasks")
    assert "retired at the end\n0 too easy, 1 too hard" in page.locator("main").inner_text()
    pools = page.get_by_role("table", name="Pools of gsm8k_0").locator("tbody tr")
    assert pools.count() == 3  # parts of the run
    assert (
        pools.first.locator("[role=img]").get_attribute("title")
        == "too hard 50 %, useful 50 %"
    )
    tasks = page.get_by_role("table", name="Tasks of gsm8k_0").locator("tbody tr")
    assert [row.locator("td").nth(4).inner_text() for row in tasks.all()] == ["0.00", "0.75"]
    bars = tasks.nth(1).locator(".bins")
    assert bars.get_attribute("aria-label") == "0 – – – 0.50 – – – 0.75 –"
    page.get_by_label("Order of the tasks").select_option("easiest")
    page.wait_for_url(re.compile("order=easiest"))
    tasks.first.get_by_text("clips/1").click()
    page.wait_for_url(re.compile("#/item/clips%2F1"))


def test_games_are_shown_by_the_version_of_the_opponent(run, tab):
    page = tab(run).open("#/tasks")
    rows = page.get_by_role("table", name="Games by the version").locator("tbody tr")
    assert [row.locator("td").nth(1).inner_text() for row in rows.all()] == ["2", "present"]
    page.get_by_label("Score").select_option("exact")
    page.wait_for_url(re.compile("score=exact"))
    wins = httpx.get(f"{run}/explore/wins?score=exact").json()["opponents"]
    for one in wins:
        rows.get_by_text(f"{one['score']:.3f} ± {one['stderr']:.3f}").first.wait_for()


def test_a_running_evaluation_has_a_line_among_the_processes(run, tab):
    beat = {"role": "trainer", "name": "trainer", "phase": "training", "details": EVALUATION}
    assert httpx.post(f"{run}/heartbeat", json=beat).status_code == 200
    page = tab(run).open("#/")
    line = page.get_by_role("table", name="Processes").locator("tr", has_text="eval")
    assert (
        "version 20 of step 20" in line.inner_text()
        and "of at most 600 s" in line.inner_text()
    )


def test_a_step_is_pinned_and_unpinned_on_the_page(run, tab):
    page = tab(run).open("#/batch/2")
    for word, other in (("pin", "unpin"), ("unpin", "pin")):
        page.get_by_role("button", name=word, exact=True).click()
        page.get_by_role("button", name=other, exact=True).wait_for()
        pinned = httpx.get(f"{run}/explore/batches/2").json()["pinned"]
        assert (pinned > 0) == (word == "pin")


def test_environments_poll_the_status_alone_while_no_step_ends(run, tab):
    screen = tab(run)
    page = screen.open("#/environments")
    screen.requests.clear()
    for _ in range(2):
        with page.expect_request("**/status"):
            pass
    assert {one.removeprefix(run) for one in screen.requests} == {"/status"}


def test_everything_is_reached_by_keyboard(run, tab):
    screen = tab(run)
    page = screen.open("#/")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.locator(".inner .row").first.wait_for()
    screen.ready()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.locator(".row.cursor").wait_for()
    page.keyboard.press("Enter")
    page.locator(".card.cursor").wait_for()
    screen.ready()
    page.keyboard.press("t")
    page.locator(".tok").first.wait_for()
    screen.ready()
    page.keyboard.press("4")
    page.locator('[data-mode="version"][aria-selected="true"]').wait_for()
    page.keyboard.press("ArrowRight")
    page.locator(".tok.cursor").wait_for()
    assert "token=0" in page.url and "mode=version" in page.url
    page.keyboard.press("?")
    page.locator("dialog[open] kbd").first.wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    page.locator(".card.cursor").wait_for()


def test_long_rows_arrive_in_pieces_and_join_to_the_text_of_the_row(run, tab):
    gid = next(row["gid"] for row in rows_of(run, sort="-n_tokens"))
    page = tab(run).open(f"#/tokens/{gid}/0?token=8000")
    n = httpx.get(f"{run}/explore/groups/{gid}/rows/0").json()["n_tokens"]
    assert n > 8000
    page.locator('.tok[data-at="8000"].cursor').wait_for()
    for at in (0, 4095, 4096, 8000):
        ids = httpx.get(
            f"{run}/explore/groups/{gid}/rows/0", params={"from": at, "to": at + 1}
        )
        columns = ids.json()["columns"]
        text = page.locator(f'.tok[data-at="{at}"]').text_content()
        assert text == columns["text"][0].replace("\n", "↵\n")
    page.locator('.tok[data-at="8000"]').hover()
    assert "8,000" in page.locator(".inspector").inner_text()


def test_hostile_texts_are_shown_as_text_and_marks_as_escapes(run, tab):
    gid = hostile_gid(run)
    screen = tab(run)
    page = screen.open(f"#/group/{gid}")
    shown = page.locator("main").inner_text()
    assert "\\u202e" in shown and "\\x1b" in shown and "\\x00" in shown
    assert not re.search("[\\x00\\x1b\\u202e\\u2066]", shown)
    assert (
        page.locator("main script, main img, main svg[onload], main base, main style").count()
        == 0
    )
    for view in (
        f"tokens/{gid}/0",
        f"tokens/{gid}/3",
        "",
        "rollouts",
        "environments",
        "batches",
        "tasks",
    ):
        page = screen.open(f"#/{view}")
        assert (
            page.locator("main script, main img, main iframe, main base, main style").count()
            == 0
        )
        links = page.locator("main a").evaluate_all("(all) => all.map((a) => a.href)")
        assert all(link.startswith(f"{run}/ui/#") for link in links)


def test_two_samples_are_compared_by_words(run, tab):
    page = tab(run).open("#/group/1")
    for at in (0, 3):
        page.locator(".card input").nth(at).check()
    page.locator(".diff").wait_for()
    assert page.locator(".diff").inner_text()


def test_data_needs_the_token_which_stays_out_of_every_address(browser, tab, tmp_path):
    from atroposlib.api.guards.tokens import add_token
    from tests.ui.recorded_run import recorded_run

    file = tmp_path / "tokens"
    token = add_token(file, "admin")
    with recorded_run(tmp_path, steps=1, hostile=False, tokens=file, token=token) as (url, _):
        screen = tab(url)
        screen.page.goto(f"{url}/ui/#/rollouts")
        field = screen.page.get_by_label("Token")
        field.fill("wrong")
        field.press("Enter")
        field = screen.page.get_by_label("Token")
        field.fill(token)
        field.press("Enter")
        screen.page.locator(".inner .row").first.wait_for()
        assert token not in screen.page.url
        assert not [one for one in screen.requests if token in one]
        screen.errors[:] = [one for one in screen.errors if "401" not in one]


def test_a_hidden_page_asks_for_nothing(run, tab):
    screen = tab(run)
    page = screen.page
    page.add_init_script(
        "Object.defineProperty(document, 'hidden', { get: () => window.away })"
    )
    screen.open("#/")
    with page.expect_request("**/status"):  # a poll
        pass
    page.evaluate(
        "() => { window.away = true; document.dispatchEvent(new Event('visibilitychange')); }"
    )
    before = len(screen.requests)
    page.evaluate("() => new Promise((done) => setTimeout(done, 2500))")  # longer than a poll
    assert len(screen.requests) == before
    with page.expect_request("**/status"):
        page.evaluate(
            "() => { window.away = false; document.dispatchEvent(new Event('visibilitychange')); }"
        )


def test_a_page_whose_api_has_gone_says_how_old_it_is(run, tab):
    screen = tab(run)
    page = screen.page
    screen.open("#/")
    with page.expect_request("**/status"):
        pass
    page.route("**/*", lambda route: route.abort())
    page.wait_for_selector("#pulse.lost")
    assert re.fullmatch(r"no answer: [\d.]+ m?s old", page.inner_text("#pulse"))
    assert page.locator("body.old main").count() == 1
    assert "Start the API again" in page.get_attribute("#pulse", "title")
    screen.errors.clear()
    page.unroute("**/*")
    page.wait_for_selector("#pulse.ok")
    assert page.locator("body.old").count() == 0
    screen.errors.clear()


def test_an_earlier_run_of_the_directory_is_chosen_in_the_head(browser, tab, tmp_path):
    index = Index(tmp_path / "index.sqlite")
    index.write([group(1, [row(0.5)], state="committed")])
    index.set_value("run", '{"run_id": "first"}')
    index.begin_run((1, 0))
    index.write([group(2, [row(0.5)], state="committed")])
    with served(create_view(Explorer(index, MemoryStore()))) as url:
        page = tab(url).open("#/rollouts")
        assert page.locator(".inner .row").first.inner_text().startswith("2.0")
        page.locator("#run select").select_option("first.1")
        page.wait_for_url("**/?run_id=first.1#/rollouts")
        page.locator(".inner .row", has_text="1.0").wait_for()
        assert page.locator(".inner .row").count() == 1
        page.locator("#run select").select_option("newest")
        page.locator(".inner .row", has_text="2.0").wait_for()
    index.close()


def test_an_environment_is_paused_and_weighted_on_the_page(run, tab):
    page = tab(run).open("#/environments")
    card = page.locator(".env").first
    name = card.locator("b").first.inner_text()

    def share():
        shares = httpx.get(f"{run}/status").json()["shares"]
        return next(share for share in shares if share["name"] == name)

    card.get_by_text("pause", exact=True).click()
    card.get_by_text("resume", exact=True).wait_for()
    assert share()["state"] == "paused"
    field = card.get_by_label(f"weight of {name}")
    field.fill("3")
    field.press("Enter")
    card.get_by_text("resume", exact=True).click()
    card.get_by_text("pause", exact=True).wait_for()
    assert (share()["state"], share()["weight"]) == ("running", 3.0)
    field.fill("")
    field.press("Enter")
    page.wait_for_timeout(1500)
    assert share()["own_weight"] is None
