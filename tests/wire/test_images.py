"""Images are JSON texts of any length, in UTF-8, and not many small values."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, strategies as st

from atroposlib.errors import InvalidGroup, PictureError
from atroposlib.wire.images import (
    MAX_REST_VALUES,
    REFERENCE,
    GroupImages,
    check_images,
    has_images,
    message_has_pictures,
    picture_bytes,
    pictures_of,
    split_pictures,
    with_references,
)
from tests.examples import examples


def test_large_texts_are_accepted():
    check_images(b'["' + b"A" * 10**6 + b'", null, "\xc3\xa9"]')


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'["A', "not valid JSON"),
        (b'["\xff"]', "not valid JSON in UTF-8"),
        (b"[" + b"0," * MAX_REST_VALUES + b"0]", "more than"),
    ],
)
def test_other_values_are_refused(text, problem):
    with pytest.raises(InvalidGroup, match=problem):
        check_images(text)


def test_pictures_of_a_row_are_its_data_urls():
    url = "data:image/webp;base64,UklGRg=="
    images = [[url, "https://a.example/i.png"], url, None, "iVBORw=="]
    assert [pictures_of(images, row) for row in range(5)] == [[url], [url], [], [], []]
    assert pictures_of(None, 0) == pictures_of({"a": 1}, 0) == []


def url_of(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


PICTURES = [url_of(bytes([i]) * 80) for i in range(3)]


@examples(80)
@given(rows=st.lists(st.lists(st.sampled_from(PICTURES), max_size=3), max_size=5))
def test_references_hold_each_picture_once_and_give_the_same_rows(rows):
    written = with_references(rows)
    whole = [text for row in written for text in row if not text.startswith(REFERENCE)]
    assert sorted(whole) == sorted({url for row in rows for url in row})
    read, plain = GroupImages(written), GroupImages(rows)
    for g, row in enumerate(rows):
        assert pictures_of(written, g) == row
        assert read.of_row(g) == plain.of_row(g) == [picture_bytes(url) for url in row]
    assert with_references(written) == written


def test_texts_without_a_picture_stay_as_they_are():
    for images in (None, [], [None, ""], ["short", "short"], {"a": 1}, [[{"url": "x"}]]):
        assert with_references(images) == images


def test_what_is_no_picture_of_the_group_is_named():
    with pytest.raises(PictureError, match="no image of the group has the digest"):
        GroupImages([["sha256:" + "0" * 64]]).of_row(0)
    for wrong in ("data:text/html;base64,aGk=", "not base64!", {"url": "x"}, 7):
        with pytest.raises(PictureError, match="no data URL"):
            GroupImages([[wrong]]).of_row(0)


def test_bytes_of_a_group_are_bounded_by_its_distinct_pictures(monkeypatch):
    monkeypatch.setattr("atroposlib.wire.images.MAX_GROUP_BYTES", 200)
    images = GroupImages([[PICTURES[0]] * 9, PICTURES[1:2], PICTURES])
    assert len(images.of_row(0)) == 9 and len(images.of_row(1)) == 1
    with pytest.raises(PictureError, match="more than 200 bytes"):
        images.of_row(2)


def test_an_environment_without_pictures_may_send_empty_lists():
    assert not any(map(has_images, (None, [], [[], None], "")))
    assert all(map(has_images, ("a", [[], ["a"]])))


def picture_part(url: object) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_contents_become_lists_of_parts_and_pictures_leave_in_order():
    parts = [{"type": "text", "text": "a"}, *map(picture_part, PICTURES)]
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": parts}]
    shown, pictures = split_pictures(chat)
    assert pictures == [bytes([i]) * 80 for i in range(3)]
    assert shown[0]["content"] == [{"type": "text", "text": "be brief"}]
    assert [part["type"] for part in shown[1]["content"]] == ["text", *3 * ["image"]]
    assert list(map(message_has_pictures, chat)) == [False, True]


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"type": "image_url"}, "data URL"),
        (picture_part("https://a.example/i.png"), "never fetched"),
        ({"type": "audio"}, "a text or a picture"),
    ],
)
def test_parts_that_are_neither_text_nor_picture_are_refused(part, problem):
    with pytest.raises(PictureError, match=problem):
        split_pictures([{"role": "user", "content": [part]}])
