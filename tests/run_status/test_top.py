"""atropos top: what its table has at 80x24, without a terminal, and with hostile names."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from atroposlib.api.run import judge as judge_of_the_api
from atroposlib.api.server import create_app
from atroposlib.run_status import top, why
from atroposlib.run_status.polling import RunReport
from atroposlib.run_status.verdict import judge
from tests.run_status.staged import EVALUATION, HEALTHY, env, moving, server, still, trainer
from tests.serving import served


@pytest.fixture(autouse=True)
def polls_follow_at_once(monkeypatch):
    monkeypatch.setattr(top, "LINE_S", 0.0)
    monkeypatch.setattr(why, "APART_S", 0.0)
    monkeypatch.setattr(judge_of_the_api, "APART_S", 0.0)


def report_of(evidence):
    """The report that an API with this evidence gives."""
    return RunReport(evidence.url, 0.0, evidence.status, asdict(judge(evidence)))


def shown(evidence, height=24):
    return [text for text, _ in top.table_lines(report_of(evidence), height)]


def test_the_table_has_flow_processes_batches_and_the_first_finding():
    page = "\n".join(shown(HEALTHY))
    assert "1 env > 5.0 groups/s > queue 48 > batch 0 > training > v4 > 1 servers" in page
    assert "batch 4: 512 sequences, delivery 1, lease 280 s" in page
    assert page.endswith("the trainer trains batch 4 (1 s, usual 2 s)") and "healthy: " in page


def test_the_title_has_the_useful_share_also_of_a_run_that_stands_still():
    stuck = still(trainer() | {"age_s": 26.0}, tokens={"useful": 0.614})
    assert shown(stuck)[0].endswith("STARTED  step 4  useful tokens 61%")
    assert shown(moving(tokens={"useful": None}))[0].endswith("step 4")


def test_an_environment_has_its_share_reward_and_drops():
    share = {"name": "sums_0", "asked": 0.5, "realised": 0.4}
    figures = {"reward": 0.25, "groups_sent": 9, "groups_dropped": 3}
    page = "\n".join(shown(moving(trainer(), env(**figures), shares=[share])))
    assert "rollout, reward 0.25, 9 sent, 3 dropped, share 40% of 50%" in page


def test_servers_of_a_machine_differ_in_what_the_table_shows():
    servers = [server(name=f"http://127.0.0.1:{port}/v1") for port in (45000, 45001)]
    page = "\n".join(shown(moving(trainer(), env(), *servers)))
    assert "127.0.0.1:45000" in page and "127.0.0.1:45001" in page


def test_an_evaluation_in_the_background_has_a_line():
    page = shown(moving(trainer(**EVALUATION), env(), server()))
    [line] = [line for line in page if line.startswith("eval")]
    assert line.split(maxsplit=2) == [
        "eval",
        "evaluation",
        "version 20 of step 20 (dir), 35 s of at most 600 s",
    ]


def test_a_silent_process_is_grey_and_its_last_wait_is_not_shown():
    old = env("paused: queue full", "the trainer") | {"age_s": 26.0}
    found = still(trainer("waiting for batch"), old, server(silent_s=20.0))
    rows = dict(top.table_lines(report_of(found), 24))
    grey = [text for text, style in rows.items() if style == "bright_black"]
    assert len(grey) == 2 and all("silent since" in text for text in grey)
    assert not any("waits for the trainer" in text for text in grey)


@pytest.mark.parametrize("processes", [3, 40])
def test_it_fits_a_terminal_of_24_lines(processes):
    many = [env(name=f"e{no}-0a1b2c") for no in range(processes)]
    found = still(trainer(age_s=26.0), *many)
    rows = top.table_lines(report_of(found), 23)
    assert len(rows) <= 23
    assert all(top.fit_line(row, 80).cell_len <= 80 for row in rows)


def test_control_characters_of_names_are_escaped():
    found = moving(trainer(), env(name="\x1b[31m\x07evil-0a1b2c"))
    text = "".join(
        top.fit_line(row, 80).plain for row in top.table_lines(report_of(found), 24)
    )
    assert "\x1b" not in text and "\x07" not in text and r"\x1b[31m" in text


def test_one_poll_is_printed_as_text_and_as_json(capsys):
    with served(create_app()) as url:
        assert top.main(["--api-url", url, "--once"]) == 0
        assert "waiting: no trainer has registered" in capsys.readouterr().out
        assert top.main(["--api-url", url, "--once", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
    assert found["status"]["state"] == "EMPTY"
    assert found["findings"][0]["key"] == "no-trainer"


def test_an_absent_api_is_status_3(capsys):
    assert top.main(["--api-url", "http://127.0.0.1:1", "--once"]) == 3
    shown = capsys.readouterr().out
    assert "does not answer" in shown and "queue" not in shown  # no invented zeros


def test_without_a_terminal_there_is_a_line_per_poll(capsys, monkeypatch):
    def stop_after_two(*_):
        if capsys.readouterr().out.count("\n"):
            raise KeyboardInterrupt

    monkeypatch.setattr(top.time, "sleep", stop_after_two)
    with served(create_app()) as url, pytest.raises(KeyboardInterrupt):
        top.main(["--api-url", url])


def test_the_one_line_form_has_flow_and_verdict():
    line = top.summary_line(report_of(still(trainer(age_s=26.0), env())))
    assert line.startswith("1 env > 0.0 groups/s") and "stuck: the trainer ended" in line


def test_an_environment_whose_name_begins_another_name_has_its_own_figures():
    shares = [
        {"name": "sums_hard_0", "asked": 0.9, "realised": 0.9},
        {"name": "sums_0", "asked": 0.1, "realised": 0.1},
    ]
    hard = env(name="sums_hard-0a1b2c", groups_sent=7)
    page = shown(moving(trainer(), hard, env(groups_sent=3), shares=shares))
    [first] = [line for line in page if line.startswith("env       sums_hard")]
    [second] = [line for line in page if line.startswith("env       sums ")]
    assert "7 sent, share 90% of 90%" in first and "3 sent, share 10% of 10%" in second
