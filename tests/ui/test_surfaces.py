"""Every surface shows the same verdict: the staged stalls and ten healthy runs through all of them."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace

import pytest
from rich.console import Console

from atroposlib.run_status import top, why
from atroposlib.run_status.polling import RunReport
from atroposlib.run_status.sources import Sources, WatchedRun
from atroposlib.run_status.verdict import EXIT_STATUS, judge
from atroposlib.run_status.view import PlainView, panel
from atroposlib.wire.status import VerdictReport
from tests.run_status.staged import EVALUATION, HEALTHY, env, moving, server, trainer
from tests.run_status.test_rules_processes import PAUSED, STALLS as OF_PROCESSES, WAITING
from tests.run_status.test_rules_queue import STALLS as OF_THE_QUEUE

# Found by a caller alone: an API that does not answer, and a run at another API.
OF_THE_CALLER = {"api-silent", "two-apis"}
STALLS = {
    key: evidence
    for key, (evidence, *_) in {**OF_PROCESSES, **OF_THE_QUEUE}.items()
    if key not in OF_THE_CALLER
}
SLOW = {"phase_s": 200.0, "phase_median_s": 180.0}
HEALTHY_RUNS = {
    "plain": HEALTHY,
    "trains while environments wait on purpose": moving(
        trainer(phase_s=20.0), PAUSED, server()
    ),
    "waits for rollouts": moving(WAITING, env(), server()),
    "publishes": moving(trainer("publishing weights"), env(), server()),
    "saves": moving(trainer("saving"), env(), server()),
    "evaluates": moving(trainer(), env("evaluating"), server()),
    "evaluates in the background": moving(trainer(**EVALUATION), env(), server()),
    "slow steps": moving(trainer(**SLOW), PAUSED, server(), usual_step_s=190.0),
    "a queue with a batch": moving(WAITING, env(), server(), blocked_reason=None),
    "an environment that was replaced": moving(
        trainer(), env(), env(name="sums-999999") | {"age_s": 60.0}, server()
    ),
    "its first step": moving(WAITING, env(), server(), batches_acked=0, current_step=0),
}


def verdict_of(evidence):
    """The verdict as it arrives at a caller: through the wire's model, as JSON."""
    document = VerdictReport.model_validate(asdict(judge(evidence)))
    return json.loads(document.model_dump_json())


def snapshot_of(evidence, verdict, folder):
    """What the launchers read of an API that answers with this verdict."""
    watched = WatchedRun(
        "run", "title", 16, "http://a", "http://s", True, folder / "m", folder
    )
    sources = Sources(watched, 0.0)
    answers = {"http://a/status": {**evidence.status, "verdict": verdict}}
    sources.probe.get = answers.get
    return sources.read()


def printed_by(view, show):
    console = Console(file=io.StringIO(), width=2000)
    if view is not None:
        view._console = console
        show(view)
    else:
        console.print(show)
    return console.file.getvalue()


@pytest.mark.parametrize("name", [*STALLS, *HEALTHY_RUNS])
def test_all_surfaces_show_the_same_verdict(name, tmp_path, monkeypatch):
    evidence = {**STALLS, **HEALTHY_RUNS}[name]
    verdict = verdict_of(evidence)
    report = RunReport(evidence.url, 0.0, evidence.status, verdict)
    snapshot = snapshot_of(evidence, verdict, tmp_path)
    words = f"{verdict['state']}: {verdict['line']}"

    assert (snapshot.state, snapshot.line) == (verdict["state"], verdict["line"])
    assert words[:120] in printed_by(None, panel(snapshot, 2000, 60))
    clock = [0.0]
    monkeypatch.setattr("atroposlib.run_status.view.time.monotonic", lambda: clock[0])
    view = PlainView(Console())
    clock[0] = 31.0
    assert words in printed_by(view, lambda view: view.show(replace(snapshot, step=0)))
    assert words in top.summary_line(report)
    first = why.page(verdict).split("\n")[0]
    assert first in [text for text, _ in top.table_lines(report)]
    assert first == words or first == f"{verdict['state']}: {verdict['findings'][0]['cause']}"
    assert EXIT_STATUS[verdict["state"]] == EXIT_STATUS[judge(evidence).state]


@pytest.mark.parametrize("name", HEALTHY_RUNS)
def test_a_healthy_run_is_never_orange_or_red(name):
    verdict = verdict_of(HEALTHY_RUNS[name])
    assert verdict["state"] == "healthy" and verdict["findings"] == []
    report = RunReport("http://a", 0.0, HEALTHY_RUNS[name].status, verdict)
    styles = {style for _, style in top.table_lines(report)}
    assert not any("red" in style or "yellow" in style for style in styles)


@pytest.mark.parametrize("key", STALLS)
def test_a_stall_is_never_healthy_without_a_warning(key):
    verdict = verdict_of(STALLS[key])
    assert verdict["state"] != "healthy" or verdict["findings"]
    assert verdict["state"] == "healthy" or verdict["state"] == "done" or verdict["remedy"]
