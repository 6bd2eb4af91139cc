"""Tests of publishing from two trainer ranks with a sharded policy to real servers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atroposlib.errors import InferenceUnavailable
from atroposlib.testing.tiny import write_tiny_model
from tests.trainer.weights.support import publishing_ranks
from tests.trainer.weights.support.fleets import fleet

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_sharded_weights_are_gathered_and_a_failure_raises_on_every_rank(
    model_dir, tmp_path, monkeypatch
):
    for i in range(len(publishing_ranks.ORDER)):
        write_tiny_model(tmp_path / f"{i}", seed=10 + i)  # other weights than the server's
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "tests.trainer.weights.support.publishing_ranks",
        "1",
    ]
    other = subprocess.Popen(
        [*command, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with fleet(model_dir, 1) as (server,):
        ours = publishing_ranks.main(0, tmp_path, [Failing(server.client)])
        assert server.engine.weight_version == 2 and not server.engine.is_paused
    theirs, _ = other.communicate(timeout=600)
    assert other.returncode == 0
    assert [line.split(":")[0] for line in ours] == ["PublishFailed", "InferenceUnavailable"]
    for line in theirs.splitlines():
        assert line.startswith("AtroposError: rank 0 gave up:") and "gone" in line
    assert len(theirs.splitlines()) == 2


class Failing:
    """Connection with an injectable failure."""

    def __init__(self, client):
        self.client = client
        self.gone = False

    def __getattr__(self, name):
        if self.gone and name in ("pause", "token_ids"):
            return fail
        return getattr(self.client, name)


def fail(*args):
    raise InferenceUnavailable("gone")
