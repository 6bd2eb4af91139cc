"""run-api as a child process, for the tests that need a real one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager

import pytest

from atroposlib.wire import Registration

BATCH = 8


def command(*options):
    return [sys.executable, "-m", "atroposlib.cli.run_api", *options]


def environment(**more):
    """This one without the variables of run-api, then ``more``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ATROPOS_")}
    return kept | more


@contextmanager
def serving(folder, *options, port=0, stderr=None, **variables):
    """A process that serves, with its URL, killed at the end."""
    process = subprocess.Popen(
        command("--port", str(port), "--data-dir", str(folder), *options),
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=environment(**variables),
    )
    try:
        line = process.stdout.readline()
        yield process, re.search(r"https?://\S+?:\d+", line)[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def without_variables(monkeypatch):
    """For tests in this process; gives ``monkeypatch``."""
    for name in [name for name in os.environ if name.startswith("ATROPOS_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def registration(**more):
    return Registration(
        wandb_group="",
        wandb_project="",
        batch_size=BATCH,
        max_token_len=64,
        checkpoint_dir="",
        save_checkpoint_interval=1,
        starting_step=0,
        num_steps=10,
        **more,
    )
