"""Write pictures of the page of a small recorded run: light, dark, and 500 px wide.

    python scripts/screenshots.py [--out docs/images] [--url http://127.0.0.1:8000]

Needs the extra browser-test and an installed Chromium. With ``--url``, of the run there.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.ui.conftest import ARGS, NAMES  # noqa: E402
from tests.ui.recorded_run import recorded_run  # noqa: E402

# name of the picture: address, colour scheme, width and height in px
PICTURES = {
    "page-overview": ("#/", "light", 1280, 720),
    "page-rollouts-dark": ("#/rollouts?sort=reward", "dark", 1280, 720),
    "page-weights": ("#/weights", "light", 1280, 560),
    "page-narrow": ("#/group/7", "light", 500, 860),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images")
    parser.add_argument("--url", help="a run that is served; else a small one is recorded")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        run = (
            nullcontext((options.url, None))
            if options.url
            else recorded_run(Path(folder), steps=24, hostile=False)
        )
        with run as (url, _):
            shoot(url, options.out)


def shoot(url: str, out: Path) -> None:
    """Write every picture into ``out``."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        raise SystemExit(f"no Chromium: install one of {', '.join(NAMES)}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGS)
        for name, (address, scheme, width, height) in PICTURES.items():
            how: dict[str, Any] = {"viewport": {"width": width, "height": height}}
            page = browser.new_page(color_scheme=scheme, **how)
            page.goto(f"{url}/ui/{address}")
            page.locator(".view[data-ready]").wait_for()
            page.locator("#run small").wait_for()
            picture(page, out / f"{name}.png")
            page.close()
        from_curve_to_token(
            browser.new_page(viewport={"width": 1280, "height": 560}), url, out
        )
        browser.close()


def from_curve_to_token(page: Any, url: str, out: Path) -> None:
    """Three clicks: the lowest point of the reward, its first rollout, the tokens of a sample."""
    page.goto(f"{url}/ui/#/curves")
    plot = page.locator(".chart", has_text="reward rollup").locator(".u-over")
    plot.wait_for()
    [curve] = page.request.get(f"{url}/explore/curves?keys=reward").json()["series"]
    steps = [step for step, _ in curve["points"]]
    spike, _ = min(curve["points"], key=lambda point: point[1])
    box = plot.bounding_box()
    across = box["width"] * (spike - steps[0]) / (steps[-1] - steps[0])
    plot.hover(position={"x": across, "y": box["height"] / 2})
    picture(page, out / "page-curves.png")
    plot.click(position={"x": across, "y": box["height"] / 2})  # 1
    page.locator(".inner .row").first.wait_for()
    picture(page, out / "page-spike.png")
    page.locator(".inner .row").first.click()  # 2
    tokens = page.locator(".card a", has_text="tokens of").first
    tokens.wait_for()
    picture(page, out / "page-group.png")
    tokens.click()  # 3
    page.locator(".tok").first.wait_for()
    page.keyboard.press("3")  # trainer minus sampler
    page.keyboard.press("n")  # the next token where they differ
    page.locator(".tok.cursor").wait_for()
    picture(page, out / "page-tokens.png")


def picture(page: Any, path: Path) -> None:
    page.screenshot(path=path, animations="disabled")
    print(path)


if __name__ == "__main__":
    main()
