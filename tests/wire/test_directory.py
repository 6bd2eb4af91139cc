from __future__ import annotations

import pytest
from pydantic import ValidationError

from atroposlib.wire import Announcement, ServerDirectory, ServerEntry


def listed(complete=True, **takes_part) -> ServerDirectory:
    entries = [
        ServerEntry(
            url=f"http://{name}:1", instance="i", started=0, name=name, age_s=0, takes_part=one
        )
        for name, one in takes_part.items()
    ]
    return ServerDirectory(instance="api", complete=complete, servers=entries)


def test_only_a_server_with_the_current_weights_joins_the_callers_of_rollouts():
    directory = listed(a=True, b=True, c=False)
    assert directory.urls_to_add(["http://a:1"]) == ["http://b:1"]
    assert directory.urls_to_add([], any_weights=True) == [
        "http://a:1",
        "http://b:1",
        "http://c:1",
    ]


def test_a_server_leaves_once_the_list_is_complete_and_others_remain():
    known = ["http://a:1", "http://b:1"]
    assert listed(a=True).urls_to_remove(known) == ["http://b:1"]
    assert listed(complete=False, a=True).urls_to_remove(known) == []
    assert listed().urls_to_remove(known) == []


@pytest.mark.parametrize("url", ["file:///etc/x", "http://", "http://u@h:1", "http://h/a b"])
def test_an_announced_address_is_one_of_http(url):
    with pytest.raises(ValidationError):
        Announcement(url=url, instance="i", started=0)


def test_the_held_flag_is_written_only_where_it_is_set():
    (entry,) = listed(a=True).servers
    assert "held" not in entry.model_dump() and "held" not in entry.model_dump_json()
    held = entry.model_copy(update={"held": True})
    assert held.model_dump()["held"] is True
    assert type(entry).model_validate_json(held.model_dump_json()) == held
    whole = ServerDirectory(instance="i", complete=True, servers=[entry, held])
    assert whole.urls_to_rest(["http://b:1", "http://a:1"]) == ["http://a:1"]
    assert whole.model_dump_json().count("held") == 1
