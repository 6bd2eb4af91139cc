"""A Chromium that is installed, driven by Playwright; no browser is downloaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
REQUIRED = "ATROPOS_BROWSER_TESTS"


def absent(what: str) -> None:
    """Skip, or fail where the tests of the page are required."""
    if os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1 and {what}")
    pytest.skip(f"{what}: the page is not tested")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        absent("no Chromium is installed")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        absent("pip install '.[browser-test]' is missing")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGS)
        yield chromium
        chromium.close()


class Screen:
    """One tab: its requests, and what it wrote to the console."""

    def __init__(self, context: Any, url: str) -> None:
        self.url, self.requests, self.errors = url, [], []
        self.page = context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _note(self, message: Any) -> None:
        # A route that this API lacks is an answer; the console lists it all the same.
        if message.type in ("error", "warning") and "404" not in message.text:
            self.errors.append(message.text)

    def open(self, address: str) -> Any:
        """The page at ``address`` (``#/rollouts``), once its view is complete."""
        self.page.goto(f"{self.url}/ui/{address}")
        return self.ready()

    def ready(self) -> Any:
        self.page.locator(".view[data-ready]").wait_for()
        return self.page

    @property
    def origins(self) -> set[str]:
        return {"/".join(one.split("/")[:3]) for one in self.requests}


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """``tab(url)`` opens a tab; at the end, no console error and no other origin is allowed."""
    contexts, screens = [], []

    def open_tab(url: str, width: int = 1280) -> Screen:
        contexts.append(browser.new_context(viewport={"width": width, "height": 800}))
        screens.append(Screen(contexts[-1], url))
        return screens[-1]

    yield open_tab
    for screen in screens:
        assert screen.errors == []
        assert screen.origins <= {screen.url}
        assert screen.page.evaluate("() => window.pwned") is None
    for context in contexts:
        context.close()
