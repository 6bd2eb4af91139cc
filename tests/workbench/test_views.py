"""Explorers of ended runs: opened once, closed when idle, so that a run can go on."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError, StoreLocked
from atroposlib.workbench import views as views_module
from atroposlib.workbench.run_folders import run_at
from atroposlib.workbench.views import IDLE_S, MAX_OPEN, Views
from tests.api.harness import Api, sampled
from tests.workbench.made_runs import make_run


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
async def folder(tmp_path):
    """The folder of a run with a group."""
    api = Api(tmp_path / "run/queue", "sqlite", archive_bytes=10**6)
    [env_id] = await api.started(batch_size=2)
    await api.post("/scored_data", sampled(0, env_id=env_id))
    await api.end()
    return tmp_path / "run"


async def test_an_idle_view_is_closed_and_frees_the_folder(folder):
    clock = Clock()
    views, run = Views(lambda explorer: explorer, clock), run_at(str(folder))
    with views.use(run) as view:
        assert view.explorer.rollouts({}).rows and view.app is view.explorer
        clock.now = 2 * IDLE_S
        views.close_idle()  # in use
        with pytest.raises(StoreLocked):
            Api(run.data, "sqlite")
        with views.use(run) as same:
            assert same is view
    clock.now += IDLE_S - 1
    views.close_idle()
    with pytest.raises(StoreLocked):
        Api(run.data, "sqlite")
    clock.now += 1
    views.close_idle()
    await Api(run.data, "sqlite").end()


def test_only_a_few_views_stay_open_and_all_close_at_the_end(tmp_path, monkeypatch):
    closed = []

    class Opened:
        def __init__(self, data, tokenizer):
            self.data = data

        def __enter__(self):
            return None, self.data.parent.name

        def __exit__(self, *error):
            closed.append(self.data.parent.name)

    monkeypatch.setattr(views_module, "open_explorer", Opened)
    views = Views(lambda explorer: explorer)
    names = [f"r{no}" for no in range(MAX_OPEN + 2)]
    for name in names:
        with views.use(run_at(str(make_run(tmp_path / name, items={"q": [1.0]})))):
            pass
    assert closed == names[:2]
    views.close()
    assert closed == names


def test_a_run_that_keeps_nothing_is_an_error(tmp_path):
    views = Views(lambda explorer: explorer)
    run = run_at(str(make_run(tmp_path / "a")))
    with pytest.raises(ConfigError, match="keeps no rollouts"), views.use(run):
        pass
