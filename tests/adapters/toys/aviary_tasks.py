"""Environments of the package aviary: a safe with a code, and data sets of them."""

from __future__ import annotations

from typing import Any

from aviary.core import (
    Environment,
    Message,
    TaskDataset,
    Tool,
    ToolRequestMessage,
)
from aviary.env import EnvsTaskDataset

CODES = [3, 7, 5]


class Safe(Environment[None]):
    """Right: 1; wrong: -0.25, and the third one locks it."""

    def __init__(self, code: int, broken: bool = False) -> None:
        self.code, self.broken = code, broken
        self.closed = False

    async def reset(self) -> tuple[list[Message], list[Tool]]:
        def turn(digit: int) -> str:
            """Turn the dial.

            Args:
                digit: where to.
            """
            if self.broken:
                raise RuntimeError("the dial fell off")
            self.tried.append(digit)
            return "open" if digit == self.code else "shut"

        self.tried: list[int] = []
        self.tools = [Tool.from_function(turn)]
        return [Message(content="Open the safe.")], self.tools

    async def step(self, action: Message) -> tuple[list[Message], float, bool, bool]:
        assert isinstance(action, ToolRequestMessage)
        if not action.tool_calls:
            return self.default_no_tool_calls_response
        answers: list[Any] = await self.exec_tool_calls(action)
        if self.code in self.tried:
            return answers, 1.0, True, False
        return answers, -0.25, False, len(self.tried) == 3

    async def close(self) -> None:
        self.closed = True


class Safes(TaskDataset[Safe]):
    def __init__(self, broken: bool = False) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return len(CODES)

    def get_new_env_by_idx(self, idx: int) -> Safe:
        return Safe(CODES[idx], self.broken)


def shared() -> EnvsTaskDataset[Safe]:
    return EnvsTaskDataset([Safe(code) for code in CODES])
