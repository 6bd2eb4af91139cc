"""The fields of a group; the page itself is served in test_view_run.py."""

from __future__ import annotations

import base64
import io

import pytest

from atroposlib.cli.view_run.gradio_page import fields
from atroposlib.cli.view_run.shown_groups import shown_group
from tests.cli.view_run.toys import TOKENIZER, group


def test_missing_samples_are_empty_fields():
    found = shown_group(group("four", "five"), 1, TOKENIZER, 3, 99)
    assert fields(found, 3, False)[-3:] == [None, "", []]
    assert len(fields(found, 3, False)) == 2 + 3 * 3


def test_beside_an_image_the_prompt_is_the_text_after_its_mark():
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", (2, 2)).save(file, "PNG")
    coded = [base64.b64encode(data).decode() for data in (file.getvalue(), bytes(99))]
    found = shown_group(group("four", "five", images=coded), 1, TOKENIZER, 2, 99)
    found = found._replace(prompt="<user>[Image] how many?")
    title, pictures, prompt, *_ = fields(found, 2, True)
    assert [one.size for one in pictures] == [(2, 2)]
    assert (title, prompt) == ("1: 2 of 2 samples", " how many?")
