"""Images are JSON texts of any length, in UTF-8, and not many small values."""

from __future__ import annotations

import pytest

from atroposlib.errors import InvalidGroup
from atroposlib.wire.images import MAX_REST_VALUES, check_images, pictures_of


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
