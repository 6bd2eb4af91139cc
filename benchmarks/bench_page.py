"""The page on a live run: frames while a long list scrolls, and CPU of the server for open pages.

    python benchmarks/bench_page.py [--seconds 20] [--pages 20]

A server process with a durable store takes 20 groups of 16 rows a second, and a trainer claims, acks
and reports the batches. Chromium (Playwright, the extra browser-test) loads 10,000 rows of the
list and scrolls; then it keeps Overview open, once and in many tabs. CPU of the server
without a page is measured before and after, and subtracted.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
from playwright.sync_api import sync_playwright

from atroposlib.client import RolloutClient
from atroposlib.wire import Registration, StepReport

RATE, ROWS, LOADED = 20, 16, 10_000  # groups/s, rows of each, rows in the list
ARGS = ["--no-sandbox", "--disable-gpu"]
# Frames and long tasks while the list scrolls up and down for some seconds.
SCROLL = """async (seconds) => {
  const frames = [], tasks = [], list = document.querySelector(".list");
  const end = performance.now() + seconds * 1000;
  const note = (seen) => tasks.push(...seen.getEntries().map((one) => one.duration));
  new PerformanceObserver(note).observe({ entryTypes: ["longtask"] });
  let last = performance.now(), at = 0;
  await new Promise((done) => requestAnimationFrame(function step(now) {
    frames.push(now - last); last = now; at += 180;
    list.scrollTop = at % (list.scrollHeight - list.clientHeight);
    if (now < end) requestAnimationFrame(step); else done();
  }));
  frames.sort((a, b) => a - b);
  return { n: frames.length, p95: frames[Math.floor(frames.length * 0.95)], tasks };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--pages", type=int, default=20)
    options = parser.parse_args()
    path = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
    with live_run() as (url, server), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGS)
        page = browser.new_page()
        page.goto(f"{url}/ui/#/rollouts")
        page.locator(".inner .row").first.wait_for()
        while (
            page.evaluate("() => document.querySelector('.inner').clientHeight / 25") < LOADED
        ):
            page.evaluate(
                "() => { const l = document.querySelector('.list'); l.scrollTop = l.scrollHeight; }"
            )
        frames = page.evaluate(SCROLL, options.seconds)
        longest = max(frames["tasks"], default=0.0)
        print(
            f"{frames['n']} frames, 95 % within {frames['p95']:.1f} ms; longest task {longest:.0f} ms"
        )
        page.close()
        before = cpu_share(server, options.seconds)
        shares = []
        for count in (1, options.pages):
            pages = [browser.new_context().new_page() for _ in range(count)]
            for tab in pages:
                tab.goto(f"{url}/ui/")
                tab.locator(".view[data-ready]").wait_for()
            shares.append(cpu_share(server, options.seconds))
            for tab in pages:
                tab.context.close()
        idle = (before + cpu_share(server, options.seconds)) / 2
        for count, share in zip((1, options.pages), shares):
            print(
                f"{count} pages: {share - idle:+.1%} of a core, beside {idle:.1%} for the run"
            )
    print(f"load average {os.getloadavg()[0]:.1f}")


def cpu_share(server: psutil.Process, seconds: float) -> float:
    """CPU seconds of the server per second."""
    times = server.cpu_times()
    began, spent = time.monotonic(), times.user + times.system
    time.sleep(seconds)
    times = server.cpu_times()
    return (times.user + times.system - spent) / (time.monotonic() - began)


@contextmanager
def live_run() -> Iterator[tuple[str, psutil.Process]]:
    """A server, and a thread that is its environments and its trainer."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "atroposlib.cli.run_api", "--port", "0"]
        server = subprocess.Popen(
            [*command, "--data-dir", folder], stdout=subprocess.PIPE, text=True
        )
        assert server.stdout is not None
        url = server.stdout.readline().split()[3].rstrip(",")
        end = threading.Event()
        thread = threading.Thread(target=run, args=(url, end))
        try:
            rows = LOADED // ROWS + 10
            thread.start()
            while httpx.get(f"{url}/explore/runs").json()["runs"][0]["groups"] < rows:
                time.sleep(0.5)
            yield url, psutil.Process(server.pid)
        finally:
            end.set()
            thread.join(60)
            server.terminate()
            server.wait()


def run(url: str, end: threading.Event) -> None:
    """Post 10,000 rows at once, then ``RATE`` groups a second; train on all."""
    with httpx.Client(base_url=url, timeout=60) as http, RolloutClient(url) as trainer:
        about: dict[str, Any] = {"wandb_group": "", "wandb_project": "", "checkpoint_dir": ""}
        about |= {"batch_size": RATE * ROWS, "max_token_len": 512, "starting_step": 0}
        about |= {"save_checkpoint_interval": 0, "num_steps": 10**6}
        trainer.register(Registration(**about))
        trainer.claim(wait_s=0)
        env = {"max_token_length": 512, "desired_name": "e", "weight": 1.0, "group_size": ROWS}
        env_id = http.post("/register-env", json=env).json()["env_id"]
        chance, due, step = random.Random(0), time.monotonic(), 0
        while not end.is_set():
            due += 0.0 if step * RATE * ROWS < LOADED else 1.0  # no pause up to LOADED rows
            groups = [group(chance, env_id, f"{step}/{n}") for n in range(RATE)]
            http.post("/scored_data_list", json=groups).raise_for_status()
            batch = trainer.claim(wait_s=10)
            trainer.ack(batch)
            step += 1
            seconds = {"seconds_wait": 0.3, "seconds_train": 0.6, "seconds_publish": 0.1}
            trainer.report_step(
                StepReport(role="trainer", step=step, batch_no=batch.batch_no, values=seconds)
            )
            trainer.announce_version(step)
            end.wait(max(0.0, due - time.monotonic()))


def group(chance: random.Random, env_id: int, item: str) -> dict[str, Any]:
    tokens_G_T = [[chance.randrange(1000) for _ in range(40)] for _ in range(ROWS)]
    masks_G_T = [[-100] * 20 + row[20:] for row in tokens_G_T]
    scores = [float(chance.random() < 0.5) for _ in tokens_G_T]
    ids = {"env_id": env_id, "group_id": item}
    return {"tokens": tokens_G_T, "masks": masks_G_T, "scores": scores} | ids


if __name__ == "__main__":
    main()
