"""Refusals of a busy server: 503 with a spread Retry-After, counted, one log line a minute."""

from __future__ import annotations

import json
import logging

from atroposlib.api.guards.busy import BusyReplies, retry_after


def test_a_request_beyond_the_limit_is_a_503_that_names_the_option(caplog):
    busy = BusyReplies()
    with caplog.at_level(logging.WARNING):
        replies = [busy.add(4) for _ in range(3)]
    assert busy.count == 3 and len(caplog.records) == 1
    assert replies[0].status_code == 503 and replies[0].headers["connection"] == "close"
    body = json.loads(replies[0].body)
    assert body["status"] == "busy" and "--max-connections" in body["detail"]


def test_callers_spread_out_over_once_to_twice_the_time():
    assert {retry_after(5) for _ in range(500)} <= {str(seconds) for seconds in range(5, 11)}
