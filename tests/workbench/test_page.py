"""The page of the workbench in a browser: views, keys, hostile texts."""

from __future__ import annotations

import re

import pytest

from atroposlib.workbench.app import create_workbench
from tests.serving import served
from tests.ui.conftest import browser, tab  # noqa: F401, fixtures of the page of a run
from tests.workbench.made_runs import make_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]
HOSTILE = "<script>window.pwned = 1</script>"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for name, lr, seed in (("a0", 0.1, 0), ("a1", 0.1, 1), (f"b {HOSTILE[:8]}", 0.2, 0)):
        make_run(root / name, lr=lr, seed=seed, heldout={"x": lr, HOSTILE: 1.0})
    with served(create_workbench(root)) as url:
        yield url


@pytest.mark.parametrize(
    "view", ["", "compare", "tasks", "diff", "task?task=x&source=held-out"]
)
def test_each_view_opens_and_fits_a_width_of_500(url, tab, view):  # noqa: F811
    page = tab(url, width=500).open(f"#/{view}")
    assert page.locator("main").inner_text().strip()
    assert "This view failed" not in page.locator("main").inner_text()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 500


def test_two_runs_are_chosen_and_compared_by_keyboard(url, tab):  # noqa: F811
    page = tab(url).open("#/")
    for key in ("x", "j", "x"):
        page.keyboard.press(key)
    page.wait_for_url(re.compile(r"runs=\w{12}%2C\w{12}"))
    page.keyboard.press("d")
    page.get_by_role("heading", name="a0 → a1").wait_for()
    page.keyboard.press("c")
    page.locator(".legend", has_text="mean of 2").wait_for()
    page.keyboard.press("a")
    page.locator(".legend", has_text="a1").wait_for()
    page.keyboard.press("s")
    page.locator("figcaption", has_text="by sampled tokens").first.wait_for()


def test_a_task_shows_the_answers_of_all_runs_as_text(url, tab):  # noqa: F811
    page = tab(url).open("#/tasks")
    page.get_by_role("cell", name=HOSTILE, exact=True).click()
    page.locator(".card").nth(2).wait_for()
    assert f"{HOSTILE}!" in page.locator(".card").first.inner_text()
