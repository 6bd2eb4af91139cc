"""Addresses of a teacher's servers, some of them in files that are read again.

A server that a cluster starts anew on another node has another address, and writes that into its file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from atroposlib.errors import InferenceUnavailable


def is_file_address(url: str) -> bool:
    """Whether an address is ``file:///path`` of a file that holds it."""
    return urlsplit(url).scheme == "file"


def current_addresses(urls: Sequence[str]) -> list[str]:
    """The addresses of servers at this moment.

    Raises InferenceUnavailable: a file is absent or empty; its server has not started yet.
    """
    return [_address_in(url) if is_file_address(url) else url for url in urls]


def _address_in(url: str) -> str:
    try:
        text = Path(unquote(urlsplit(url).path)).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InferenceUnavailable(f"no address in {url}: {error}") from error
    if not text:
        raise InferenceUnavailable(f"no address in {url}: the file is empty")
    return f"{text.removesuffix('/v1')}/v1"
