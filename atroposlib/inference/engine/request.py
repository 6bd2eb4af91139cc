"""Types of generation: request, its n sequences, their outputs; incremental decoding.

GenerationRequest -> n sequences -> Output (for each sequence) -> RequestResult
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from atroposlib.wire.safetensors import Array

if TYPE_CHECKING:
    from atroposlib.utils.models.vision import PictureInputs

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # an unfinished multi-byte character decodes to it
MAX_TOP_LOGPROBS = 20  # limit of the OpenAI API; every row of a batch pays for the widest


class FinishReason(str, Enum):
    """Why a sequence ended; the values follow the OpenAI API."""

    STOP = "stop"  # an end-of-sequence token, a stop token or a stop string
    LENGTH = "length"  # max_tokens or the model's context is used up
    ABORT = "abort"  # a pause in mode abort cut it off


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling options. ``temperature`` 0 is greedy; ``top_k`` 0 keeps the whole vocabulary."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_tokens: int = 0  # no end-of-sequence before this many
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    top_logprobs: int = 0
    routed_experts: bool = False


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Output tokens [start, end) were sampled by these weights."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Output:
    """Finished sequence; ``tokens`` and ``logprobs`` have the same length."""

    tokens: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    versions: list[VersionSpan]
    top: list[dict[int, float]]  # per token, empty unless top_logprobs was asked
    stop_text: str | None = None  # text before the stop string, if a stop string ended it
    experts: Array | None = None  # (prompt and output tokens but the last, L, K), if asked


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """Sampled token of a streamed request, sent at once."""

    index: int
    token: int
    logprob: float
    top: dict[int, float] | None
    text: str  # what this token adds to the text, may be empty


PromptLogprobs = list[dict[int, float] | None]  # entry 0 is None: nothing predicts it


@dataclass(frozen=True, slots=True)
class RequestResult:
    """All outputs of a request, in index order."""

    outputs: list[Output]
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class GenerationRequest:
    """A prompt with its sampling options. ``future`` resolves once, with all outputs."""

    prompt_ids: list[int]
    params: SamplingParams
    pictures: PictureInputs | None = None
    n: int = 1
    prompt_logprobs: int | None = None  # number of alternatives besides the actual token
    on_event: Callable[[TokenEvent], None] | None = None  # called from the engine thread
    future: Future[RequestResult] = field(default_factory=Future)
    outputs: dict[int, Output] = field(default_factory=dict)
    scored: PromptLogprobs | None = None

    @property
    def num_sequences(self) -> int:
        return self.n if self.params.max_tokens else 0  # 0: only the prompt is scored

    def stream_to(self, post: Callable[[TokenEvent | None], None]) -> None:
        """Post each event to ``post``, and None once the future has resolved."""
        self.on_event = post
        self.future.add_done_callback(lambda _: post(None))

    def deliver(self, index: int, output: Output) -> None:
        """Keep an output; the last output resolves the future."""
        self.outputs[index] = output
        self.resolve_if_complete()

    def resolve_if_complete(self) -> None:
        if len(self.outputs) < self.num_sequences or self.future.done():
            return
        if self.prompt_logprobs is not None and self.scored is None:
            return
        ordered = [self.outputs[i] for i in sorted(self.outputs)]
        self.future.set_result(RequestResult(ordered, self.scored))


class Prompt(NamedTuple):
    """Tokens and pictures of a prompt; equal prompts are computed once."""

    ids: tuple[int, ...]
    pictures: bytes  # digest; empty for text


@dataclass(slots=True, eq=False)
class SequenceState:
    """Continuation of a request, out of n, waiting or in a row of the batch."""

    request: GenerationRequest
    index: int
    seed: int
    version_starts: list[tuple[int, int]] = field(default_factory=list)  # (version, start)
    top: list[dict[int, float]] = field(default_factory=list)
    text: TextStream | None = None  # set when streamed or when there are stop strings
    # experts of each pass, (its tokens, L, K)
    experts: list[Array] = field(default_factory=list)

    @property
    def is_watched(self) -> bool:
        """Whether each of its tokens must be looked at as it is sampled."""
        params = self.request.params
        return bool(self.text or params.stop_token_ids or params.top_logprobs)

    @property
    def text_stopped(self) -> bool:
        return self.text is not None and self.text.stopped

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def rope_shift(self) -> int:
        """Position of a sampled token in the rotation minus its column."""
        return self.request.pictures.shift if self.request.pictures else 0

    @property
    def prompt(self) -> Prompt:
        pictures = self.request.pictures
        digest = pictures.digest if pictures else b""
        return Prompt(tuple(self.request.prompt_ids), digest)

    @property
    def reserved_len(self) -> int:
        """Columns of KV memory it needs at most."""
        return self.prompt_len + self.request.params.max_tokens

    def begin_version(self, version: int, num_output: int) -> None:
        """Tokens from ``num_output`` on are sampled by ``version``."""
        self.version_starts = [s for s in self.version_starts if s[1] < num_output]
        self.version_starts.append((version, num_output))

    def version_spans(self, num_output: int) -> list[VersionSpan]:
        ends = [start for _, start in self.version_starts[1:]] + [num_output]
        return [
            VersionSpan(version, start, end)
            for (version, start), end in zip(self.version_starts, ends)
            if end > start
        ]


class TextStream:
    """Text of a growing token list; :meth:`push` returns the text that a token completes.

    Decoding tokens separately would lose the spaces and bytes that depend on neighbours,
    so each step decodes the last few tokens twice, with and without the new token.
    """

    def __init__(self, tokenizer: Any, stop: Iterable[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = [s for s in stop if s]
        self._held_back = max((len(s) for s in self._stop), default=1) - 1
        self._tokens: list[int] = []
        self._context = self._done = 0  # tokens[_context:_done] are the decoded left context
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
        up_to = len(self.text) - (0 if self.stopped else self._held_back)
        piece = self.text[self._emitted : max(up_to, self._emitted)]
        self._emitted += len(piece)
        return piece

    def _cut_at_stop(self, searched_from: int) -> None:
        places = [p for s in self._stop if (p := self.text.find(s, searched_from)) >= 0]
        if places:
            self.text = self.text[: min(places)]
            self.stopped = True

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))
