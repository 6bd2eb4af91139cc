"""HTML pages of groups, with model output escaped."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from atroposlib.frontend.jsonl2html import (
    create_html_for_group,
    figures,
    generate_html,
    get_score_class,
    group_view,
    histogram,
    main,
    reward_rows,
    shared_messages,
)
from tests.cli.view_run.toys import TOKENIZER


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
    assert text.count("<details") == 1 and text.count('class="item') == 3
    assert "default-src &#39;none&#39;" in text
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
    assert "Sample 3: reward 2" in shown and "[1]" in shown
    assert create_html_for_group({"messages": None, "scores": None}, 0) == ""


def test_jsonl2html_runs_as_a_module_without_further_packages(tmp_path):
    path = tmp_path / "g.jsonl"
    path.write_text(json.dumps({"messages": ["a"], "scores": [1.0]}) + "\n")
    command = [sys.executable, "-m", "atroposlib.frontend.jsonl2html", str(path)]
    subprocess.run([*command, str(tmp_path / "page.html")], check=True, capture_output=True)
    assert "Sample 0" in (tmp_path / "page.html").read_text()


def test_tool_calls_the_task_and_named_rewards_are_shown_escaped():
    call = {"function": {"name": "<i>guess", "arguments": '{"word": "a"}'}}
    group = {
        "messages": [[{"role": "assistant", "content": "", "tool_calls": [call, "<i>odd"]}]]
        * 2,
        "scores": [0.5, 0.0],
        "metadata": {"item": "<i>game 1", "named_rewards": [{"<i>exact": 1}]},
    }
    shown = create_html_for_group(group, 3)
    assert "<summary>Group 3: &lt;i&gt;game 1<small>2 samples" in shown
    assert '<span class="chip">&lt;i&gt;exact 1</span>' in shown
    assert shown.count('class="chip"') == 1  # the second sample has no named rewards
    assert "<pre>&lt;i&gt;guess({&#34;word&#34;: &#34;a&#34;})</pre>" in shown
    assert "<b>tool call</b>" in shown and "assistant" not in shown
    assert "<i>" not in shown and "&lt;i&gt;odd" in shown


SCORED = {
    "messages": [
        [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": answer}]
        for answer in ("4", "5")
    ],
    "scores": [1.0, 0.0],
    "tokens": [[50, 43, 50, 63, 52], [50, 43, 50, 63, 53]],
    "masks": [[-100] * 4 + [52], [-100] * 4 + [53]],
    "inference_logprobs": [[1.0] * 4 + [-0.05], [1.0] * 4 + [-3.0]],
    "versions": [[-1] * 4 + [7]] * 2,
    "finish_reasons": ["stop", "length"],
    "metadata": {"item": "2+2", "env": "sums"},
}


def test_the_prompt_that_all_samples_share_stands_once():
    assert shared_messages(SCORED["messages"]) == 1
    assert shared_messages([[1, 2], [1, 3]]) == 1
    assert shared_messages([[1, 2, 3], [9, 2]]) == shared_messages(["text"]) == 0
    shown = create_html_for_group(SCORED, 0)
    assert shown.count("2+2?") == 1 and shown.count("<b>assistant</b>") == 2


def test_tokens_are_shown_with_mask_logprob_and_version(tmp_path):
    path = tmp_path / "g.jsonl"
    path.write_text(json.dumps(SCORED) + "\n")
    text = Path(generate_html(str(path), None, TOKENIZER)).read_text()
    assert '<span class="t m" title="id 63">?</span>' in text
    assert '<span class="t p0" title="id 52, logprob -0.050, version 7">4</span>' in text
    assert '<span class="t p3" title="id 53, logprob -3.000, version 7">5</span>' in text
    assert text.count('title="id 63"') == 1  # the prompt stands at the first sample only
    assert "Tokens: 5, 1 of them trained, mean logprob -0.050, policy version 7" in text
    assert 'data-finish="length"' in text and "<option>length</option>" in text
    ids = Path(generate_html(str(path))).read_text()
    assert '<span class="t m" title="id 63">63 </span>' in ids


def test_tokens_beyond_the_room_of_a_page_are_counted():
    view = group_view(SCORED, 0, TOKENIZER, room=3)
    first, second = (sample.tokens for sample in view.samples)
    assert (first.shown, second.shown) == (3, 0)
    assert first.title.endswith("(the last 2 are left out)")


def test_figures_are_those_of_the_samples():
    equal = {
        "messages": ["a", "b"],
        "scores": [2, 2],
        "metadata": {"named_rewards": [{"x": 1}]},
    }
    groups = [group_view(SCORED, 0), group_view(equal, 1)]
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
