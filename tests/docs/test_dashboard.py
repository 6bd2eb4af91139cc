"""The Grafana dashboard names only metrics and labels that the rollout API exports."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.harness import ENV, Api, group, sampled

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "grafana"
DASHBOARD = json.loads((FOLDER / "rollout-api.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ADDED = {"job", "instance"}  # by the Prometheus server, to every series
NAME = re.compile(r"\b(?:atropos|process)_\w+")
BY = re.compile(r"\bby \(([^)]*)\)")
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


async def test_every_series_and_label_of_a_query_is_exported(labels_of):
    missing = set()
    for param in queries():
        expr, legend = param.values
        names = set(NAME.findall(expr))
        if sys.platform != "linux":  # process_* are read from /proc
            names = {name for name in names if name.startswith("atropos_")}
        missing |= names - labels_of.keys()
        used = {word.strip() for words in BY.findall(expr) for word in words.split(",")}
        used |= set(SELECTED.findall(expr)) | set(re.findall(r"\{\{(\w+)\}\}", legend))
        for name in names & labels_of.keys():
            if labels_of[name]:  # none: without a label, or without a sample here
                missing |= {f"{name}: {one}" for one in used - ADDED - labels_of[name]}
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
