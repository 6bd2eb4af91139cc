"""Pictures in messages: every API's parts become one form, and addresses are refused."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from atroposlib.generation.chat.pictures import chat_content, pictures_in
from atroposlib.wire.images import MAX_PICTURE_CHARACTERS

URL = "data:image/png;base64,iVBORw=="
SEE = {"type": "text", "text": "see"}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": URL}},
        {"type": "image_url", "image_url": URL},
        {"type": "input_image", "image_url": URL},
        {"type": "image", "image": URL},
        {"type": "image", "url": URL},
        {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="},
        },
    ],
)
def test_parts_of_every_api_become_parts_of_chats(part):
    wanted = [SEE, {"type": "image_url", "image_url": {"url": URL}}]
    assert chat_content([{"type": "input_text", "text": "see"}, part]) == wanted
    assert pictures_in([{"role": "user", "content": ["see", part]}]) == [URL]


def test_text_parts_alone_are_joined_and_details_are_kept():
    assert chat_content([SEE, "n"]) == "seen" and chat_content(None) == ""
    detailed = {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}
    assert chat_content([detailed]) == [detailed]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://pictures.example/i.png", "never fetched"),
        ("file:///etc/passwd", "never fetched"),
        ("/etc/passwd", "never fetched"),
        ("data:image/svg+xml;base64,PHN2Zz4=", "it begins with 'data:image/svg"),
        ("data:image/png,iVBORw", "it begins with 'data:image/png,iVBORw'"),
        ("data:image/png;base64,iVBO\nRw==\n", "encodebytes"),
        ("data:image/png;base64,iV-_Rw==", "the alphabet for URLs"),
        ("data:image/png;base64,not.base64", "other characters"),
        ("data:image/png;base64,", "or is empty"),
        ("data:image/png;base64," + "A" * MAX_PICTURE_CHARACTERS, "characters, at most"),
        (None, "it is no text, but NoneType"),
    ],
)
def test_other_addresses_are_refused_with_their_place_and_the_reason(url, problem):
    turns = [{"role": "user", "content": "hi"}]
    turns += [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    with pytest.raises(ConfigError, match=r"messages\[1\].*data URL.*no address") as raised:
        pictures_in(turns)
    assert problem in str(raised.value) and len(str(raised.value)) < 450


@pytest.mark.parametrize("kind", ["png", "jpeg", "jpg", "webp"])
def test_every_name_of_the_formats_is_taken(kind):
    url = f"data:image/{kind};base64,iVBORw=="
    assert pictures_in(
        [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]
    )


def test_other_parts_are_left_to_a_server_but_cannot_stand_in_a_chat_of_tokens():
    sound = [{"type": "input_audio"}]
    assert pictures_in([{"role": "user", "content": sound}]) == []
    with pytest.raises(ConfigError, match="'input_audio'"):
        chat_content(sound)
