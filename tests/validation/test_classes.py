"""Classes under validation: items until they repeat, and the row of the tried reply."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from atroposlib.envs.function_env.card import Card, card_of
from atroposlib.validation.classes import (
    WRONG,
    ReplyRow,
    items_of,
    score_in,
    stable_text,
)
from atroposlib.validation.scripted_engine import ScriptedGroup
from atroposlib.validation.sessions import RecordingSession

CARD = Card("text", "here", "MIT", str)


async def group_of(*scripts):
    group = ScriptedGroup([RecordingSession(replies) for replies in scripts])
    await group.replies("?", len(scripts), {"prompt": "?"})
    return group


async def test_the_row_of_the_tried_reply_is_the_one_that_the_others_leave():
    group = await group_of("4", WRONG, "<a>4</a>")
    rows = [ReplyRow("<a>4</a>", 1.0), ReplyRow(WRONG, 0.0), ReplyRow("4", 0.5)]
    assert score_in(rows, group) == 0.5
    assert score_in(rows[:2], group) is None  # the class left it out
    assert score_in(rows[2:], group) == 0.5  # it left the others out
    assert score_in([], group) is None


async def test_a_row_that_the_class_cut_is_still_found():
    group = await group_of("long " * 9, WRONG, "gold")
    assert (
        score_in(
            [ReplyRow("long long", 0.2), ReplyRow("gold", 1.0), ReplyRow(WRONG, 0.0)], group
        )
        == 0.2
    )


async def test_rows_that_hold_none_of_the_replies_are_an_error_and_no_score():
    group = await group_of("yes", WRONG, "gold")
    with pytest.raises(ValueError, match="cannot be distinguished"):
        score_in([ReplyRow("x", 0.0), ReplyRow("y", 1.0), ReplyRow("z", 0.0)], group)


def items(*given):
    left = iter(given)

    async def get_next_item(self):
        return next(left, None)

    kind = type("Env", (), {"label": lambda self: "env", "get_next_item": get_next_item})
    return items_of(kind())


async def test_items_are_read_until_the_first_one_comes_again():
    a, b = {"question": "a"}, {"question": "b"}
    read = await items(a, b, b, a, {"question": "c"})
    assert [one["task"] for one in read] == [a, b]
    assert read[0]["id"].startswith("question a ") and read[0]["id"] != read[1]["id"]
    assert [one["id"] for one in await items({"id": 7}, (1, 2))][0] == "7"


def test_sets_and_addresses_have_the_same_text_in_every_process():
    assert stable_text(frozenset("ba")) == stable_text(frozenset("ab"))
    assert stable_text([object()]) == stable_text([object()])
    assert stable_text({"a": 1}) != stable_text({"a": "1"})


def test_a_card_belongs_to_a_function_or_to_a_class():
    assert card_of(type("Env", (), {"card": CARD})) is CARD
    function = type("Env", (), {"definition": SimpleNamespace(card=CARD)})
    assert card_of(function) is CARD
    assert card_of(type("Env", (), {"card": "queen of hearts"})) is None
