"""A third-party server class may use every word that the original does not."""

from __future__ import annotations

from typing import Any

import pytest

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.harness import create_chat_completion, create_completion
from atroposlib.generation.routing.manager import ServerManager
from tests.envs.words import (
    ENGLISH,
    Untouchable,
    Way,
    after,
    as_coroutines,
    as_methods,
    as_properties,
    before,
    of_the_class,
)
from tests.repo.public.signatures import SIGNATURES

CONFIG = APIServerConfig(base_url="http://nowhere.invalid/v1", model_name="m", timeout=5)
FOUR = ([1, 2], [[3, 4]], [[-0.5, -0.25]], ["stop"])
ATTRIBUTES = frozenset(
    "config sem eval_sem server_healthy attempts_list eval_attempts_list request_timings "
    "eval_request_timings check_task initialized reasoning_config".split()
)
METHODS = {target.rpartition(".")[2] for target in SIGNATURES if ":APIServer." in target}
#: Words of APIServer that are not in the original: subclasses override them.
TAKEN = frozenset("announced_version generate_segment returns_tokens".split())
WAYS = [before, after, of_the_class, as_properties, as_methods, as_coroutines]


class Plain(APIServer):
    """The hooks of the original."""

    async def check_server_status_task(self, chat_completion: bool = True) -> bool:
        return True

    async def _chat_completion_wrapper(self, **kwargs: Any) -> Any:
        return create_chat_completion("hi")

    async def _completion_wrapper(self, **kwargs: Any) -> Any:
        return create_completion("4")

    async def _tokens_and_logprobs_completion_wrapper(self, **kwargs: Any) -> Any:
        return FOUR


def server_words() -> list[str]:
    """English words, and every name that the class and its objects have, without those taken."""
    words = {*ENGLISH, *dir(APIServer), *vars(Plain(CONFIG))} - ATTRIBUTES - METHODS - TAKEN
    return sorted(word for word in words if not word.startswith("_"))


async def use(server_cls: type[APIServer]) -> tuple[Any, ...]:
    manager = ServerManager([CONFIG], server_class=server_cls)
    messages = [{"role": "user", "content": "hello"}]
    chat = await manager.chat_completion(messages=messages, split="eval")
    text = await manager.completion(prompt="2+2=")
    tokens = await manager.tokens_and_logprobs_completion(prompt="x")
    (output,) = await manager.generate([1, 2])
    [server] = manager.servers
    await server.update_weight(0.5)
    metrics = await server.wandb_metrics({}, "s")
    return (
        chat.choices[0].message.content,
        text.choices[0].text,
        tokens,
        output.tokens,
        len(metrics),
    )


async def broken(put: Way, chosen: list[str]) -> list[str]:
    try:
        server_cls = put(Plain, chosen)
        assert await use(server_cls) == await use(Plain)
        if put in (before, after):
            server = server_cls(CONFIG)
            assert all(isinstance(vars(server).get(word), Untouchable) for word in chosen)
        return []
    except BaseException:
        if len(chosen) == 1:
            return chosen
    half = len(chosen) // 2
    return [*await broken(put, chosen[:half]), *await broken(put, chosen[half:])]


@pytest.mark.parametrize("put", WAYS, ids=lambda way: way.__name__)
async def test_every_other_word_of_a_server_class_is_the_authors(
    put: Way, no_backoff: None
) -> None:
    assert await broken(put, server_words()) == []
