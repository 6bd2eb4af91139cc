"""The copy environment with rollouts that take a chosen time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from pydantic import Field

from environments.copy_server import CopyConfig, CopyEnv


class SlowCopyConfig(CopyConfig):
    """Settings of the copy environment, and its speed."""

    delay_s: float = Field(default=0.0, ge=0, description="mean of the seconds of one score")


class SlowCopyEnv(CopyEnv):
    """Scores each group after a random time of up to twice the mean."""

    env_config_cls = SlowCopyConfig

    async def scored(self, item: dict[str, Any], choices: Any) -> Any:
        await asyncio.sleep(random.uniform(0.0, 2 * self.config.delay_s))
        return await super().scored(item, choices)


if __name__ == "__main__":
    SlowCopyEnv.cli()
