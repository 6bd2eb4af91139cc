"""Files of pictures: a model sees what a viewer shows, and other data is a typed error."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, strategies as st

from atroposlib.errors import PictureError
from atroposlib.utils.models import picture_files
from atroposlib.utils.models.picture_files import open_picture
from tests.examples import examples
from tests.vision import drawing

Image = pytest.importorskip("PIL.Image")


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_pictures_of_three_formats_are_read_as_rgb(form):
    file = io.BytesIO()
    Image.new("RGB", (5, 4), "red").save(file, form)
    assert open_picture(file.getvalue()).mode == "RGB"


def file_of(picture, form="PNG", **options):
    picture.save(file := io.BytesIO(), form, **options)
    return file.getvalue()


def orientation(number):
    exif = Image.Exif()
    exif[0x112] = number
    return exif


def corner(mode, colour, ground):
    """A picture of 6 x 4 pixels whose upper left pixel has another colour."""
    picture = Image.new(mode, (6, 4), ground)
    picture.putpixel((0, 0), colour)
    return picture


RED_CORNER = corner("RGB", (255, 0, 0), (255, 255, 255))
PALETTE = corner("P", 1, 0)
PALETTE.putpalette([0, 0, 0, 255, 0, 0])


@pytest.mark.parametrize(
    "data",
    [
        file_of(RED_CORNER),
        file_of(corner("RGBA", (255, 0, 0, 255), (0, 0, 0, 0))),
        file_of(PALETTE, transparency=0),
        file_of(corner("RGB", (255, 0, 0), (9, 9, 9)), transparency=(9, 9, 9)),
        file_of(
            corner("RGBA", (255, 0, 0, 255), (7, 7, 7, 0)), "WEBP", lossless=True, exact=True
        ),
        file_of(RED_CORNER, "WEBP", lossless=True, save_all=True, append_images=[PALETTE]),
        file_of(RED_CORNER, "PNG", save_all=True, append_images=[PALETTE.convert("RGB")]),
        file_of(RED_CORNER.transpose(Image.Transpose.ROTATE_90), exif=orientation(6)),
        file_of(RED_CORNER.transpose(Image.Transpose.ROTATE_180), exif=orientation(3)),
        file_of(RED_CORNER.transpose(Image.Transpose.FLIP_LEFT_RIGHT), exif=orientation(2)),
    ],
    ids="plain alpha palette colour-key webp-alpha animated apng turned half mirrored".split(),
)
def test_a_model_sees_a_picture_as_a_viewer_shows_it(data):
    assert open_picture(data).tobytes() == RED_CORNER.tobytes()


def test_a_photo_is_turned_and_inks_become_colours():
    photo = Image.new("RGB", (32, 16), "blue")
    photo.paste((255, 0, 0), (0, 0, 32, 8))
    shown = open_picture(file_of(photo, "JPEG", exif=orientation(6), quality=95))
    assert shown.size == (16, 32)
    assert shown.getpixel((12, 16))[0] > 200 and shown.getpixel((4, 16))[2] > 200
    assert open_picture(file_of(photo, "MPO", save_all=True)).size == (32, 16)
    inks = file_of(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    red, green, blue = open_picture(inks).getpixel((8, 8))
    assert red > 200 and green < 60 and blue < 60
    assert open_picture(file_of(Image.new("1", (3, 2), 1))).getpixel((0, 0)) == (255, 255, 255)


def test_16_bits_of_grey_are_refused_because_servers_see_them_white():
    deep = Image.new("I;16", (4, 4), 20000)
    with pytest.raises(PictureError, match="8 bits per channel.*write it with 8 bits"):
        open_picture(file_of(deep))


WHOLE_FILES = [
    file_of(RED_CORNER, exif=orientation(6)),
    file_of(PALETTE, transparency=0),
    file_of(RED_CORNER, "JPEG", exif=orientation(6)),
    file_of(RED_CORNER, "WEBP", exif=orientation(6)),
    file_of(RED_CORNER, "WEBP", save_all=True, append_images=[PALETTE]),
    file_of(RED_CORNER, "PNG", save_all=True, append_images=[PALETTE.convert("RGB")]),
]


@examples(300)
@given(st.sampled_from(WHOLE_FILES), st.data())
def test_a_damaged_file_is_a_picture_or_a_typed_error(data, drawn):
    end = drawn.draw(st.integers(1, len(data)))
    changes = drawn.draw(st.lists(st.tuples(st.integers(0, end - 1), st.integers(0, 255))))
    damaged = bytearray(data[:end])
    for place, value in changes:
        damaged[place] = value
    try:
        assert open_picture(bytes(damaged)).mode == "RGB"
    except PictureError:
        pass


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"not a picture", "not PNG, JPEG or WebP"),
        (b"GIF89a\x01\x00\x01\x00\x00\x00\x00;", "not PNG, JPEG or WebP"),
        (drawing("red")[:60], "cannot be decoded"),
    ],
)
def test_other_data_is_refused(data, problem):
    with pytest.raises(PictureError, match=problem):
        open_picture(data)


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(picture_files, "MAX_PIXELS", 100)
    with pytest.raises(PictureError, match="11 x 10 pixels; at most 100"):
        open_picture(drawing("red", (11, 10)))
