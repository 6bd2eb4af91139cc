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
    "page-group": ("#/group/7", "light", 1280, 720),
    "page-tokens": ("#/tokens/7/1?mode=probability&token=30", "light", 1280, 560),
    "page-curves": ("#/curves", "dark", 1280, 560),
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
            page.screenshot(path=out / f"{name}.png", animations="disabled")
            print(out / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
