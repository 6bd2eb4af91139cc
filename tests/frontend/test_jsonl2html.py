"""HTML pages of groups, with model output escaped."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from atroposlib.frontend.jsonl2html import (
    create_html_for_group,
    generate_html,
    get_score_class,
    main,
    turns,
)


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


def test_model_output_is_escaped_and_not_executed(tmp_path):
    evil = '<script>alert(1)</script><think>hm</think> **bold** & "quotes"'
    group = {
        "messages": [
            evil,
            [{"role": "<b>user</b>", "content": evil}],
            [{"role": "x", "content": [{"t": evil}]}],
        ],
        "scores": [1.0, 0.0, -0.5],
    }
    path = tmp_path / "groups.jsonl"
    path.write_text(json.dumps(group) + "\n")
    page = (tmp_path / "groups.html") if generate_html(str(path)) else None
    text = page.read_text()
    assert text.count("<script>") == 1  # the page's own
    assert "<b>user" not in text
    assert "&lt;think&gt;hm&lt;/think&gt;" in text
    assert text.count("<details>") == 1 and text.count('class="item') == 3
    assert "default-src 'none'" in text
    assert re.search(r"(src|href)=", text) is None


def test_lines_that_are_not_groups_are_skipped_with_a_warning(tmp_path, caplog):
    path = tmp_path / "g.jsonl"
    good = json.dumps({"messages": ["a", "b"], "scores": [1.0]})
    path.write_text(f"not json\n\n{{}}\n{good}\n")
    target = generate_html(str(path), str(tmp_path / "out.html"))
    assert target == str(tmp_path / "out.html")
    page = (tmp_path / "out.html").read_text()
    assert page.count('class="item') == 1
    assert "line 1 is not JSON" in caplog.text and "2 messages, 1 scores" in caplog.text


def test_missing_data_and_a_missing_file_are_reported(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text(json.dumps({"messages": None, "scores": []}) + "\n")
    generate_html(str(empty))
    assert "no data" in (tmp_path / "empty.html").read_text()
    assert create_html_for_group({"messages": [], "scores": []}, 0) == ""
    with pytest.raises(SystemExit) as exit_:
        main([str(tmp_path / "absent.jsonl")])
    assert "absent.jsonl" in str(exit_.value.code)


def test_markdown_is_rendered_without_external_links_or_resources():
    text = "| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx < 1\n```\nline\nline\n\n\\boxed\\{1\\} &lt;"
    shown = create_html_for_group({"messages": [text], "scores": [1]}, 0)
    assert "<td>1</td>" in shown and "<pre><code" in shown and "x &lt; 1" in shown
    assert "line<br />\nline" in shown
    assert "\\boxed\\{1\\} &amp;lt;" in shown
    for evil in (
        "[x](javascript:alert(1))",
        "![x](http://example.org/x.png)",
        "<http://example.org>",
        "[x][r]\n\n[r]: http://example.org",
        '<img src=x onerror="alert(1)">',
        "<svg/onload=alert(1)>",
    ):
        shown = create_html_for_group({"messages": [evil], "scores": [0]}, 0)
        assert re.search(r"<(a|img|svg|script)\b", shown) is None
        assert "example.org" in shown or "alert(1)" in shown


def test_malformed_groups_are_rendered_as_far_as_possible():
    group = {
        "messages": [None, {"role": "user", "content": None}, ["a", {"content": [1]}], "x"],
        "scores": [None, float("nan"), "high", 2],
    }
    shown = create_html_for_group(group, 7)
    assert "Group 7" in shown and shown.count("reward none") == 3
    assert "Content 3: reward 2" in shown and "[1]" in shown
    assert create_html_for_group({"messages": None, "scores": None}, 0) == ""


def test_jsonl2html_runs_as_a_module_without_further_packages(tmp_path):
    path = tmp_path / "g.jsonl"
    path.write_text(json.dumps({"messages": ["a"], "scores": [1.0]}) + "\n")
    command = [sys.executable, "-m", "atroposlib.frontend.jsonl2html", str(path)]
    subprocess.run([*command, str(tmp_path / "page.html")], check=True, capture_output=True)
    assert "Content 0" in (tmp_path / "page.html").read_text()


def test_tool_calls_the_task_and_named_rewards_are_shown_escaped():
    call = {"function": {"name": "<i>guess", "arguments": '{"word": "a"}'}}
    group = {
        "messages": [[{"role": "assistant", "content": "", "tool_calls": [call, "<i>odd"]}]]
        * 2,
        "scores": [0.5, 0.0],
        "metadata": {"item": "<i>game 1", "named_rewards": [{"<i>exact": 1}]},
    }
    shown = create_html_for_group(group, 3)
    assert "<summary>Group 3: &lt;i&gt;game 1</summary>" in shown
    assert "Content 0: reward 0.5, &lt;i&gt;exact 1</h4>" in shown
    assert "Content 1: reward 0</h4>" in shown
    assert "&lt;i&gt;guess({&quot;word&quot;: &quot;a&quot;})" in shown
    assert "<strong>tool call</strong>" in shown and "assistant" not in shown
    assert "<i>" not in shown and "&lt;i&gt;odd" in shown


def test_a_message_without_a_tool_call_is_one_turn_even_if_empty():
    assert list(turns({"role": "user", "content": ""})) == [("user", "")]
