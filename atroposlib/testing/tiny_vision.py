"""Tiny vision-language models with random weights, and their processors.

For tests and small runs, without a download: the tokenizer of ``tiny``, and a vision tower of a
layer or two. Families of two kinds: ``qwen2_vl`` rotates positions by three axes and takes
pictures of any size, ``llava`` counts plain positions and takes squares of a fixed size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atroposlib.testing.tiny import ASCII_ALPHABET, ROLE_TOKENS, char_tokenizer

FAMILIES = ("llava", "qwen2_vl")
PATCH = 8  # pixels
SIDE = 32  # pixels; of LLaVA's square
# Content is a text, or a list of parts of type text and image.
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Text of a picture in a prompt, and the tokens that a family adds.
PLACES = {
    "llava": ("<image>", ("<image>",)),
    "qwen2_vl": (
        "<|vision_start|><|image_pad|><|vision_end|>",
        ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"),
    ),
}


def write_tiny_vision_model(
    directory: Path,
    family: str = "llava",
    *,
    seed: int = 0,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 2,
    max_positions: int = 256,
    alphabet: str = ASCII_ALPHABET,
) -> Path:
    """Write a random model of a family (config, weights, tokenizer, processor).

    The same seed gives the same weights.
    """
    import torch

    place, added = PLACES[family]
    tokenizer = char_tokenizer(alphabet)
    special = [*ROLE_TOKENS[:3], *added]
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.chat_template = CHAT_TEMPLATE.replace("IMAGE", place)
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden_size,
        "intermediate_size": 4 * hidden_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads,
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    build = _llava if family == "llava" else _qwen2_vl
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, processor = build(tokenizer, text)
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
    return directory


def _llava(tokenizer: Any, text: dict[str, Any]) -> tuple[Any, Any]:
    from transformers import (
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )
    from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
    from transformers.models.llava.processing_llava import LlavaProcessor

    size = {"height": SIDE, "width": SIDE}
    images: Any = LlavaImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=size)
    make: Any = LlavaProcessor
    processor = make(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )
    width = text["hidden_size"]
    vision = CLIPVisionConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
    )
    configure: Any = LlavaConfig  # its types have the names of older releases
    config = configure(
        vision_config=vision,
        text_config=LlamaConfig(**text),
        image_token_id=processor.image_token_id,
        vision_feature_layer=-1,
        image_seq_length=(SIDE // PATCH) ** 2,
        tie_word_embeddings=True,
    )
    return LlavaForConditionalGeneration(config), processor


def _qwen2_vl(tokenizer: Any, text: dict[str, Any]) -> tuple[Any, Any]:
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
        Qwen2VLImageProcessorPil,
    )
    from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor

    from atroposlib.utils.models.vision import without_video

    images: Any = Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=2,
        min_pixels=(2 * PATCH) ** 2,
        max_pixels=(8 * PATCH) ** 2,
    )
    processor = without_video(Qwen2VLProcessor)(
        image_processor=images, tokenizer=tokenizer, chat_template=tokenizer.chat_template
    )
    eighth = text["hidden_size"] // text["num_attention_heads"] // 8
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [2 * eighth, eighth, eighth],
    }
    id_of = tokenizer.convert_tokens_to_ids
    configure: Any = Qwen2VLConfig  # takes the tokens of its text part as well
    config = configure(
        text_config={**text, "rope_parameters": rope},
        vision_config={
            "depth": 1,
            "embed_dim": text["hidden_size"],
            "hidden_size": text["hidden_size"],
            "num_heads": 2,
            "patch_size": PATCH,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "mlp_ratio": 2,
        },
        image_token_id=id_of("<|image_pad|>"),
        video_token_id=id_of("<|video_pad|>"),
        vision_start_token_id=id_of("<|vision_start|>"),
        vision_end_token_id=id_of("<|vision_end|>"),
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2VLForConditionalGeneration(config), processor
