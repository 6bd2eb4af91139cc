"""The copy environment, a group a second: the pace of a run that is to meet its limits of time."""

from __future__ import annotations

import asyncio

from environments.copy_server import CopyEnv

GROUP_S = 1.0


class SlowCopyEnv(CopyEnv):
    async def get_next_item(self):
        await asyncio.sleep(GROUP_S)
        return await super().get_next_item()


if __name__ == "__main__":
    SlowCopyEnv.cli()
