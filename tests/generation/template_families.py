"""Chat templates in the style of many model families, real tokenizers, a scripted sampler."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import Any

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.sampling.generation import Generation

SPECIALS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|begin|>",
    "<|header|>",
    "<|/header|>",
    "<|eot|>",
    "<s>",
    "</s>",
    "<bos>",
    "<turn>",
    "</turn>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|tool|>",
    "<|end|>",
    "<|endoftext|>",
    "[THINK]",
    "[/THINK]",
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|call|>",
    "<|return|>",
)
CORPUS = [
    "what is two and two? the answer is four. I will add them and see.",
    "tell me of the sea and of the stones; then of the answer to the question",
    "assistant user system model <think> </think> [INST] [/INST] <tool_call> </tool_call>",
] * 4

_CHATML_TURNS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}"
)
_CHATML_ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


@dataclass(frozen=True)
class Family:
    """A template, the token that ends a turn, and whether it keeps earlier turns as they are.

    ``lead`` is what a model of the family samples before its first word.
    """

    name: str
    template: str
    end: str
    keeps_history: bool = True
    lead: str = ""


FAMILIES = [
    Family("chatml", _CHATML_TURNS + _CHATML_ASK, "<|im_end|>"),
    Family(
        "chatml with a default system turn and a date",
        "{% if not messages or messages[0]['role'] != 'system' %}<|im_start|>system\n"
        "You help. Today is 1 May.<|im_end|>\n{% endif %}" + _CHATML_TURNS + _CHATML_ASK,
        "<|im_end|>",
    ),
    Family(
        "headers",
        "<|begin|>{% for m in messages %}<|header|>{{ m['role'] }}<|/header|>\n\n"
        "{{ m['content'] | trim }}<|eot|>{% endfor %}"
        "{% if add_generation_prompt %}<|header|>assistant<|/header|>\n\n{% endif %}",
        "<|eot|>",
    ),
    Family(
        "inst",
        "<s>{% for m in messages %}{% if m['role'] == 'assistant' %} {{ m['content'] | trim }}"
        "</s>{% else %}[INST] {{ m['content'] }} [/INST]{% endif %}{% endfor %}",
        "</s>",
        lead=" ",
    ),
    Family(
        "model turns",
        "<bos>{% for m in messages %}<turn>"
        "{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{{ m['content'] }}</turn>\n"
        "{% endfor %}{% if add_generation_prompt %}<turn>model\n{% endif %}",
        "</turn>",
    ),
    Family(
        "plain words",
        "<s>{% for m in messages %}{% if m['role'] == 'assistant' %}Assistant:{{ m['content'] }}"
        "</s>{% else %}User: {{ m['content'] }}\n\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}Assistant:{% endif %}",
        "</s>",
        lead=" ",
    ),
    Family(
        "an end of text only after the last turn",
        "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% else %}<|endoftext|>{% endif %}",
        "<|end|>",
    ),
    Family(
        "neighbours of one role are merged",
        "{% set ns = namespace(last='') %}{% for m in messages %}"
        "{% if m['role'] == ns.last %}\n\n{{ m['content'] }}{% else %}"
        "{% if ns.last %}<|im_end|>{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
        "{% endif %}{% set ns.last = m['role'] %}{% endfor %}<|im_end|>"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        "<|im_end|>",
    ),
    Family(
        "earlier thinking is dropped",
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}"
        "{{ m['content'].split('</think>')[-1] }}{% else %}{{ m['content'] }}{% endif %}"
        "<|im_end|>\n{% endfor %}" + _CHATML_ASK,
        "<|im_end|>",
        keeps_history=False,
        lead="<think>I see.</think>",
    ),
    Family(
        "the prompt opens the thinking",
        _CHATML_TURNS + "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
        "{% endif %}",
        "<|im_end|>",
        lead="I see.\n</think>\n",
    ),
    Family(
        "special tokens mark the thinking",
        _CHATML_TURNS + _CHATML_ASK,
        "<|im_end|>",
        lead="[THINK]I see.[/THINK]",
    ),
    Family(
        "harmony",
        "{% for m in messages %}<|start|>{{ m['role'] }}{% if m['role'] == 'assistant' %}"
        "<|channel|>final{% endif %}<|message|>{{ m['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        "<|return|>",
        keeps_history=False,
        lead="<|channel|>analysis<|message|>I see.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>",
    ),
    Family(
        "no turn but the last is ended",
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% else %}<|endoftext|>{% endif %}",
        "<|endoftext|>",
        keeps_history=False,
    ),
]
FAMILY_NAMED = {family.name: family for family in FAMILIES}


@functools.cache
def _backend(kind: str) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    if kind in ("metaspace", "prefixed"):  # SentencePiece: a word carries its space in front
        backend = Tokenizer(models.BPE(byte_fallback=True, unk_token=None))
        prefixed = kind == "prefixed"  # and the first word gets one
        backend.pre_tokenizer = pre_tokenizers.Metaspace(
            prepend_scheme="first" if prefixed else "never", split=False
        )
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        if prefixed:
            steps.append(decoders.Strip(" ", 1, 0))
        backend.decoder = decoders.Sequence(steps)
        alphabet = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=600, special_tokens=[*SPECIALS, *alphabet], show_progress=False
        )
    else:
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=256 + len(SPECIALS) + (120 if kind == "words" else 0),
            special_tokens=list(SPECIALS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    backend.train_from_iterator(CORPUS, trainer)
    if kind in ("metaspace", "prefixed"):  # bytes are trained as special and are not
        trained = json.loads(backend.to_str())["model"]
        pieces = trained["vocab"], [tuple(merge) for merge in trained["merges"]]
        plain = Tokenizer(models.BPE(*pieces, byte_fallback=True))
        plain.pre_tokenizer, plain.decoder = backend.pre_tokenizer, backend.decoder
        backend = plain
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    return backend


@functools.cache
def tokenizer_of(family: Family, kind: str = "words") -> Any:
    """``words``: byte-level BPE with merges; ``bytes``: none; ``metaspace``: SentencePiece's;
    ``prefixed``: with an extra space before the first word."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_backend(kind),
        eos_token=family.end,
        additional_special_tokens=list(SPECIALS),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = family.template
    return tokenizer


def one_by_one(tokenizer: Any, text: str) -> list[int]:
    """Ids of text as a sampler may choose them: one character at a time, never merged."""
    return [i for char in text for i in tokenizer.encode(char, add_special_tokens=False)]


@dataclass
class Sampler:
    """Returns scripted answers; every sampled token has a distinct logprob.

    ``next_outputs`` holds the (tokens, finish reason) of each choice of the next call.
    """

    config: APIServerConfig = field(
        default_factory=lambda: APIServerConfig(model_name="scripted", health_check=False)
    )
    next_outputs: list[tuple[list[int], str]] = field(default_factory=list)
    samples: list[Generation] = field(default_factory=list)
    sent: list[tuple[str, list[int]]] = field(default_factory=list)  # prompt text, input ids
    drawn: int = 0

    async def generate(self, input_ids: list[int], **kwargs: Any) -> list[Generation]:
        self.sent.append((kwargs["prompt"], input_ids))
        outputs = []
        for tokens, reason in self.next_outputs:
            logprobs = [-(self.drawn + k + 1) / 4096 for k in range(len(tokens))]
            self.drawn += len(tokens)
            outputs.append(
                Generation(
                    prompt_ids=list(input_ids),
                    tokens=list(tokens),
                    logprobs=logprobs,
                    versions=[len(self.sent)] * len(tokens),
                    finish_reason=reason,
                )
            )
        self.samples += outputs
        return outputs
