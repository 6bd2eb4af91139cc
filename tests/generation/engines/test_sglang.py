"""Requests and responses of SGLang's ``/generate``."""

from __future__ import annotations

from base64 import b64encode

import numpy as np
import pytest

from atroposlib.errors import TokensMissing
from atroposlib.generation.engines.sglang import (
    generate_body,
    logprobs_body,
    read_generations,
    read_prompt_logprobs,
)
from atroposlib.generation.sampling.reply_form import ReplyPart
from atroposlib.wire.routing import experts_entry


def test_parameters_are_renamed_for_sglang() -> None:
    body = generate_body([1, 2], {"max_tokens": 5, "min_tokens": 1, "seed": 7, "top_p": 0.9})
    assert body["input_ids"] == [1, 2]
    assert body["sampling_params"] == {
        "max_new_tokens": 5,
        "min_new_tokens": 1,
        "sampling_seed": 7,
        "top_p": 0.9,
    }
    assert logprobs_body([1, 2], 3)["top_logprobs_num"] == 3


def test_sglang_triples_become_tokens_logprobs_and_versions() -> None:
    meta = {
        "output_token_logprobs": [[-0.5, 7, None], [-0.25, 8, None]],
        "completion_tokens": 2,
        "weight_version": "4",
        "finish_reason": {"type": "length", "length": 2},
    }
    (output,) = read_generations(ReplyPart({"meta_info": meta}, "u"), [1, 2])
    assert (output.prompt_ids, output.tokens) == ([1, 2], [7, 8])
    assert (output.logprobs, output.versions) == ([-0.5, -0.25], [4, 4])
    assert output.finish_reason == "length"


def test_an_output_without_logprobs_is_rejected_unless_it_has_no_tokens() -> None:
    with pytest.raises(TokensMissing, match="no meta_info.output_token_logprobs"):
        read_generations(ReplyPart({"meta_info": {"completion_tokens": 2}}, "u"), [1])
    (empty,) = read_generations(ReplyPart({"meta_info": {"completion_tokens": 0}}, "u"), [1])
    assert empty.tokens == [] and empty.finish_reason == "stop"


def test_prompt_logprobs_start_with_the_token_itself() -> None:
    meta = {
        "input_token_logprobs": [[None, 1, None], [-0.5, 2, None]],
        "input_top_logprobs": [None, [[-0.1, 9, None], [-0.5, 2, None]]],
    }
    rows = read_prompt_logprobs(ReplyPart({"meta_info": meta}, "u"), [1, 2])
    assert [list(row) for row in rows] == [[], [2, 9]]
    assert [list(row.values()) for row in rows] == [[], [-0.5, -0.1]]
    with pytest.raises(TokensMissing, match="tokens other than"):
        read_prompt_logprobs(ReplyPart({"meta_info": meta}, "u"), [1, 3])


def test_routed_experts_are_asked_beside_the_sampling_parameters_and_read_flat() -> None:
    body = generate_body([1, 2], {"max_tokens": 5, "return_routed_experts": True})
    assert body["return_routed_experts"] is True
    assert body["sampling_params"] == {"max_new_tokens": 5}
    meta = {
        "output_token_logprobs": [[-0.5, 7, None]],
        "routed_experts": b64encode(np.arange(8, dtype=np.int32).tobytes()).decode(),
    }
    (output,) = read_generations(ReplyPart({"meta_info": meta}, "u"), [1, 2])
    assert output.routed_experts == experts_entry(np.arange(8).reshape(2, 1, 4))
    with pytest.raises(TokensMissing, match="routed_experts"):
        read_generations(ReplyPart({"meta_info": meta}, "u"), [1, 2, 3])
