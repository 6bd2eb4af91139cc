"""Memory of a real process under large requests: 64 MB beside their own bytes, at most."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import numpy as np
import pytest

from atroposlib.wire.binary import pack_group
from atroposlib.wire.routing import experts_entry
from tests.api.harness import TRAINER
from tests.api.processes import serving
from tests.torture.web.bombs import forget_peak, peak_rss

pytestmark = pytest.mark.slow

MB = 2**20
GZIP = {"content-encoding": "gzip", "content-type": "application/json"}
FRAMES = "application/x-atropos-groups"
BINARY = {"content-type": "application/x-safetensors"}


@pytest.fixture
def api(tmp_path):
    """URL and process id of an API with a trainer."""
    with serving(tmp_path) as (process, url):
        long = TRAINER | {"batch_size": 16, "max_token_len": 2**21}
        httpx.post(url + "/register", json=long).raise_for_status()
        yield url, process.pid


def taken(pid, calls, call):
    """Megabytes that so many equal calls at once take, and their status codes."""
    call()  # warm: modules and threads
    forget_peak(pid)
    before = peak_rss(pid)
    with ThreadPoolExecutor(calls) as threads:
        codes = {
            one.result().status_code for one in [threads.submit(call) for _ in range(calls)]
        }
    return (peak_rss(pid) - before) / MB, codes


def rows(number, length):
    """Four equal rows as JSON."""
    row = b"[" + b",".join([number] * length) + b"]"
    return b"[" + b",".join([row] * 4) + b"]"


def dense(numbers):
    """A valid group whose JSON has two bytes per number."""
    tokens = rows(b"7", numbers)
    return b'{"tokens":%b,"masks":%b,"scores":[1,2,3,4]}' % (tokens, tokens)


@pytest.mark.parametrize(("numbers", "code"), [(1_500_000, 200), (7_750_000, 422)])
@pytest.mark.parametrize("calls", [1, 3])
def test_a_dense_group_takes_little_beside_its_inflated_bytes(api, numbers, code, calls):
    url, pid = api
    body = dense(numbers)
    packed = gzip.compress(body, 1)
    post = partial(httpx.post, url + "/scored_data", content=packed, headers=GZIP, timeout=300)
    megabytes, codes = taken(pid, calls, post)
    assert codes == {code}
    assert megabytes - calls * len(body) / MB < 64


def test_a_long_list_takes_little_beside_its_bytes(api):
    url, pid = api
    logprobs = [[-0.123456789] * 4096] * 16
    tokens = [[123_456] * 4096] * 16
    one = {"tokens": tokens, "masks": tokens, "scores": [0] * 16}
    one["inference_logprobs"] = logprobs
    body = b"[" + b",".join([json.dumps(one).encode()] * 40) + b"]"
    megabytes, codes = taken(
        pid, 1, partial(httpx.post, url + "/scored_data_list", content=body, timeout=300)
    )
    assert codes == {200}
    assert megabytes - len(body) / MB < 64


def claim(url, generation, name, accept):
    """The status of a claim, whose reply is read and dropped."""
    body = {"generation": generation, "claim_id": name}
    call = partial(httpx.stream, headers={"accept": accept}, timeout=300)
    with call("POST", url + "/batches/claim", json=body) as reply:
        size = sum(len(piece) for piece in reply.iter_raw())
    return reply if size else None


@pytest.mark.parametrize(
    "packed", [json.dumps, partial(pack_group, compress=False), pack_group]
)
def test_a_large_image_takes_little_beside_its_bytes(api, packed):
    url, pid = api
    image = "A" * 100 * MB
    group = {"tokens": [[1, 2]], "masks": [[1, 2]], "scores": [1.0], "images": [image]}
    body = packed(group)
    kind = BINARY if isinstance(body, bytes) else {"content-type": "application/json"}
    post = partial(httpx.post, url + "/scored_data", content=body, headers=kind, timeout=300)
    megabytes, codes = taken(pid, 1, post)
    assert codes == {200}
    assert megabytes - 100 < 64


@pytest.mark.parametrize("kind", [FRAMES, "application/json"])
def test_claims_of_a_converted_group_take_little_beside_what_is_stored(api, kind):
    url, pid = api
    register = TRAINER | {"batch_size": 4, "max_token_len": 2**23, "commits": True}
    generation = httpx.post(url + "/register", json=register).json()["generation"]
    if kind == FRAMES:
        logprobs = rows(b"-0.123456789012", 700_000)
        tokens = rows(b"123456", 700_000)
        form = b'{"tokens":%b,"masks":%b,"scores":[1,2,3,4],"inference_logprobs":%b}'
        body, sent = form % (tokens, tokens, logprobs), {"content-type": "application/json"}
        calls, own = 1, len(body) / MB
    else:
        row = [7] * 2_000_000
        group = {"tokens": [row] * 4, "masks": [row] * 4, "scores": [0.0] * 4}
        body, sent, calls = pack_group(group), BINARY, 6
        own = 6 * len(body) / MB
    posted = httpx.post(url + "/scored_data", content=body, headers=sent, timeout=300)
    assert posted.status_code == 200
    megabytes, codes = taken(pid, calls, partial(claim, url, generation, "once", kind))
    assert codes == {200}
    assert megabytes - own < 64


def test_json_of_binary_groups_takes_little(api):
    url, pid = api
    row = [7] * 300_000
    group = {"tokens": [row] * 4, "masks": [row] * 4, "scores": [0.0] * 4}
    packed = pack_group(group | {"inference_logprobs": [[-0.5] * len(row)] * 4})
    posted = httpx.post(url + "/scored_data", content=packed, headers=BINARY)
    assert (posted.status_code, len(packed) < 10_000) == (200, True)
    latest = partial(httpx.get, url + "/latest_example", timeout=300)
    megabytes, codes = taken(pid, 6, latest)
    assert codes == {200}
    assert megabytes < 64


@pytest.mark.parametrize(("given", "code"), [(1, 422), (2**12, 200)])
def test_expert_choices_take_little_beside_their_bytes(api, given, code):
    url, pid = api
    register = TRAINER | {"batch_size": 4, "max_token_len": 2**16, "commits": True}
    generation = httpx.post(url + "/register", json=register).json()["generation"]
    row = [7] * (2**16 if code == 422 else 2**13)
    choices = experts_entry(np.ones((given, 32, 16), np.int16))  # of a row's first tokens
    group = {"tokens": [row] * 2, "masks": [row] * 2, "scores": [0.0] * 2}
    body = group | {"routed_experts": [choices] * 2}
    post = partial(httpx.post, url + "/scored_data", json=body, timeout=300)
    megabytes, codes = taken(pid, 1, post)
    assert (codes, megabytes < 64) == ({code}, True), megabytes
    if code == 200:
        megabytes, codes = taken(pid, 1, partial(claim, url, generation, "once", FRAMES))
        assert (codes, megabytes < 64) == ({200}, True), megabytes


def test_a_binary_group_with_long_messages_takes_little_beside_its_bytes(api):
    url, pid = api
    messages = [[{"role": "user", "content": "é" * 2**19}] * 20] * 2  # 80 MB as JSON
    group = {"tokens": [[1, 2]] * 2, "masks": [[1, 2]] * 2, "scores": [1.0, 0.0]}
    body = pack_group(group | {"messages": messages}, compress=False)
    post = partial(httpx.post, url + "/scored_data", content=body, headers=BINARY, timeout=300)
    megabytes, codes = taken(pid, 1, post)
    assert codes == {200}
    assert megabytes - len(body) / MB < 64
