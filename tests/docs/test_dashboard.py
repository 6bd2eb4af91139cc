"""Dashboard and alerts name only metrics and labels that the rollout API exports; the unit is valid."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.api.harness import ENV, Api, group, sampled

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "grafana"
DASHBOARD = json.loads((FOLDER / "rollout-api.json").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
UNIT = FOLDER.parent / "examples" / "atropos-api.service"
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ADDED = {"job", "instance"}  # by the Prometheus server, to every series
NAME = re.compile(r"\b(?:atropos|process)_\w+")
BY = re.compile(r"\bby\s*\(([^)]*)\)")
SELECTED = re.compile(r'(\w+)=~?"')


def queries():
    for panel in PANELS:
        for target in panel["targets"]:
            yield pytest.param(target["expr"], target["legendFormat"], id=panel["title"])


@pytest.fixture
async def labels_of(tmp_path):
    """Series -> label names of the samples, after every kind of event a panel shows."""
    api = Api(tmp_path)
    trainer = await api.registered(batch_size=2)
    assert await api.trained(trainer) is None  # the trainer has begun: environments may join
    joined = await api.post("/register-env", ENV)
    await api.post("/heartbeat", {"role": "env", "name": "e", "phase": "rollout"})
    await api.post("/scored_data", group(scores=[]))
    await api.post("/scored_data", sampled(0, env_id=joined["env_id"]))
    assert await api.trained(trainer)
    text = (await api.http.get("/metrics")).text
    await api.end()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        found.setdefault(name, set())
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def rules():
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


async def test_every_series_and_label_of_a_query_is_exported(labels_of):
    missing = set()
    alerts = [(rule["expr"], "") for rule in rules()]
    for expr, legend in [param.values for param in queries()] + alerts:
        names = set(NAME.findall(expr))
        if sys.platform != "linux":  # process_* are read from /proc
            names = {name for name in names if name.startswith("atropos_")}
        missing |= names - labels_of.keys()
        used = {word.strip() for words in BY.findall(expr) for word in words.split(",")}
        used |= set(re.findall(r"\{\{(\w+)\}\}", legend))
        for name in names & labels_of.keys():
            if labels_of[name]:  # none: without a label, or without a sample here
                own = used.union(
                    *map(SELECTED.findall, re.findall(name + r"\{([^}]*)\}", expr))
                )
                missing |= {f"{name}: {one}" for one in own - ADDED - labels_of[name]}
    assert missing == set()


def test_every_metric_of_the_page_of_the_api_is_shown():
    page = (FOLDER.parent / "rollout-api.md").read_text(encoding="utf-8")
    table = page.partition("## Numbers")[2].partition("Alert on")[0]
    shown = " ".join(param.values[0] for param in queries())
    named = re.findall(r"`(atropos_\w+)", table)
    assert [name for name in named if name not in shown] == [
        "atropos_queue_groups",
        "atropos_groups_dropped",
    ]


def test_panels_have_one_place_each_and_their_own_id():
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_each_alert_has_what_prometheus_and_its_reader_need():
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) > 8
    for rule in rules():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert NAME.search(rule["expr"]), rule["alert"]
        assert rule["labels"]["severity"] in ("page", "warn")
        assert rule["annotations"].keys() == {"summary", "action"}
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_the_unit_of_systemd_is_valid(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    text = UNIT.read_text(encoding="utf-8")
    text = re.sub(r"=\S+/atropos ", f"={sys.executable} ", text)  # verify looks for it
    text = text.replace("User=atropos\n", "")
    (tmp_path / UNIT.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
    )
    said = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, said) == (0, [])


def test_the_unit_calls_the_api_with_options_that_it_has():
    from atroposlib.cli.api_options import parse_args

    [command] = re.findall(r"^ExecStart=\S+ api serve (.*)$", UNIT.read_text(), re.MULTILINE)
    assert parse_args(command.split()).port == 8000
