"""One way to sample tokens from any server, those of the original's shape included.

A server needs ``config`` and ``tokens_and_logprobs_completion(**kwargs)``, which answers
``(prompt ids, [tokens], [logprobs], [finish reason])``. One that also has ``generate`` tells
the policy version of each token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from atroposlib.errors import TokensMissing
from atroposlib.generation.engines.base import APIServer
from atroposlib.generation.sampling.params import sampling_params
from atroposlib.generation.sampling.types import Generation, from_four_tuple

_TOKENS_CALL = "tokens_and_logprobs_completion"
_OF_THE_REQUEST = ("split", "timeout", "extra_headers")  # not sampling parameters


class SamplingServer(Protocol):
    """The original's servers, and whatever a test puts in their place."""

    config: Any

    async def tokens_and_logprobs_completion(self, **kwargs: Any) -> Any: ...


async def sample_tokens(
    server: SamplingServer | APIServer,
    prompt_text: str,
    input_ids: list[int],
    kwargs: Mapping[str, Any],
) -> list[Generation]:
    """Continuations of ``input_ids``; ``kwargs`` are the caller's sampling parameters.

    The prompt that the server says it was given is the prompt of the result.

    Raises:
        TokensMissing: the answer has no token ids, or not one logprob for each.
    """
    if speaks_generate(server):
        request = {k: kwargs[k] for k in _OF_THE_REQUEST if kwargs.get(k) is not None}
        outputs: list[Generation] = await server.generate(  # type: ignore[union-attr]
            input_ids, prompt=prompt_text, **request, **sampling_params(kwargs)
        )
    else:
        outputs = _generations(
            await server.tokens_and_logprobs_completion(
                **{**kwargs, "prompt": prompt_text, "input_ids": input_ids}
            )
        )
    if not outputs:
        raise TokensMissing(f"{type(server).__name__} returned no output")
    return outputs


def speaks_generate(server: object) -> bool:
    """Whether ``generate`` is how this server wants to be asked.

    Classes are asked, not objects: a test's stand-in has every attribute, and a test that
    replaces the older call of one object means that call.
    """
    return hasattr(type(server), "generate") and _TOKENS_CALL not in vars(server)


def _generations(answer: Any) -> list[Generation]:
    if not isinstance(answer, (tuple, list)) or len(answer) != 4:
        raise TokensMissing(
            f"{_TOKENS_CALL} did not answer (prompt ids, [tokens], [logprobs], "
            "[finish reason])"
        )
    prompt_ids, tokens, logprobs, reasons = answer
    if any(part is None for part in (prompt_ids, tokens, logprobs, reasons)) or any(
        row is None for row in [*tokens, *logprobs]
    ):
        raise TokensMissing("an output came without token ids or logprobs")
    return from_four_tuple(prompt_ids, tokens, logprobs, reasons)


async def sequence_logprobs(
    server: SamplingServer | APIServer,
    input_ids: Sequence[int],
    prompt_text: str | None,
    kwargs: Mapping[str, Any],
) -> dict[str, Any]:
    """Logprobs of ``input_ids``, from the server's own ``get_logprobs``.

    Raises:
        NotImplementedError: the server has none.
    """
    ask = getattr(server, "get_logprobs", None)
    if ask is None:
        raise NotImplementedError(f"{type(server).__name__} does not implement get_logprobs")
    prompt = {} if prompt_text is None else {"prompt": prompt_text}
    answer: dict[str, Any] = await ask(**{**kwargs, **prompt, "input_ids": list(input_ids)})
    return answer
