"""Files of pictures as RGB, as viewers show pictures.

bytes -> size and depth are checked -> decoded -> turned -> what is transparent is white
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

from atroposlib.errors import PictureError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_PIXELS = 2**25  # 100 MB of a picture as RGB
# Modes with more than 8 bits: as RGB they would be cut to white and not scaled.
DEEP_MODES = ("I", "F", "I;16", "I;16L", "I;16B", "I;16N")
# What decoders of damaged files raise.
PICTURE_FAILURES = (OSError, SyntaxError, ValueError, Warning)


def open_picture(data: bytes) -> Image:
    """RGB picture of a PNG, JPEG or WebP file, as viewers show the file.

    The EXIF orientation turns the picture, and transparent parts are white, as in browsers and
    vLLM. Of an animation the first frame is read.

    Raises PictureError: the data is no picture, too large, or has more than 8 bits per channel.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of damaged metadata
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(data), formats=FORMATS)
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise PictureError(
                    f"a picture of {width} x {height} pixels; at most {MAX_PIXELS} in total"
                )
            if picture.mode in DEEP_MODES:
                raise PictureError(
                    f"a picture with more than 8 bits per channel (mode {picture.mode}), of which"
                    " servers see white alone: write it with 8 bits"
                )
            return _as_shown(picture)
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise PictureError("the data of a picture is not PNG, JPEG or WebP") from error
    except PICTURE_FAILURES as error:
        raise PictureError(f"a picture cannot be decoded: {error}") from error


def _as_shown(picture: Image) -> Image:
    from PIL import Image, ImageOps

    turned = ImageOps.exif_transpose(picture)
    if not turned.has_transparency_data:
        return turned.convert("RGB")
    layer = turned.convert("RGBA")
    shown = Image.new("RGB", layer.size, "white")
    shown.paste(layer, mask=layer.getchannel("A"))
    return shown
