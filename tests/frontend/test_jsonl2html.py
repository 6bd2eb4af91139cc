"""The page of a file of groups: an export of the page of a run."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from atroposlib.frontend.jsonl2html import (
    create_html_for_group,
    figures,
    generate_html,
    get_score_class,
    histogram,
    main,
    page_data,
    reward_rows,
)
from atroposlib.frontend.page_groups import group_facts
from tests.cli.view_run.toys import TOKENIZER
from tests.frontend.test_page_groups import SCORED
from tests.ui.rendered import rendered

EVIL = '</script><script>alert(1)</script><think>hm</think> & "quotes" <img src=x onerror=alert(1)>'


@pytest.fixture
def page(tmp_path):
    """``page(*groups, tokenizer=...)``: the page of a file of groups."""

    def page_of(*groups, tokenizer=None):
        path = tmp_path / "groups.jsonl"
        path.write_text("".join(json.dumps(group) + "\n" for group in groups))
        return tmp_path / generate_html(str(path), None, tokenizer)

    return page_of


@pytest.mark.parametrize(
    ("score", "name"),
    [
        (0.5, "reward-positive"),
        (0, "reward-zero"),
        (-1.0, "reward-negative"),
        (None, "reward-zero"),
    ],
)
def test_a_reward_has_the_class_of_its_sign(score, name):
    assert get_score_class(score) == name


def test_model_output_is_text_in_every_view(page):
    call = {"function": {"name": EVIL, "arguments": EVIL}}
    said = {"role": EVIL, "content": EVIL, "tool_calls": [call, EVIL]}
    group = {
        "messages": [EVIL, [said], [{"role": "x", "content": [{"t": EVIL}]}]],
        "scores": [1.0, 0.0, -0.5],
        "finish_reasons": [EVIL, None, None],
        "metadata": {"item": EVIL, "env": EVIL, "named_rewards": [{EVIL: 1.0}]},
    }
    file = page(group)
    assert file.read_text().count("<script") == 3  # the page's own, one of them data
    for drawn in rendered(file, "#/", "#/rollouts", "#/group/0", "#/tokens/0/1"):
        assert EVIL in drawn.text
        assert not drawn.tags.keys() & {"script", "img", "link", "iframe", "style"}
        assert all(address.startswith("#/") for address in drawn.addresses)


def test_lines_that_are_not_groups_are_skipped_with_a_warning(tmp_path, caplog):
    path = tmp_path / "g.jsonl"
    good = json.dumps({"messages": ["a", "b"], "scores": [1.0]})
    path.write_text(f"not json\n\n{{}}\n{good}\n")
    target = generate_html(str(path), str(tmp_path / "out.html"))
    assert target == str(tmp_path / "out.html")
    assert len(page_data(path)["rollouts"]) == 1
    assert "line 1 is not JSON" in caplog.text and "2 messages, 1 scores" in caplog.text


def test_missing_data_and_a_missing_file_are_reported(page, tmp_path):
    [drawn] = rendered(page({"messages": None, "scores": []}), "#/")
    assert "no data" in drawn.text
    assert create_html_for_group({"messages": [], "scores": []}, 0) == ""
    assert create_html_for_group({"messages": None, "scores": None}, 0) == ""
    with pytest.raises(SystemExit) as exit_:
        main([str(tmp_path / "absent.jsonl")])
    assert "absent.jsonl" in str(exit_.value.code)


@pytest.mark.parametrize(
    "words",
    [
        ["g.jsonl", "o.html"],
        ["--input_path", "g.jsonl", "--output_path", "o.html"],
        ["--input-path=g.jsonl", "--output-path=o.html"],
        ["g.jsonl", "--output_path=o.html"],
    ],
)
def test_the_paths_are_given_by_place_or_as_the_flags_of_the_original(
    words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.jsonl").write_text(json.dumps({"messages": ["a"], "scores": [1.0]}))
    main(words)
    assert (tmp_path / "o.html").exists()


def test_a_command_line_without_a_file_is_refused(capsys):
    with pytest.raises(SystemExit):
        main([])
    assert "input_path is missing" in capsys.readouterr().err


def test_markdown_is_rendered_without_external_links_or_resources(page):
    text = (
        "| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx < 1\n```\n*line*\n\n\\boxed\\{1\\} &lt;"
    )
    shown = rendered(page({"messages": [text], "scores": [1]}), "#/group/0")[0]
    assert shown.tags["td"] == 2 and shown.tags["pre"] == shown.tags["em"] == 1
    assert "x < 1" in shown.text and "\\boxed\\{1\\} &lt;" in shown.text
    evil = [
        "[x](javascript:alert(1))",
        "![x](http://example.org/x.png)",
        "<http://example.org>",
        "[x][r]\n\n[r]: http://example.org",
        '<img src=x onerror="alert(1)">',
        "<svg/onload=alert(1)>",
    ]
    [shown] = rendered(page({"messages": evil, "scores": [0] * len(evil)}), "#/group/0")
    assert not shown.tags.keys() & {"img", "svg", "script"}
    assert all(address.startswith("#/") for address in shown.addresses)
    assert shown.text.count("example.org") == 3 and shown.text.count("alert(1)") == 3


def test_malformed_groups_are_shown_as_far_as_possible(page):
    group = {
        "messages": [None, {"role": "user", "content": None}, ["a", {"content": [1]}], "x"],
        "scores": [None, float("nan"), "high", 2],
        "tokens": "odd",
        "metadata": {"rows": "odd", "named_rewards": [1]},
    }
    plain = create_html_for_group(group, 7)
    assert "Group 7" in plain and plain.count("reward none") == 3
    assert "Sample 3: reward 2" in plain and "[1]" in plain
    [drawn] = rendered(page(group), "#/group/0")
    assert drawn.tags["article"] == 4 and "2.000" in drawn.text


def test_the_element_of_a_group_is_escaped_text():
    call = {"function": {"name": "<i>guess", "arguments": '{"word": "a"}'}}
    said = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    shown = create_html_for_group({"messages": [said, EVIL], "scores": [0.5, -1]}, 3)
    assert shown.count("<details") == 1 and shown.count('class="item') == 2
    assert "&lt;i&gt;guess({&quot;word&quot;" in shown and "reward-negative" in shown
    assert re.search(r"<(script|img|think|i)\b", shown) is None


def test_jsonl2html_runs_as_a_module_without_further_packages(tmp_path):
    path = tmp_path / "g.jsonl"
    path.write_text(json.dumps({"messages": ["a"], "scores": [1.0]}) + "\n")
    command = [sys.executable, "-m", "atroposlib.frontend.jsonl2html", str(path)]
    subprocess.run([*command, str(tmp_path / "page.html")], check=True, capture_output=True)
    [drawn] = rendered(tmp_path / "page.html", "#/group/0")
    assert "tokens of 0" in drawn.text


def test_a_group_has_its_prompt_once_named_rewards_and_tool_calls(page):
    call = {"function": {"name": "add", "arguments": "*1*"}}
    messages = [
        [
            SCORED["messages"][0][0],
            {"role": "assistant", "content": answer, "tool_calls": [call]},
        ]
        for answer in ("", "5")
    ]
    [drawn] = rendered(page({**SCORED, "messages": messages}), "#/group/0")
    assert drawn.text.count("2+2?") == 1 and drawn.words.count("add(*1*)") == 2
    for words in ("exact 1", "item 2+2", "environment sums", "finish length", "tool call"):
        assert words in drawn.words
    assert drawn.words.count("assistant") == 1  # the other has calls only


def test_pictures_of_messages_and_rows_are_shown_from_data_urls_only(page):
    url = "data:image/png;base64,iVBORw=="
    addresses = [url, "https://evil.example/i.png", f'{url}" onload="x', {"url": url}]
    parts = [{"type": "image_url", "image_url": one} for one in addresses]
    content = [{"type": "text", "text": "*see*"}, *parts]
    said = [[{"role": "user", "content": content}], ["none"]]
    group = {"messages": said, "scores": [0, 1], "images": [[url], ["http://x/i.png", url]]}
    [drawn] = rendered(page(group), "#/group/0")
    assert [value for tag, name, value in drawn.attributes if name == "src"] == [url] * 3
    assert drawn.text.count("[a picture of") == 2 and drawn.tags["em"] == 1


def test_tokens_are_shown_with_mask_logprob_and_version(page):
    [shown] = rendered(page(SCORED, tokenizer=TOKENIZER), "#/tokens/0/0?token=4&mode=version")
    assert "2 + 2 ? 4" in shown.words
    for words in ("trained yes", "log p −0.050", "version 7", "id 52"):
        assert words in shown.words
    [ids] = rendered(page(SCORED), "#/tokens/0/0")
    assert "50 43 50 63 52" in ids.words


def test_samples_are_chosen_by_text_reward_finish_and_spread_of_their_group(page):
    equal = {"messages": ["alpha", "beta"], "scores": [2, 2], "metadata": {"item": "same"}}
    file = page(SCORED, equal)
    asked = (
        "q=2%2B2",
        "q=beta",
        "q=same",
        "reward=1..2",
        "finish=length",
        "spread=0",
        "mean=2",
    )
    shown = rendered(file, *(f"#/rollouts?{words}" for words in asked))
    counts = [re.search(r"(\d+) +rollout", drawn.text)[1] for drawn in shown]
    assert counts == ["2", "1", "2", "3", "1", "2", "2"]
    by_spread, by_length = rendered(
        file, "#/rollouts?sort=-spread", "#/rollouts?sort=-n_tokens"
    )
    assert by_spread.words.index("0.0 sums") < by_spread.words.index("1.0 –")
    assert by_length.words.index("1.0 –") < by_length.words.index("1.1 –")


def test_a_page_beyond_its_size_is_cut_and_tells_so(tmp_path):
    path = tmp_path / "g.jsonl"
    path.write_text((json.dumps(SCORED) + "\n") * 50)
    data = page_data(path, max_bytes=20_000)
    assert 0 < len(data["rollouts"]) < 100
    assert re.match(r"\d+ rollouts of 100: cut at 0.0\d+ MB", data["note"])
    assert dict(data["blocks"][1]["pairs"])["samples"] == "100"  # figures are of all


def test_the_overview_has_figures_rewards_and_their_histogram(page):
    [drawn] = rendered(page(SCORED), "#/")
    for words in (
        "groups 1",
        "samples 2",
        "mean reward 0.5",
        "finish stop 1",
        "exact 0.5 0.5",
    ):
        assert words in drawn.words
    assert drawn.nav == ["Overview", "Rollouts"] and "2 rollouts" in drawn.run


def test_figures_are_those_of_the_samples():
    equal = {
        "messages": ["a", "b"],
        "scores": [2, 2],
        "metadata": {"named_rewards": [{"x": 1}]},
    }
    bare = {**SCORED, "metadata": {}}
    groups = [group_facts(bare, 0), group_facts(equal, 1)]
    assert dict(figures(groups)) == {
        "groups": "2",
        "samples": "4",
        "mean reward": "1.25",
        "mean spread in a group": "0.25",
        "groups of equal rewards": "50%",
        "trained tokens, median / largest": "1 / 1",
        "finish stop": "1",
        "finish length": "1",
    }
    assert reward_rows(groups) == [
        ("reward", "1.25", "0.8292", "0 to 2"),
        ("x", "1", "0", "1 to 1"),
    ]


def test_rewards_are_counted_by_value_or_in_ten_bins():
    assert histogram([1.0, 0.0, 0.0]) == [("0", 2, 1.0), ("1", 1, 0.5)]
    bins = histogram([float(i) for i in range(20)] + [19.0])
    assert [n for _, n, _ in bins] == [2] * 9 + [3]
    assert bins[0][0] == "0 to 1.9" and bins[-1][2] == 1.0
    assert histogram([]) == []
