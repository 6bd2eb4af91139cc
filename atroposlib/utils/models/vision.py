"""Pictures as inputs of a vision-language model, made by the model's own processor.

    bytes -> open_picture -> processor -> pixel tensors, placeholder tokens, positions of all tokens

The local server and the trainer both read pictures here, so that both compute the same numbers.

T tokens of a sequence, A axes of its positions (3 with multi-axis rope).
"""

from __future__ import annotations

import hashlib
import inspect
import io
import logging
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atroposlib.errors import PictureError

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)
NO_PILLOW = "pillow is missing: pip install 'atropos-rl[pictures]'"
FORMATS = ("PNG", "JPEG", "WEBP")
MAX_PIXELS = 2**25  # 100 MB of a picture as RGB
MAX_PICTURES = 64  # per sequence
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
    placeholders: int  # tokens of all pictures


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

    def inputs(self, ids: Sequence[int], pictures: Sequence[bytes]) -> PictureInputs:
        """Inputs of a sequence that is known by its tokens.

        Raises PictureError: a picture cannot be read, or needs another number of placeholders
        than the sequence has.
        """
        digest = _digest(pictures)
        pixels = self._kept.get(digest)
        if pixels is None:
            output = self._process(self._processor.image_token * len(pictures), pictures)
            found = output["input_ids"][0].tolist()
            pixels = _Pixels(_pixels_of(output), sum(i in self.token_ids for i in found))
        self._kept[digest] = pixels
        self._kept.move_to_end(digest)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        present = sum(token in self.token_ids for token in ids)
        if present != pixels.placeholders:
            raise PictureError(
                f"{len(pictures)} pictures take {pixels.placeholders} placeholder tokens by the"
                f" processor of the model, and the row has {present}: the server reads pictures"
                " with another processor, or the sample contains the placeholder itself"
            )
        return self._inputs(ids, digest, pixels.tensors)

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
        images = [open_picture(data) for data in pictures]
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
        positions, shift = self._rope_index(tokens, mm_token_type_ids=kinds, **grids)
        shift = int(shift[0, 0])
        return PictureInputs(digest, tensors, positions[:, 0], shift, self.token_ids)


def open_picture(data: bytes) -> Image:
    """RGB picture of a PNG, JPEG or WebP file. Raises PictureError: the data is no picture, or too large."""
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(data), formats=FORMATS)
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise PictureError(
                    f"a picture of {width} x {height} pixels; at most {MAX_PIXELS} in total"
                )
            return picture.convert("RGB")
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise PictureError("the data of a picture is not PNG, JPEG or WebP") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombWarning) as error:
        raise PictureError(f"a picture cannot be decoded: {error}") from error


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
