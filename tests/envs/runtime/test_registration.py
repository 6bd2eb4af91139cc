"""The run as an environment sees it, and its registration at the rollout API."""

from __future__ import annotations

import asyncio

import pytest

from atroposlib.envs.runtime import registration
from atroposlib.envs.runtime.registration import JoinedRun, RunRegistration
from atroposlib.envs.runtime.waits import Shutdown
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.errors import ConfigError, NotRegistered
from atroposlib.wire import EnvRegistered


def registered(env_id=3, run_id="r", num_steps=40, step=7):
    return EnvRegistered(
        env_id=env_id,
        run_id=run_id,
        wandb_name=f"toy_{env_id}",
        checkpoint_dir="/runs",
        starting_step=step,
        checkpoint_interval=5,
        num_steps=num_steps,
    )


def run_of(**settings) -> JoinedRun:
    config = BaseEnvConfig(group_size=4, **settings)
    return JoinedRun(lambda: "toy", lambda: config)


class Api:
    """Registers after ``refusals`` attempts without a trainer."""

    def __init__(self, *replies, refusals=0):
        self.replies, self.refusals = list(replies), refusals
        self.batch_size, self.requests = 8, []

    register_after_s = 0.0

    async def register_env(self, request):
        self.requests.append(request)
        if len(self.requests) <= self.refusals:
            return None
        return self.replies.pop(0)

    async def info(self):
        return {"batch_size": self.batch_size, "max_token_len": 512}


def registration_of(run, api):
    waits, new_runs = [], []
    made = RunRegistration(
        run, api, Shutdown(), waiting=waits.append, new_run=lambda: new_runs.append(True)
    )
    return made, waits, new_runs


def test_before_the_registration_there_is_no_run():
    with pytest.raises(NotRegistered, match="toy has not joined a run"):
        run_of().registration


def test_joining_adopts_step_sizes_and_names_of_the_run():
    run = run_of()
    run.join(registered(), batch_size=8, max_token_len=512)
    assert (run.step, run.env_id, run.name, run.checkpoint_interval) == (7, 3, "toy_3", 5)
    assert (run.config.batch_size, run.max_token_len) == (8, 512)
    assert (run.identity.env_id, run.identity.run_id) == (3, "r")


def test_the_number_of_steps_is_that_of_the_trainer_only_if_none_is_set():
    own, trainers = run_of(total_steps=10), run_of(total_steps=-1)
    for run in (own, trainers):
        run.join(registered(num_steps=40), 8, 512)
    assert (own.config.total_steps, trainers.config.total_steps) == (10, 40)
    with pytest.raises(ConfigError, match="total_steps is -1"):
        run_of(total_steps=-1).join(registered(num_steps=-1), 8, 512)


def test_a_size_of_minus_one_leaves_the_present_value():
    run = run_of(batch_size=16)
    run.resize(-1, 512)
    run.resize(-1, -1)
    assert (run.config.batch_size, run.max_token_len) == (16, 512)


def test_a_group_larger_than_a_batch_is_an_error():
    with pytest.raises(ConfigError, match="group_size 4 is more than the 2 sequences"):
        run_of().resize(2, -1)


def test_without_a_trainer_the_configured_length_bounds_a_sequence():
    run = run_of(max_token_length=99)
    run.work_alone()
    assert run.max_token_len == 99


async def test_registration_waits_for_the_trainer(monkeypatch):
    monkeypatch.setattr(registration, "TRAINER_POLL_S", 0.0)
    run, api = run_of(), Api(registered(), refusals=2)
    made, waits, _ = registration_of(run, api)
    assert await made.register() is run.registration
    assert len(waits) == 2 and waits[0].startswith("the trainer to start, 0 s of at most")
    assert (api.requests[0].desired_name, api.requests[0].group_size) == ("toy", 4)


async def test_an_absent_trainer_is_waited_for_within_a_bound(monkeypatch):
    monkeypatch.setattr(registration, "TRAINER_POLL_S", 0.02)
    made, _, _ = registration_of(run_of(trainer_timeout_s=0.01), Api(refusals=10**6))
    with pytest.raises(NotRegistered, match="no trainer started within"):
        await asyncio.wait_for(made.register(), 600)


async def test_callers_with_one_stale_registration_register_again_once():
    run = run_of()
    first, second = registered(), registered(env_id=4, run_id="other")
    api = Api(first, second)
    made, _, new_runs = registration_of(run, api)
    stale = await made.register()
    got = await asyncio.gather(*(made.re_register(stale) for _ in range(5)))
    assert all(one is second for one in got)
    assert len(api.requests) == 2 and new_runs == [True]


async def test_the_batch_size_is_read_again_after_the_refresh_period(monkeypatch):
    run, api = run_of(), Api(registered())
    made, _, _ = registration_of(run, api)
    await made.register()
    api.batch_size = 16
    await made.refresh()
    assert run.config.batch_size == 8  # read 5 s ago at most
    made._refresh_at = 0.0
    await made.refresh()
    assert run.config.batch_size == 16
