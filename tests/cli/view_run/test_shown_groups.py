"""What the viewer shows of a group."""

from __future__ import annotations

import base64

import pytest

from atroposlib.cli.view_run.shown_groups import images_of, label_of, shown_group
from tests.cli.view_run.toys import PROMPT, TOKENIZER, group

PNG = b"\x89PNG" + bytes(60)
CODED = base64.b64encode(PNG).decode()


def test_the_common_prompt_is_shown_once_and_each_answer_with_its_score():
    about = {"env": "toy", "item": 7}
    found = shown_group(group("four", "five", "six", metadata=about), 3, TOKENIZER, 2, 2048)
    assert (found.number, found.title) == (3, "toy, 7, 2 of 3 samples")
    assert found.prompt == PROMPT
    assert [(one.score, one.output) for one in found.samples] == [
        (0.0, "four"),
        (-1.0, "five"),
    ]


def test_tokens_have_the_label_of_the_probability_they_were_sampled_with():
    logprobs = [[1.0] * 7 + [-0.01, -3.0], [1.0] * 7 + [-0.5, -9.0]]
    found = shown_group(group("no", "ya", inference_logprobs=logprobs), 1, TOKENIZER, 2, 2048)
    assert [one.spans for one in found.samples] == [
        [("n", "p > 0.9"), ("o", "p > 0.01")],
        [("y", "p > 0.5"), ("a", "rare")],
    ]


def test_without_logprobs_tokens_have_no_label():
    found = shown_group(group("no", "ya", inference_logprobs=None), 1, TOKENIZER, 2, 2048)
    assert found.samples[0].spans == [("n", None), ("o", None)]


def test_rows_are_cut_to_the_number_of_tokens():
    found = shown_group(group("four", "five"), 1, TOKENIZER, 2, len(PROMPT.encode()) + 2)
    assert [one.output for one in found.samples] == ["fo", "fi"]


def test_images_come_from_the_group_its_messages_and_its_texts_once_each():
    url = f"data:image/png;base64,{CODED}"
    other = base64.b64encode(PNG + b"x").decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{other}"}}
    messages = [[{"role": "user", "content": [part]}]]
    one = group("a", "b", images=[CODED, url], messages=messages)
    assert images_of(one, [f"see {url}"]) == [PNG, PNG + b"x"]


def test_addresses_of_images_are_not_images():
    one = group("a", "b", images=["http://evil.example/i.png", "/etc/passwd"])
    assert images_of(one, ["![x](http://evil.example/i.png)"]) == []


@pytest.mark.parametrize(
    "logprob, label",
    [(0.0, "p > 0.9"), (-1.0, "p > 0.1"), (-99.0, "rare"), (float("nan"), None)],
)
def test_labels_go_by_probability(logprob, label):
    assert label_of(logprob) == label
