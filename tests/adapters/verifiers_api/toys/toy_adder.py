"""A server of tools of verifiers 0.4, which starts it as ``python -m toy_adder``."""

from __future__ import annotations

import verifiers.v1 as vf


class Adder(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "sums"

    @vf.tool
    def add(self, a: int, b: int) -> str:
        """The sum of two numbers."""
        return str(a + b)


if __name__ == "__main__":
    Adder.run()
