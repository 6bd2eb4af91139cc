"""Groups whose tokens are the bytes of their texts, and a tokenizer for them."""

from __future__ import annotations

from atroposlib.wire import MASKED, ScoredData

PROMPT = "2+2? é"


class ByteTokenizer:
    def __call__(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int], **_: object) -> str:
        return bytes(tokens).decode(errors="replace")


TOKENIZER = ByteTokenizer()


def group(*answers: str, **fields: object) -> ScoredData:
    prompt = TOKENIZER(PROMPT)
    tokens = [prompt + TOKENIZER(answer) for answer in answers]
    values: dict[str, object] = {
        "tokens": tokens,
        "masks": [[MASKED] * len(prompt) + row[len(prompt) :] for row in tokens],
        "scores": [float(-g) for g in range(len(answers))],
        "inference_logprobs": [
            [1.0] * len(prompt) + [-0.01] * (len(row) - len(prompt)) for row in tokens
        ],
    }
    return ScoredData(**{**values, **fields})  # type: ignore[arg-type]
