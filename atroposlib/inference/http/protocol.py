"""Request bodies and their limits.

Unknown fields are ignored, as clients written for vLLM or OpenAI send many. A known field that this
server cannot apply is rejected, because ignoring it would sample from another policy than
the requested policy.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from typing_extensions import Self

from atroposlib.errors import InferenceRefused
from atroposlib.inference.engine.request import MAX_TOP_LOGPROBS, SamplingParams
from atroposlib.wire.messages import NEUTRAL_CUTS, NEUTRAL_PENALTIES
from atroposlib.wire.numbers import INT64_MAX, Int64

MAX_N = 4096
# Fields of vLLM and OpenAI that forbid tokens, which this server does not do.
CONSTRAINTS = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "bad_words",
    "allowed_token_ids",
)
_TEXTS = ("messages", "tools", "chat_template_kwargs", "stop", "model", "suffix")
WEIGHTS_GROUP = "weight_update_group"  # default name, as SGLang's


class SamplingFields(BaseModel):
    """Fields every generation route shares, under their OpenAI and vLLM names."""

    model_config = ConfigDict(extra="ignore")
    default_max_tokens: ClassVar[int] = 16  # default of OpenAI and vLLM for raw prompts

    n: int = Field(1, ge=1, le=MAX_N)
    temperature: float = Field(1.0, ge=0, le=100)
    top_p: float = Field(1.0, gt=0, le=1)
    # Bounds of Int64 would replace those of the field.
    top_k: int = Field(0, ge=-1, le=INT64_MAX)
    max_tokens: Int64 | None = Field(None, ge=0)
    max_completion_tokens: Int64 | None = Field(None, ge=0)
    min_tokens: int = Field(0, ge=0, le=INT64_MAX)
    seed: Int64 | None = None
    stop: str | Int64 | list[str | Int64] | None = None  # texts, or ids as in the original
    stop_token_ids: list[Int64] | None = None
    ignore_eos: bool = False
    model: str | None = None
    stream: bool = False
    return_token_ids: bool = False
    return_routed_experts: bool = False  # routed experts of a mixture of experts

    # known but not supported: only the neutral value passes
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_p: float | None = None
    logit_bias: dict[str, float] | None = None
    echo: bool = False
    best_of: Int64 | None = None
    suffix: str | None = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    tool_choice: Any = None

    @model_validator(mode="after")
    def _is_text(self) -> Self:
        texts = [getattr(self, name, None) for name in _TEXTS]
        prompt = getattr(self, "prompt", None)
        prompts = prompt if isinstance(prompt, list) else [prompt]
        texts += [text for text in prompts if isinstance(text, str)]
        try:  # half of a surrogate pair is no text: tokenizers fail on it
            json.dumps(texts, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text has half of a surrogate pair") from None
        return self

    @property
    def top(self) -> int | None:
        """Alternatives reported per token; None: no logprobs."""
        return None

    def require_supported(self) -> None:
        """Raises InferenceRefused (400) for a setting that would change the policy."""
        neutral = {
            **{name: (None, value) for name, value in NEUTRAL_PENALTIES.items()},
            "min_p": (None, NEUTRAL_CUTS["min_p"]),
            "logit_bias": (None, {}),
            "echo": (False,),
            "best_of": (None, self.n),
            "suffix": (None, ""),
            "response_format": (None, {}, {"type": "text"}),
            "tool_choice": (None, "auto", "none"),
            **dict.fromkeys(CONSTRAINTS, (None, {}, [], "")),
        }
        for name, accepted in neutral.items():
            if (value := getattr(self, name)) not in accepted:
                raise InferenceRefused(
                    400, f"{name}={value!r} is not supported by this server"
                )

    def sampling_params(self, context_left: int) -> SamplingParams:
        """``context_left``: tokens the context has left after the prompt."""
        self.require_supported()
        top = self.top or 0
        if top > MAX_TOP_LOGPROBS:
            raise InferenceRefused(400, f"at most {MAX_TOP_LOGPROBS} top logprobs, not {top}")
        default = min(self.default_max_tokens, context_left)
        limits = (self.max_completion_tokens, self.max_tokens, default)
        max_tokens = next(limit for limit in limits if limit is not None)
        stops = self.stop if isinstance(self.stop, list) else [self.stop]
        stop_ids = [stop for stop in stops if isinstance(stop, int)]
        return SamplingParams(
            max_tokens=min(max_tokens, context_left),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            min_tokens=min(self.min_tokens, max_tokens),
            seed=self.seed,
            stop=tuple(stop for stop in stops if isinstance(stop, str)),
            stop_token_ids=frozenset([*stop_ids, *(self.stop_token_ids or ())]),
            ignore_eos=self.ignore_eos,
            top_logprobs=top,
            routed_experts=self.return_routed_experts,
        )


class StreamOptions(BaseModel):
    """Options of the last chunk of a stream."""

    include_usage: bool = False


class ChatRequest(SamplingFields):
    """POST /v1/chat/completions."""

    default_max_tokens = 256  # OpenAI's default is "the rest of the context"

    messages: list[dict[str, Any]] = Field(min_length=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=INT64_MAX)
    stream_options: StreamOptions | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    tools: list[dict[str, Any]] | None = None

    @property
    def top(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


class PromptFields(SamplingFields):
    """Shared by the routes without messages. ``logprobs`` 0: of the sampled token alone."""

    logprobs: Int64 | None = Field(None, ge=0)

    @property
    def top(self) -> int | None:
        return self.logprobs


class CompletionRequest(PromptFields):
    """POST /v1/completions. A prompt or several, as text or as token ids."""

    prompt: str | list[Int64] | list[str] | list[list[Int64]]
    add_special_tokens: bool = True
    stream_options: StreamOptions | None = None


class TokenPrompt(BaseModel):
    """A prompt that is already tokens."""

    prompt_token_ids: list[Int64]


class GenerateRequest(PromptFields):
    """POST /generate, as in vLLM."""

    prompt: str | TokenPrompt
    prompt_logprobs: Int64 | None = Field(None, ge=0)


class InitWeightsGroup(BaseModel):
    """POST /init_weights_update_group (SGLang's name); this server is rank ``rank_offset``."""

    master_address: str
    master_port: int = Field(gt=0, le=65535)
    rank_offset: int = Field(ge=1, le=2**20)
    world_size: int = Field(ge=2, le=2**20)
    group_name: str = WEIGHTS_GROUP
    backend: Literal["nccl", "gloo"] = "nccl"
    timeout_s: float = Field(300.0, gt=0, le=3600)


class UpdateFromGroup(BaseModel):
    """POST /update_weights_from_distributed (SGLang's name).

    ``final`` false: more tensors follow in another message, and nothing changes yet.
    """

    names: list[str]
    dtypes: list[Literal["float32", "bfloat16", "float16"]]
    shapes: list[list[Int64]]
    group_name: str = WEIGHTS_GROUP
    weight_version: Int64 | None = None
    final: bool = True

    @model_validator(mode="after")
    def _parallel(self) -> UpdateFromGroup:
        if not len(self.names) == len(self.dtypes) == len(self.shapes):
            raise ValueError("names, dtypes and shapes must have one entry per tensor")
        return self
