"""Bodies of groups: JSON and frames carry the same fields."""

from __future__ import annotations

import httpx
import pytest

from atroposlib.client.groups import as_frames, as_json, read_claimed
from atroposlib.errors import RolloutApiRefused
from tests.client.harness import group


def test_a_large_body_is_compressed_only_for_a_remote_api():
    big = [group(tokens=[[1] * 900] * 2)]
    assert "content-encoding" not in as_json(big, ["k"], compress=False).headers
    far = as_json(big, ["k"], compress=True)
    assert far.headers["content-encoding"] == "gzip" and len(far.content) < 900


def test_frames_and_json_encode_the_same_groups():
    groups = [group(3), group(4, versions=[[-1, 2], [-1, 2]])]
    body = as_frames(groups, ["a", "b"], compress=True)
    headers = body.headers | {"x-atropos-batch": "5", "x-atropos-epoch": "1"}
    claimed = read_claimed(httpx.Response(200, headers=headers, content=body.content))
    assert (claimed.batch_no, claimed.epoch) == (5, 1)
    assert [one.idempotency_key for one in claimed.batch or []] == ["a", "b"]
    assert [one.tokens for one in claimed.batch or []] == [[[3, 7]] * 2, [[4, 7]] * 2]


def test_truncated_frames_are_rejected():
    body = as_frames([group()], ["a"], compress=False)
    headers = body.headers | {"x-atropos-batch": "5", "x-atropos-epoch": "1"}
    short = httpx.Response(200, headers=headers, content=body.content[:-1])
    with pytest.raises(ValueError, match="cut short"):
        read_claimed(short)


def test_an_invalid_group_is_rejected_before_it_is_sent_as_frames():
    with pytest.raises(RolloutApiRefused, match=r"422.*\[1\]\.masks"):
        as_frames([group(), group(masks=[[-100, 7], [7]])], ["a", "b"], compress=False)


def test_arrays_in_a_group_are_sent_as_frames_too():
    numpy = pytest.importorskip("numpy")
    tokens = numpy.array([[3, 7], [3, 7]])
    for made in (
        group(tokens=tokens, masks=tokens, metadata={"speed": numpy.float32(0.5)}),
        {"tokens": tokens, "masks": tokens, "scores": [numpy.float64(1.0), 0.5]},
    ):
        body = as_frames([made], ["a"], compress=False)
        headers = body.headers | {"x-atropos-batch": "5", "x-atropos-epoch": "1"}
        claimed = read_claimed(httpx.Response(200, headers=headers, content=body.content))
        assert [one.tokens for one in claimed.batch or []] == [[[3, 7]] * 2]
