"""Pictures as inputs of a vision-language model, made by the model's own processor.

    bytes -> open_picture -> processor -> pixel tensors, placeholder tokens, positions of all tokens

The local server and the trainer both read pictures here, so that both compute the same numbers.

T tokens of a sequence, A axes of its positions (3 with multi-axis rope).
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atroposlib.errors import PictureError
from atroposlib.utils.models.picture_files import open_picture

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)
NO_PILLOW = "pillow is missing: pip install 'atropos-rl[pictures]'"
MAX_PICTURES = 64  # per sequence
MAX_SEQUENCE_PIXELS = 2**27  # all pictures are decoded at once
KEPT = 16  # sequences whose pixel tensors the reader keeps
# Outputs of a processor about tokens; the rest is about pixels.
TOKEN_OUTPUTS = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")


@dataclass(frozen=True, eq=False)
class PictureInputs:
    """Pictures of a sequence as tensors, and the positions that its tokens get."""

    digest: bytes  # all pictures, in order
    tensors: Mapping[str, Tensor]  # pixels and grids, under the processor's names
    positions: Tensor | None  # (A, T) of the tokens of the prompt; None: 0, 1, ...
    shift: int  # position of a later token minus its index
    token_ids: frozenset[int]  # placeholders

    @property
    def batch_key(self) -> tuple[Any, ...]:
        """Equal for sequences whose tensors can be joined along their first dimension."""
        return tuple((name, *value.shape[1:]) for name, value in sorted(self.tensors.items()))

    def positions_up_to(self, length: int) -> Tensor:
        """(A, length); tokens after ``positions`` are text."""
        if self.positions is None:
            return torch.arange(length)[None]
        known = self.positions[:, :length]
        later = torch.arange(known.shape[1], length) + self.shift
        return torch.cat([known, later.expand(len(known), -1)], 1)


@dataclass(frozen=True)
class _Pixels:
    tensors: Mapping[str, Tensor]
    placeholders: list[int]  # tokens of each picture; a single sum if not known apart


class PictureReader:
    """The processor of a model: pictures to pixel tensors, placeholders and positions.

    Calls may come from many threads.
    """

    def __init__(self, processor: Any, model: Any) -> None:
        self._processor = processor
        self._rope_index = getattr(model.base_model, "get_rope_index", None)
        self._lock = threading.Lock()  # a tokenizer serves a single thread at a time
        self._kept: OrderedDict[bytes, _Pixels] = OrderedDict()
        self.token_ids: frozenset[int] = frozenset(processor.image_token_ids)

    def prompt(self, text: str, pictures: Sequence[bytes]) -> tuple[list[int], PictureInputs]:
        """Token ids of a rendered prompt with a placeholder text for each picture.

        Raises PictureError: a picture cannot be read, or the text has another number of places.
        """
        output = self._process(text, pictures)
        ids: list[int] = output["input_ids"][0].tolist()
        return ids, self._inputs(ids, _digest(pictures), _pixels_of(output))

    def inputs(self, ids: Sequence[int], pictures: Sequence[bytes]) -> PictureInputs | None:
        """Inputs of a sequence that is known by its tokens; None of a sequence without pictures.

        Raises PictureError: a picture cannot be read, or the placeholders of the sequence are not
        those of its pictures in their order.
        """
        runs = runs_of(ids, self.token_ids)
        if not pictures:
            # The text of a placeholder alone may be a part of a question.
            if max(runs, default=0) > 1:
                raise PictureError(
                    f"{sum(runs)} placeholder tokens of pictures, and no picture: the environment"
                    " sent the tokens of a prompt without its images"
                )
            return None
        pixels = self._pixels(pictures)
        present, needed = sum(runs), sum(pixels.placeholders)
        if present != needed:
            raise PictureError(
                f"{len(pictures)} pictures take {needed} placeholder tokens by the"
                f" processor of the model, and the row has {present}: the server reads pictures"
                " with another processor, or the sample contains the placeholder itself"
            )
        known_apart = len(pixels.placeholders) == len(pictures)
        if known_apart and not {*accumulate(runs)} <= {*accumulate(pixels.placeholders)}:
            raise PictureError(
                f"the pictures take {pixels.placeholders} placeholder tokens, and the row has"
                f" {runs}: the images of the row are in another order than in its prompt"
            )
        return self._inputs(ids, _digest(pictures), pixels.tensors)

    def _pixels(self, pictures: Sequence[bytes]) -> _Pixels:
        digest = _digest(pictures)
        with self._lock:
            if (kept := self._kept.get(digest)) is not None:
                self._kept.move_to_end(digest)
                return kept
        # A letter apart, so that each picture has a run of placeholders.
        output = self._process(f"a{self._processor.image_token}" * len(pictures), pictures)
        runs = runs_of(output["input_ids"][0].tolist(), self.token_ids)
        known_apart = len(runs) == len(pictures)
        pixels = _Pixels(_pixels_of(output), runs if known_apart else [sum(runs)])
        with self._lock:
            self._kept[digest] = pixels
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return pixels

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Prompt text of messages by the chat template; contents are lists of parts."""
        text: str = self._processor.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, **options
        )
        return text

    @property
    def has_template(self) -> bool:
        return bool(self._processor.chat_template)

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write the files of the processor and of its tokenizer into a model directory."""
        self._processor.save_pretrained(directory)

    def _process(self, text: str, pictures: Sequence[bytes]) -> Mapping[str, Any]:
        if len(pictures) > MAX_PICTURES:
            raise PictureError(
                f"{len(pictures)} pictures in a sequence; at most {MAX_PICTURES}"
            )
        images: list[Image] = []
        for data in pictures:
            images.append(open_picture(data))
            if sum(image.width * image.height for image in images) > MAX_SEQUENCE_PIXELS:
                raise PictureError(
                    f"the pictures of a sequence have over {MAX_SEQUENCE_PIXELS} pixels"
                )
        try:
            with self._lock:
                output: Mapping[str, Any] = self._processor(
                    text=[text], images=images, return_tensors="pt", add_special_tokens=False
                )
        except (ValueError, IndexError) as error:  # sizes and counts that do not fit
            raise PictureError(f"the processor of the model refuses it: {error}") from error
        return output

    def _inputs(
        self, ids: Sequence[int], digest: bytes, tensors: Mapping[str, Tensor]
    ) -> PictureInputs:
        if self._rope_index is None:
            return PictureInputs(digest, tensors, None, 0, self.token_ids)
        tokens = torch.tensor([list(ids)])
        kinds = torch.isin(tokens, torch.tensor(sorted(self.token_ids))).int()
        grids = {name: grid for name, grid in tensors.items() if name.endswith("_grid_thw")}
        try:
            positions, shift = self._rope_index(tokens, mm_token_type_ids=kinds, **grids)
        except (RuntimeError, StopIteration) as error:  # more or fewer runs than pictures
            raise PictureError(f"the model has no positions for them: {error}") from error
        shift = int(shift[0, 0])
        return PictureInputs(digest, tensors, positions[:, 0], shift, self.token_ids)


def runs_of(ids: Sequence[int], token_ids: frozenset[int]) -> list[int]:
    """Lengths of the runs of tokens in ``token_ids``."""
    grouped = groupby(ids, key=token_ids.__contains__)
    return [sum(1 for _ in run) for is_placeholder, run in grouped if is_placeholder]


def language_model_class(config: Any) -> Any:
    """Auto class of transformers for a model of text, or of text and pictures."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    )

    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return AutoModelForCausalLM
    reads_pictures = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if reads_pictures else AutoModelForCausalLM


def picture_reader(path: str, model: Any) -> PictureReader | None:
    """The reader of a model's pictures; None for a model of text, or without a usable processor.

    None as well for a model whose pictures attend in both directions (Gemma 3): it
    serves and trains text.
    """
    body = getattr(model, "base_model", model)
    if not hasattr(body, "get_image_features"):
        return None
    if "token_type_ids" in inspect.signature(body.forward).parameters:
        return None
    if find_spec("PIL") is None:
        logger.warning("%s reads text only, and no pictures: %s", path, NO_PILLOW)
        return None
    try:
        processor = _processor(path, type(model.config))
    except (ImportError, OSError, ValueError) as error:  # a package or a file is missing
        reason = str(error).strip().partition("\n")[0]
        logger.warning("%s reads text only, and no pictures: %s", path, reason)
        return None
    if getattr(processor, "image_token", None) is None:
        return None
    return PictureReader(processor, model)


def _processor(path: str, config_class: type) -> Any:
    from transformers import AutoProcessor
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING
    from transformers.utils.import_utils import is_torchvision_available

    if is_torchvision_available() or config_class not in PROCESSOR_MAPPING:
        auto: Any = AutoProcessor
        return auto.from_pretrained(path)
    return without_video(PROCESSOR_MAPPING[config_class]).from_pretrained(path)


def without_video(kind: Any) -> Any:
    """The class of a processor without its part for videos, which needs torchvision."""

    def picture_parts(cls: Any) -> list[str]:
        return [name for name in kind.get_attributes() if "video" not in name]

    own = {"get_attributes": classmethod(picture_parts), "__module__": kind.__module__}
    return type(kind.__name__, (kind,), own)


def _digest(pictures: Sequence[bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for data in pictures:
        digest.update(hashlib.blake2b(data, digest_size=16).digest())
    return digest.digest()


def _pixels_of(output: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in output.items() if name not in TOKEN_OUTPUTS}
