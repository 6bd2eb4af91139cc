"""Tokens to text while they arrive: incremental decoding and stop strings.

Used only for sequences that are streamed or have stop strings; all others are decoded
once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # an unfinished multi-byte character decodes to it


class TextStream:
    """Text of a growing token list; :meth:`push` returns what a token made certain.

    Decoding tokens one by one would lose the spaces and bytes that depend on neighbours,
    so each step decodes the last few tokens twice, with and without the new one.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = [s for s in stop if s]
        self._held_back = max((len(s) for s in self._stop), default=1) - 1
        self._tokens: list[int] = []
        self._context = (
            0  # tokens[_context:_done] were decoded before and give the left context
        )
        self._done = 0
        self.text = ""
        self._emitted = 0
        self.stopped = False

    def push(self, token: int) -> str:
        """Add a token. Sets ``stopped`` and trims ``text`` when a stop string appears."""
        self._tokens.append(token)
        known = self._decode(self._tokens[self._context : self._done])
        now = self._decode(self._tokens[self._context :])
        if len(now) > len(known) and not now.endswith(REPLACEMENT):
            searched_from = max(0, len(self.text) - self._held_back)
            self.text += now[len(known) :]
            self._context, self._done = self._done, len(self._tokens)
            self._cut_at_stop(searched_from)
        return self._emit(len(self.text) - (0 if self.stopped else self._held_back))

    def flush(self) -> str:
        """What was held back in case a stop string would follow; call at the end."""
        if not self.stopped:
            tail = self._decode(self._tokens[self._context :])
            self.text += tail[len(self._decode(self._tokens[self._context : self._done])) :]
            self._done = len(self._tokens)
        return self._emit(len(self.text))

    def _cut_at_stop(self, searched_from: int) -> None:
        places = [p for s in self._stop if (p := self.text.find(s, searched_from)) >= 0]
        if places:
            self.text = self.text[: min(places)]
            self.stopped = True

    def _emit(self, up_to: int) -> str:
        piece = self.text[self._emitted : max(up_to, self._emitted)]
        self._emitted += len(piece)
        return piece

    def _decode(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return text
