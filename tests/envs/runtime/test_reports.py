"""Reports of an environment: one per reason and ten seconds, with a sample that can be read."""

from __future__ import annotations

import pytest

from atroposlib.envs.runtime.reports import Reports
from atroposlib.wire import EnvIdentifier
from atroposlib.wire.binary import unpack_group
from tests.envs.rollout.rows import group

WHO = EnvIdentifier(env_id=3, run_id="r")


class Client:
    def __init__(self):
        self.drops, self.steps, self.answers = [], [], True

    async def report_drops(self, report, sample):
        self.drops.append((report.reason, report.count, sample))
        return self.answers

    async def report_step(self, report):
        self.steps.append(report)


@pytest.fixture
def now():
    return [100.0]


@pytest.fixture
def reports(now):
    return Reports(lambda: now[0])


async def test_a_reason_is_reported_every_ten_seconds_with_its_first_group(reports, now):
    client = Client()
    first, later = group(), group()
    first["scores"] = [0.5] * len(first["scores"])
    reports.drop("same_scores", first)
    reports.drop("same_scores", later)
    reports.drop("short", None)
    await reports.send(client, WHO)
    [(reason, count, sample), short] = client.drops
    assert (reason, count, short) == ("same_scores", 2, ("short", 1, b""))
    assert unpack_group(sample).scores == first["scores"]
    reports.drop("same_scores", later)
    await reports.send(client, WHO)
    assert len(client.drops) == 2  # too soon
    now[0] += 10
    await reports.send(client, WHO)
    assert client.drops[2][:2] == ("same_scores", 1)


@pytest.mark.parametrize(
    "bad", [{"tokens": "no rows"}, {"tokens": []}, {**group(), "tokens": [[1] * 10**6] * 2}]
)
async def test_a_group_without_a_binary_form_is_counted_only(reports, bad):
    client = Client()
    reports.drop("malformed", bad)
    await reports.send(client, WHO)
    assert client.drops == [("malformed", 1, b"")]


async def test_an_api_that_gives_no_answer_delays_a_heartbeat_by_one_call(reports):
    client = Client()
    client.answers = False
    for reason in ("short", "invalid", "refused"):
        reports.drop(reason, None)
    reports.write({"a": 1.0}, 1)
    await reports.send(client, WHO)
    assert (len(client.drops), client.steps) == (1, [])


async def test_the_numbers_of_the_last_step_are_reported_once(reports):
    client = Client()
    reports.write({"train/exact": 0.25}, 1)
    many = {"x" * 201: 1.0} | {str(n): n for n in range(999)}
    reports.write({"table": object(), "nan": float("nan"), **many}, 2)
    await reports.send(client, WHO)
    await reports.send(client, WHO)
    [report] = client.steps
    assert (report.role, report.step, report.env_id, report.run_id) == ("env", 2, 3, "r")
    assert len(report.values) == 256 and report.values["7"] == 7.0
    reports.close()
