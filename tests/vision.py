"""Drawings, and models of random weights that read them."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from PIL import Image

from atroposlib.testing.tiny_vision import write_tiny_vision_model


def drawing(colour: str, size: tuple[int, int] = (40, 24)) -> bytes:
    """A PNG of one colour with a dark corner."""
    picture = Image.new("RGB", size, colour)
    picture.paste((10, 20, 30), (0, 0, 5, 5))
    picture.save(file := io.BytesIO(), "PNG")
    return file.getvalue()


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def image_part(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def vision_dir(factory: Any, family: str, seed: int = 0) -> Path:
    """A model directory below pytest's folder of the session."""
    directory = factory.getbasetemp() / f"{family}-{seed}"
    if not (directory / "config.json").is_file():
        write_tiny_vision_model(directory, family, seed=seed, hidden_size=32)
    return directory
