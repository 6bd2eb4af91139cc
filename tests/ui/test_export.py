"""The page as one file: nothing of its texts can run, and it shows what the server showed."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re

import pytest
from hypothesis import given, settings, strategies as st

from atroposlib.api.archive.load import open_explorer
from atroposlib.cli.view import select_rollouts, view
from atroposlib.errors import ConfigError
from atroposlib.text.lines import encodable
from atroposlib.ui.export import Kept, bundle, exported_page
from tests.ui.rendered import rendered

HOSTILE = "</script><script>window.pwned = 1</script><!--<script>\u2028 &amp; ]]> \x00"


class Elements(html.parser.HTMLParser):
    """Attributes and content of each script and style."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.found, self.policy = [], ""
        self.feed(page.decode())

    def handle_starttag(self, tag, attrs):
        if tag in ("script", "style"):
            self.found.append([tag, dict(attrs), ""])
        if tag == "meta" and dict(attrs).get("http-equiv"):
            self.policy = dict(attrs)["content"]

    def handle_data(self, data):
        if self.cdata_elem:  # inside of a script or style
            self.found[-1][2] += data


def test_only_scripts_and_styles_of_the_page_may_run():
    page = exported_page({"rollouts": [], "replies": {}, "note": HOSTILE})
    elements = Elements(page)
    assert [tag for tag, *_ in elements.found] == ["style", "script", "script", "script"]
    for _, attrs, content in elements.found:
        if attrs.get("type") == "application/json":
            assert json.loads(content)["note"] == HOSTILE
            continue
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in elements.policy
    assert "unsafe" not in elements.policy
    assert elements.policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not re.search(r'(src|href)="(?!#|data:)', page.decode())


HALF = st.characters(categories=["Cs"])  # halves of surrogate pairs
MARKS = (
    "</script>",
    "<script>",
    "<!--",
    "-->",
    "<img src=x onerror=y>",
    "\u2028",
    "&lt;",
    "\0",
)
texts = st.lists(st.one_of(st.sampled_from(MARKS), st.text(), HALF)).map("".join)


@given(note=texts, item=texts, key=texts)
@settings(max_examples=60)
def test_no_text_of_a_run_becomes_markup(note, item, key):
    kept = Kept()
    kept.add({"groups/1": {"item": item, key: [item, 2**70, float("nan")]}})
    blocks = [{"kind": "text", "text": item}]
    page = exported_page(kept.page_data("", "", blocks=blocks, views=[note]))
    elements = Elements(page)
    assert [tag for tag, *_ in elements.found] == ["style", "script", "script", "script"]
    [data] = [json.loads(c) for _, attrs, c in elements.found if attrs.get("id") == "kept"]
    assert data["views"] == [encodable(note)]
    assert data["blocks"][0]["text"] == data["replies"]["/explore/groups/1"]["item"]
    assert data["blocks"][0]["text"] == encodable(item)


def test_replies_beyond_the_size_are_not_kept():
    kept = Kept(max_bytes=30)
    assert kept.add({"groups/1": "a" * 20}) and "groups/1" in kept
    assert not kept.add({"groups/2": "a" * 20}) and "groups/2" not in kept
    kept.put({"runs": "b" * 99})  # replies about the run have no bound
    data = kept.page_data("9", "ask for less")
    assert data["note"] == "0 rollouts of 9: cut at 2.86e-05 MB, ask for less"
    assert data["replies"].keys() == {"/explore/groups/1", "/explore/runs"}


def test_the_bundle_has_every_module_after_those_that_it_imports():
    script = bundle()
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    assert "import(" not in script
    made = re.findall(r'^modules\["(\w+\.js)"\] = ', script, re.MULTILINE)
    assert len(set(made)) == len(made) and made[-1] == "app.js"
    for name, body in re.findall(
        r'^modules\["(\w+\.js)"\] = (.*?)^\}\)\(\);$', script, re.M | re.S
    ):
        for other in re.findall(r'= modules\["(\w+\.js)"\];', body):
            assert made.index(other) < made.index(name)


@pytest.fixture
def groups(tmp_path):
    path = tmp_path / "groups.jsonl"
    one = {"tokens": [[1, 2], [1, 3]], "masks": [[-100, 2], [-100, 3]], "scores": [0.0, 1.0]}
    lines = [json.dumps(one | {"metadata": {"env": "math", "item": at}}) for at in range(5)]
    path.write_text("\n".join(lines))
    return path


def test_an_export_has_the_groups_of_the_rollouts_that_pass(groups, tmp_path, capsys):
    file = tmp_path / "one.html"
    assert view([str(groups), "--export", str(file), "reward=1", "item=3"]) == 0
    assert capsys.readouterr().out == f"1 rollouts in {file}\n"
    kept = json.loads(next(c for _, a, c in Elements(file.read_bytes()).found if a.get("id")))
    assert [(row["item"], row["reward"]) for row in kept["rollouts"]] == [("3", 1.0)]
    gid = kept["rollouts"][0]["gid"]
    assert kept["replies"][f"/explore/groups/{gid}/rows/0"]["columns"]["id"] == [1, 2]
    views = (
        "#/",
        "#/rollouts",
        f"#/group/{gid}",
        f"#/tokens/{gid}/1",
        "#/curves",
        "#/batches",
    )
    assert all("This view failed" not in drawn.text for drawn in rendered(file, *views))


def test_an_export_beyond_its_bound_is_cut_and_tells_so(groups):
    with open_explorer(groups, None) as (_, explorer):
        whole = select_rollouts(explorer, {})
        assert (len(whole["rollouts"]), whole["note"]) == (10, "10 rollouts")
        cut = select_rollouts(explorer, {}, max_bytes=4000)
        assert 0 < len(cut["rollouts"]) < 10
        assert re.match(r"\d rollouts of 10: cut at 0.0\d+ MB", cut["note"])
        for filters in ({"env": "none"}, {"colour": "red"}):
            with pytest.raises(ConfigError):
                select_rollouts(explorer, filters)


@pytest.mark.browser
@pytest.mark.slow
def test_an_exported_run_is_read_without_a_server(browser, tab, tmp_path, capsys):
    from tests.ui.recorded_run import recorded_run

    with recorded_run(tmp_path / "run") as (_, app):
        pass
    file = tmp_path / "one.html"
    view([str(tmp_path / "run" / "queue"), "--export", str(file), "sort=-reward"])
    screen = tab("file://")
    kept = selected_rows(file)
    for name in (
        "",
        "rollouts",
        "batches",
        "curves",
        "environments",
        "weights",
        "why",
        "tasks",
    ):
        screen.page.goto(f"{file.as_uri()}#/{name}")
        assert "This view failed" not in screen.ready().locator("main").inner_text()
    page = screen.page
    assert (
        page.get_by_role("table", name="Games by the version").locator("tbody tr").count() == 2
    )
    assert page.locator("select").count() == 0  # the file has one order and one score
    page.goto(f"{file.as_uri()}#/rollouts?reward=0.9..1")
    good = [row for row in kept if row["reward"] >= 0.9]
    page.locator(".count b", has_text=re.compile(f"^{len(good)}$")).wait_for()
    page.locator(".inner .row").first.click()
    page.locator(".card").first.wait_for()
    hostile = next(row["gid"] for row in kept if "<script>" in (row["item"] or ""))
    for view_of in (f"group/{hostile}", f"tokens/{hostile}/0", f"tokens/{hostile}/3"):
        page.goto(f"{file.as_uri()}#/{view_of}")
        screen.ready()
    page.locator(".tok").first.wait_for()
    assert page.locator("main script, main img, main base, main style").count() == 0


def selected_rows(file):
    content = next(c for _, a, c in Elements(file.read_bytes()).found if a.get("id"))
    return json.loads(content)["rollouts"]
