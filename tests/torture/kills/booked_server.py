"""Inference server for kills: no two of its replies are equal, over all of its lives.

    python -m tests.torture.kills.booked_server FOLDER PORT

Each reply is a line in ``FOLDER/replies.txt`` before it is sent. The policy version is the one
that the trainer wrote last.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from atroposlib.testing.fake_inference import FakeInference

REPLIES, VERSION = "replies.txt", "version.txt"


class NumberedReplies:
    """Numbers that go on after those of earlier lives."""

    def __init__(self, folder: Path) -> None:
        self._book = folder / REPLIES
        self._last = len(_lines(self._book))

    def __call__(self, prompt: str, index: int) -> str:
        self._last += 1
        with self._book.open("a") as book:
            book.write(f"{self._last}\n")
        return f"{self._last}"


def _lines(book: Path) -> list[str]:
    return book.read_text().splitlines() if book.exists() else []


def sent_tokens(folder: Path) -> int:
    """Tokens of all replies: a digit is a token, and the end is."""
    return sum(len(line) + 1 for line in _lines(folder / REPLIES))


def main() -> None:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    server = FakeInference(reply=NumberedReplies(folder))
    with server.running(port):
        while True:
            if (folder / VERSION).exists():
                server.weight_version = int((folder / VERSION).read_text())
            time.sleep(0.01)


if __name__ == "__main__":
    main()
