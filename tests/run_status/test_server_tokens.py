"""Generated tokens by the count of each kind of server."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from atroposlib.errors import ConfigError
from atroposlib.run_status.server_tokens import counter, generated_by, metric_of_engine
from tests.serving import served

VLLM = (
    "# HELP vllm:generation_tokens_total Number of generation tokens\n"
    'vllm:generation_tokens_total{engine="0",model_name="m"} 100.0\n'
    'vllm:generation_tokens_total{engine="1",model_name="m"} 20.5\n'
    'vllm:generation_tokens_created{engine="0"} 7\n'
)
SGLANG = 'sglang:generation_tokens_total{model_name="m"} 3.0\n'


def server(path, answer):
    async def get(request):
        return answer

    return Starlette(routes=[Route(path, get)])


def test_a_counter_is_the_sum_over_its_labels():
    assert counter(VLLM, "vllm:generation_tokens_total") == 120.5
    assert counter("", "vllm:generation_tokens_total") is None
    assert (metric_of_engine(VLLM), metric_of_engine(SGLANG)) == (120.5, 3.0)


def test_the_counts_of_all_servers_are_added():
    ours = server("/server_info", JSONResponse({"generated_tokens_total": 4}))
    theirs = server("/metrics", PlainTextResponse(SGLANG))
    with served(ours) as local, served(theirs) as sglang:
        assert generated_by([local, f"{sglang}/v1"]) == 7


def test_a_server_without_a_count_is_an_error_that_names_it():
    with served(server("/metrics", PlainTextResponse(""))) as url:
        with pytest.raises(ConfigError, match=f"{url} gives no count of generated tokens"):
            generated_by([url])
